"""Records from one container into another, payload by payload."""

from iofast.copying.convert import Copied, CopyOptions, convert

__all__ = ["convert", "Copied", "CopyOptions"]
