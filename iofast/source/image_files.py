"""Open, read and probe the files of a plain folder. Nothing here blocks on a pipe or trusts a length."""

import contextlib
import errno
import os
import stat

from iofast import kernel
from iofast.containers.base import UNREADABLE
from iofast.containers.file_bytes import advice, none_left, opened
from iofast.errors import DecodeError, SourceError
from iofast.kernel.contract import MAX_BYTES
from iofast.record import field_of
from iofast.source.listing import printable

IMAGE_FIELD = "jpg"  # what indexes of other programs' files and of folders call an image, whatever its format
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO would block forever


def _regular(path: bytes) -> tuple[int, os.stat_result]:
    """Descriptor and status of a regular file. Raises `OSError`."""
    try:
        descriptor = opened(path, _FLAGS)
    except ValueError as error:  # a NUL in the path, which only a damaged index has
        raise OSError(errno.EINVAL, str(error)) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file")
    return descriptor, status


def open_file(path: bytes) -> tuple[int, int]:
    """Descriptor and size of a regular file; (UNREADABLE, 1) for anything else.

    Raises `SourceError` if no descriptor is left: that is no property of the file, and the next one would fail too.
    """
    try:
        descriptor, status = _regular(path)
    except OSError as error:
        if none_left(error):
            raise SourceError(f"cannot open {printable(path)}: {str(error.strerror).lower()}{advice(error)}") from None
        return UNREADABLE, 1
    return descriptor, status.st_size


def beginning(path: bytes, length: int = MAX_BYTES) -> bytes | None:
    """The first bytes of a file, fewer if it has no more; None if it cannot be read. Raises as `open_file` does."""
    descriptor, size = open_file(path)
    if descriptor == UNREADABLE:
        return None
    try:
        return os.pread(descriptor, min(size, length), 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def content(path: bytes) -> bytes:
    """All bytes of a regular file of at most `MAX_BYTES`. Raises `SourceError`."""
    try:
        descriptor, status = _regular(path)
        with open(descriptor, "rb") as file:
            data = file.read(min(status.st_size, MAX_BYTES) + 1)  # allocates this much before it reads
            if len(data) > status.st_size:  # the file has grown
                data += file.read(MAX_BYTES)
    except OSError as error:
        raise SourceError(f"cannot read {printable(path)}: {error.strerror or error}{advice(error)}") from None
    if len(data) > MAX_BYTES:
        raise SourceError(f"{printable(path)} has more than {MAX_BYTES} bytes")
    return data


def named_by_format(fields: dict[str, bytes]) -> dict[str, bytes]:
    """The fields of a record whose image `jpg` may have any format, with the image named by it."""
    with contextlib.suppress(KeyError, DecodeError):
        name = field_of(kernel.read_header(fields[IMAGE_FIELD]).format)
        fields[name] = fields.pop(IMAGE_FIELD)
    return dict(sorted(fields.items()))


def read_header(path: bytes) -> tuple[int, int, int, int, int]:
    """(bytes, time of change, upright width, upright height, orientation) of an image file.

    An unreadable file has zeros and orientation 1; a file that is no image has width and height 0. The time is in
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
