"""`verify`: whether a container, or a folder, is whole: checksums, images, and its index against its bytes."""

from iofast.checking.problems import Problem, Verification
from iofast.checking.verify import verify

__all__ = ["verify", "Verification", "Problem"]
