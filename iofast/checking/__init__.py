"""`verify` checks a container or a folder: checksums, images, and the index against the bytes."""

from iofast.checking.problems import Problem, Verification
from iofast.checking.verify import verify

__all__ = ["verify", "Verification", "Problem"]
