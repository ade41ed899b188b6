"""The operations of `ops`, carried out on batches of images."""

from iofast.pixels.dispatch import apply as apply
from iofast.pixels.dispatch import augment as augment
from iofast.pixels.geometry import Ragged as Ragged
from iofast.pixels.geometry import resample as resample
from iofast.pixels.torch_pixels import check_dtype as check_dtype

__all__ = ["Ragged", "apply", "augment", "check_dtype", "resample"]
