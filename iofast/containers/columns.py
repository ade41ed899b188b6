"""The columns of an index, one plain array per fact about the records, and files of columns.

`position`, `label`, `width`, `height`, `orientation`, and of each field `<field>.offset`, `<field>.length` and
`<field>.crc32c` (docs/format.md section 3).

Columns files are arrays behind a JSON header, for the rows of a finished section of a run, and for caches.
Little-endian: 16 bytes magic, u64 length and u64 CRC32C of the header, the header (`arrays` maps a name to [dtype,
count, offset, CRC32C]), then the arrays, each at a multiple of 64 from the start. Offsets count from the first array.
Only the version that wrote such a file reads it.
"""

import json
import mmap
import os
from array import array
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast import owned
from iofast.errors import ContainerError
from iofast.kernel import crc32c
from iofast.record import ImageInfo

MAGIC = b"iofast-columns\0\2"  # the last byte is the version
ALIGN = 64
DTYPES = ("|u1", "<i4", "<u4", "<i8", "<u8")

Arrays = dict[str, NDArray[Any]]

_FIRST = len(MAGIC) + 16
NOWHERE = (1 << 64) - 1  # the offset of a field that a record does not have
ABSENT = 0xFFFFFFFF  # `Located.file` of it
FACTS = {"position": "<u8", "label": "<i4", "width": "<i4", "height": "<i4", "orientation": "|u1"}
PLACES = {"offset": "<u8", "length": "<u4", "crc32c": "<u4"}
_CODES = {"<u8": "Q", "<i4": "i", "|u1": "B"}


def store(file: Path, members: Mapping[str, object], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a columns file: temporary name, fsync, rename. Raises `OSError`; then nothing is left."""
    places: dict[str, list[object]] = {}
    little = {name: np.ascontiguousarray(own, own.dtype.newbyteorder("<")) for name, own in arrays.items()}
    at = 0
    for name, own in little.items():
        places[name] = [own.dtype.str, own.size, at, crc32c(own.data) if own.size else 0]
        at += own.nbytes + -own.nbytes % ALIGN
    header = json.dumps({**members, "arrays": places}).encode()
    with owned.writing(file, 0o600) as out:
        out.write(MAGIC + len(header).to_bytes(8, "little") + crc32c(header).to_bytes(8, "little") + header)
        for own in little.values():
            out.write(bytes(-out.tell() % ALIGN))
            out.write(own.data)


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


def type_of(column: str) -> np.dtype[Any]:
    """The dtype of a column."""
    return np.dtype(FACTS.get(column) or PLACES[column.rpartition(".")[2]])


def lacking(column: str, rows: int) -> NDArray[Any]:
    """The column of a field that none of these records has."""
    return np.full(rows, NOWHERE if column.endswith(".offset") else 0, type_of(column))


def columns_of(field: str) -> tuple[str, str, str]:
    """The names of the columns of a field: offset, length, checksum."""
    return f"{field}.offset", f"{field}.length", f"{field}.crc32c"


def fields_in(columns: Collection[str]) -> list[str]:
    """The fields that have columns, sorted."""
    return sorted({name.rpartition(".")[0] for name in columns} - {""})


class RowsBuilder:
    """Columns of records that are added one by one."""

    def __init__(self) -> None:
        self._facts: dict[str, array[int]] = {name: array(_CODES[dtype]) for name, dtype in FACTS.items()}
        # of each field: the rows that have it, offsets, lengths, checksums
        self._places: dict[str, tuple[array[int], array[int], array[int], array[int]]] = {}

    def __len__(self) -> int:
        return len(self._facts["position"])

    def add(self, position: int, info: ImageInfo, places: Iterable[tuple[str, int, int, int]]) -> None:
        """Append a record; `places` has (field, offset, length, CRC32C) of each of its payloads."""
        row, facts = len(self), (position, info.label, info.width, info.height, info.orientation)
        for column, value in zip(self._facts.values(), facts, strict=True):
            column.append(value)
        for field, offset, length, crc in places:
            own = self._places.get(field)
            if own is None:
                own = self._places[field] = array("Q"), array("Q"), array("I"), array("I")
            for column, value in zip(own, (row, offset, length, crc), strict=True):
                column.append(value)

    def arrays(self) -> Arrays:
        """All columns."""
        count = len(self)
        columns = {name: np.frombuffer(own, FACTS[name], count) for name, own in self._facts.items()}
        for field, (having, *places) in sorted(self._places.items()):
            rows = np.frombuffer(having, np.uint64).astype(np.intp)
            for name, own in zip(columns_of(field), places, strict=True):
                columns[name] = lacking(name, count)
                columns[name][rows] = np.frombuffer(own, type_of(name))
        return columns
