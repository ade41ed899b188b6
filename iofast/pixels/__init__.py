"""The operations of `ops`, carried out on batches of images."""

from iofast.pixels.dispatch import TYPES as TYPES
from iofast.pixels.dispatch import apply as apply
from iofast.pixels.dispatch import augment as augment
from iofast.pixels.dispatch import finish_of as finish_of
from iofast.pixels.dispatch import rows_of as rows_of
from iofast.pixels.geometry import RaggedBatch as RaggedBatch
from iofast.pixels.geometry import resample as resample
from iofast.pixels.torch_pixels import check_dtype as check_dtype

__all__ = ["TYPES", "Ragged", "apply", "augment", "check_dtype", "finish_of", "resample", "rows_of"]
