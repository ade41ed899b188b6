"""Columns files: arrays behind a JSON header, for the rows of a finished section of a run, and for caches.

Little-endian: 16 bytes magic, u64 length and u64 CRC32C of the header, the header (`arrays` maps a name to [dtype,
count, offset, CRC32C]), then the arrays, each at a multiple of 64 from the start. Offsets count from the first array.
Only the version that wrote such a file reads it.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast import owned
from iofast.errors import ContainerError
from iofast.kernel import crc32c

MAGIC = b"iofast-columns\0\2"  # the last byte is the version
ALIGN = 64
DTYPES = ("|u1", "<i4", "<u4", "<i8", "<u8")

Arrays = dict[str, NDArray[Any]]

_FIRST = len(MAGIC) + 16


def store(file: Path, members: Mapping[str, object], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a columns file: temporary name, fsync, rename. Raises `OSError`; then nothing is left."""
    places: dict[str, list[object]] = {}
    little = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    at = 0
    for name, array in little.items():
        places[name] = [array.dtype.str, array.size, at, crc32c(array.data) if array.size else 0]
        at += array.nbytes + -array.nbytes % ALIGN
    header = json.dumps({**members, "arrays": places}).encode()
    with owned.writing(file, 0o600) as out:
        out.write(MAGIC + len(header).to_bytes(8, "little") + crc32c(header).to_bytes(8, "little") + header)
        for array in little.values():
            out.write(bytes(-out.tell() % ALIGN))
            out.write(array.data)


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
    try:
        members, places, first = _header(mapped, size)
        arrays = {str(name): _array(mapped, place, first) for name, place in places.items()}
        if wrong := [
            name for name, own in arrays.items() if checked and own.size and crc32c(own.data) != places[name][3]
        ]:
            raise ContainerError(f"the column {wrong[0]} is damaged: its CRC32C differs")
    except ContainerError as error:
        raise ContainerError(f"{file}: {error}") from None
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise ContainerError(f"{file}: the header of its columns is invalid: {error!r:.80}") from None
    return members, arrays


def _header(mapped: mmap.mmap, size: int) -> tuple[dict[str, Any], dict[str, list[Any]], int]:
    """The members of the header, where its arrays lie, and where the first one begins."""
    length, crc = (int.from_bytes(mapped[at : at + 8], "little") for at in (len(MAGIC), len(MAGIC) + 8))
    if mapped[: len(MAGIC)] != MAGIC or length > size - _FIRST:
        raise ContainerError(f"expected {MAGIC!r} and a header, found {mapped[: len(MAGIC)]!r} and {size} bytes")
    text = mapped[_FIRST : _FIRST + length]
    if crc32c(text) != crc:
        raise ContainerError("the header of its columns is damaged: its CRC32C differs")
    members = json.loads(text)
    return members, members.pop("arrays"), _FIRST + length + -(_FIRST + length) % ALIGN


def _array(mapped: mmap.mmap, place: list[Any], first: int) -> NDArray[Any]:
    dtype, count, offset, _ = place
    if dtype not in DTYPES or not all(type(number) is int and number >= 0 for number in (count, offset)):
        raise ContainerError(f"a column cannot have {count!r:.20} values of type {dtype!r:.20} at {offset!r:.20}")
    if first + offset + count * np.dtype(dtype).itemsize > len(mapped):
        raise ContainerError(f"a column of {count} {dtype} at {offset} lies outside of {len(mapped)} bytes")
    return np.frombuffer(mapped, dtype, count, first + offset) if count else np.zeros(0, dtype)
