"""Records from one container into another, payload by payload: convert, split, merge."""

from iofast.copying.convert import Copied, CopyOptions, convert

__all__ = ["convert", "Copied", "CopyOptions"]
