"""One file of a plain folder: opened, read, its header looked at. Nothing here waits for ever or trusts a length."""

from __future__ import annotations

import os
import stat

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.containers.base import UNREADABLE
from iofast.containers.descriptors import advice, none_left, opened
from iofast.errors import DecodeError, SourceError
from iofast.kernel.contract import MAX_BYTES
from iofast.source.listing import printable

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO would block for ever


def open_file(path: bytes) -> tuple[int, int]:
    """Descriptor and size of a regular file; (UNREADABLE, 1) where that fails.

    Raises `SourceError` where there is no descriptor left: that says nothing of the file, and the next one fails too.
    """
    try:
        descriptor = opened(path, _FLAGS)
    except ValueError:  # a NUL in the path, which only a damaged index has
        return UNREADABLE, 1
    except OSError as error:
        if none_left(error):
            raise SourceError(f"cannot open {printable(path)}: {str(error.strerror).lower()}{advice(error)}") from None
        return UNREADABLE, 1
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return descriptor, status.st_size
    os.close(descriptor)
    return UNREADABLE, 1


def in_memory(path: bytes) -> NDArray[np.uint8] | None:
    """The file's bytes, at an address that stays while the array does; None where they cannot be read."""
    descriptor, length = open_file(path)
    if descriptor == UNREADABLE:
        return None
    try:
        return np.frombuffer(os.pread(descriptor, min(length, MAX_BYTES), 0), np.uint8)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def beginning(path: bytes, length: int) -> bytes:
    """The first bytes of a file, fewer where it has no more; none where it cannot be read."""
    descriptor, _ = open_file(path)
    if descriptor == UNREADABLE:
        return b""
    try:
        return os.pread(descriptor, length, 0)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def content(path: bytes) -> bytes:
    """All bytes of a file. Raises `SourceError` where it cannot be read, is no file or has more than an image may."""
    try:
        descriptor = opened(path, _FLAGS)
        with open(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(f"cannot read {printable(path)}: it is not a file")
            data = file.read(min(status.st_size, MAX_BYTES) + 1)  # so much memory is taken before anything is read
            if len(data) > status.st_size:  # it has grown
                data += file.read(MAX_BYTES)
    except (OSError, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        if isinstance(error, ValueError):  # a NUL in the path, which only a damaged index has
            raise SourceError(f"cannot read {printable(path)}: {error}") from None
        raise SourceError(f"cannot read {printable(path)}: {error.strerror or error}{advice(error)}") from None
    if len(data) > MAX_BYTES:
        raise SourceError(f"{printable(path)} has more than {MAX_BYTES} bytes")
    return data


def read_header(path: bytes) -> tuple[int, int, int, int, int]:
    """(bytes, time of change, upright width, upright height, orientation) of an image file.

    Zeros, and orientation 1, where it cannot be read; where it is no image, of the sizes in pixels. The time is in
    nanoseconds since 1970. Raises `SourceError` as `open_file` does.
    """
    descriptor, size = open_file(path)
    if descriptor == UNREADABLE:
        return 0, 0, 0, 0, 1
    changed, pixels = 0, (0, 0, 1)
    try:
        changed = os.fstat(descriptor).st_mtime_ns
        header = kernel.probe(lambda offset, count: os.pread(descriptor, count, offset), size)
        pixels = (header.width, header.height, header.orientation)
    except DecodeError:
        pass  # no image
    except OSError:
        return 0, 0, 0, 0, 1
    finally:
        os.close(descriptor)
    return size, changed, *pixels
