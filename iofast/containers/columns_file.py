"""Columns files: arrays behind a sealed JSON header (docs/format.md section 3).

One layout for the index of a container, the rows of a finished section of a run, and cached listings. Little-endian: 16
bytes magic, u64 length of the header, the header (JSON with its own CRC32C; `arrays` maps a name to [dtype, count,
offset, CRC32C]), then the arrays, each at a multiple of 64 from the start. Offsets count from the first array.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast import owned
from iofast.containers.sealed import MAX_BYTES, check_seal, seal, unseal
from iofast.errors import ContainerError
from iofast.kernel import crc32c

MAGIC = b"iofast-columns\0\1"  # the last byte is the version
ALIGN = 64
DTYPES = ("|u1", "<i4", "<u4", "<i8", "<u8")

Arrays = dict[str, NDArray[Any]]

_FIRST = len(MAGIC) + 8


class Column(NamedTuple):
    """Where an array lies: `start` in bytes of the file that has it."""

    dtype: np.dtype[Any]
    rows: int
    start: int
    crc: int


class Header(NamedTuple):
    """The header of a columns file: its members, its arrays, its own CRC32C, and the bytes of the whole file."""

    members: dict[str, Any]
    columns: dict[str, Column]
    seal: str
    size: int


def encode(members: Mapping[str, object], arrays: Mapping[str, NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """The bytes of a columns file, in pieces."""
    places: dict[str, list[object]] = {}
    little = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    at = 0
    for name, array in little.items():
        at += -at % ALIGN
        # of a fixed length, so that a header does not grow with its values
        places[name] = [array.dtype.str, array.size, at, f"{crc32c(array.data) if array.size else 0:08x}"]
        at += array.nbytes
    header = seal({**members, "arrays": places})
    head = MAGIC + len(header).to_bytes(8, "little") + header
    yield head + bytes(-len(head) % ALIGN)
    at = 0
    for array in little.values():
        yield bytes(-at % ALIGN)
        yield array.data.cast("B") if array.size else b""
        at += -at % ALIGN + array.nbytes


def read_header(read: Callable[[int, int], bytes], start: int, size: int, where: str) -> Header:
    """Parse the header of a columns file of `size` bytes that begins at `start`; `read(start, stop)` returns bytes.

    Raises `ContainerError`, naming `where`, unless it is sealed and all arrays lie inside. Nothing else is trusted.
    """
    try:
        head = read(start, start + min(_FIRST, size))
        length = int.from_bytes(head[len(MAGIC) :], "little")
        if head[: len(MAGIC)] != MAGIC or length > min(size - _FIRST, MAX_BYTES):
            raise ContainerError(f"expected {MAGIC!r} and a header, found {head[: len(MAGIC)]!r} and {size} bytes")
        text = read(start + _FIRST, start + _FIRST + length)
        check_seal(text)
        members = unseal(text)
        first = _FIRST + length + -(_FIRST + length) % ALIGN
        columns = {str(name): _column(place, start, first, size) for name, place in members.pop("arrays").items()}
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ContainerError(f"{where}: the header of its columns is invalid: {error!r:.80}") from None
    return Header(members, columns, str(members.pop("crc32c")), size)


def _column(place: list[Any], start: int, first: int, size: int) -> Column:
    dtype, count, offset, crc = place
    if dtype not in DTYPES or not all(type(number) is int for number in (count, offset)):
        raise ContainerError(f"a column cannot have the type {dtype!r:.20}")
    stop = first + offset + count * np.dtype(dtype).itemsize
    if count < 0 or offset < 0 or offset % ALIGN or stop > size:
        raise ContainerError(f"a column of {count} {dtype} at {offset} lies outside of {size} bytes")
    return Column(np.dtype(dtype), count, start + first + offset, int(crc, 16))


def store(file: Path, members: Mapping[str, object], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a columns file: temporary name, fsync, rename. Raises `OSError`; then nothing is left."""
    with owned.writing(file, 0o600) as out:
        out.writelines(encode(members, arrays))


def load(file: Path, *, checked: bool = True) -> tuple[dict[str, Any], Arrays]:
    """Map a columns file: its members and its arrays, which stay valid when the file is replaced.

    Without `checked` no checksum of an array is computed, so that a process reads only the rows that it needs. Raises
    `OSError` for a missing file, `ContainerError` if its bytes contradict the layout.
    """
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size < _FIRST:
            raise ContainerError(f"{file} has {size} bytes, too few for columns")
        mapped = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ)
    header = read_header(lambda start, stop: mapped[start:stop], 0, size, os.fspath(file))
    arrays: Arrays = {}
    for name, (dtype, count, start, crc) in header.columns.items():
        arrays[name] = np.frombuffer(mapped, dtype, count, start) if count else np.zeros(0, dtype)
        if checked and count and crc32c(arrays[name].data) != crc:
            raise ContainerError(f"{file}: the column {name} is damaged: its CRC32C differs")
    return header.members, arrays
