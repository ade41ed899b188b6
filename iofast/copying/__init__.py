"""Records from one container into another, payload by payload: convert, split, merge."""

from iofast.copying.combine import Division, merge, split
from iofast.copying.convert import Copied, CopyOptions, convert

__all__ = ["convert", "split", "merge", "Copied", "CopyOptions", "Division"]
