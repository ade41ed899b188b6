"""The operations of `ops`, carried out on batches of images."""

from iofast.pixels.torch_pixels import apply as apply
from iofast.pixels.torch_pixels import check_dtype as check_dtype

__all__ = ["apply", "check_dtype"]
