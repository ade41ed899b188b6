"""The operations of `ops` on batches of images."""

from iofast.pixels.dispatch import TYPES, apply, augment, finish_of, rows_of
from iofast.pixels.torch_geometry import RaggedBatch, resample
from iofast.pixels.torch_pixels import check_dtype

__all__ = ["TYPES", "RaggedBatch", "apply", "augment", "check_dtype", "finish_of", "resample", "rows_of"]
