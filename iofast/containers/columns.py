"""The columns of an index: one plain array per fact about the records, in pieces of 262,144 records.

`position`, `label`, `width`, `height`, `orientation`, and of each field `<field>.offset`, `<field>.length` and
`<field>.crc32c`. A column whose values are all the usual one is left out of its piece (docs/format.md section 3).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.containers.columns_file import Arrays
from iofast.record import ImageInfo

PIECE = 1 << 18  # records
NOWHERE = (1 << 64) - 1  # the offset of a field that a record does not have
ABSENT = 0xFFFFFFFF  # `Located.file` of it

FACTS = {"position": "<u8", "label": "<i4", "width": "<i4", "height": "<i4", "orientation": "|u1"}
PLACES = {"offset": "<u8", "length": "<u4", "crc32c": "<u4"}
_USUAL = {"label": -1, "orientation": 1, "offset": NOWHERE}  # 0 for the others; of `position`, the dense index


class FieldPlaces(NamedTuple):
    """Where payloads of one field lie in their files: columns of N rows, zero except `there`."""

    there: NDArray[np.bool_]  # whether the record has the field
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    crc: NDArray[np.uint32]


def type_of(column: str) -> np.dtype[Any]:
    """The dtype of a column."""
    return np.dtype(FACTS.get(column) or PLACES[column.rpartition(".")[2]])


def usual_of(column: str) -> int:
    """The value of a column that need not be stored."""
    return _USUAL.get(column if column in FACTS else column.rpartition(".")[2], 0)


def columns_of(field: str) -> tuple[str, str, str]:
    """The names of the columns of a field: offset, length, checksum."""
    return f"{field}.offset", f"{field}.length", f"{field}.crc32c"


def fields_in(columns: Collection[str]) -> list[str]:
    """The fields that have columns, sorted."""
    return sorted({name.rpartition(".")[0] for name in columns} - {""})


def places_in(columns: Mapping[str, NDArray[Any]], field: str) -> FieldPlaces:
    """The places of a field in columns that have it."""
    offset, length, crc = (columns[name] for name in columns_of(field))
    there = offset != np.uint64(NOWHERE)
    return FieldPlaces(there, np.where(there, offset, np.uint64(0)), length.astype(np.uint64), crc)


def first_of(own: FieldPlaces, later: FieldPlaces) -> FieldPlaces:
    """The places of one field, and of another for records without the first."""
    return FieldPlaces(
        there=own.there | later.there,
        offset=np.where(own.there, own.offset, later.offset),
        length=np.where(own.there, own.length, later.length),
        crc=np.where(own.there, own.crc, later.crc),
    )


class RowsBuilder:
    """Columns of records that are added one by one."""

    def __init__(self) -> None:
        self._facts: dict[str, array[int]] = {name: array(_CODES[dtype]) for name, dtype in FACTS.items()}
        self._rows: dict[str, array[int]] = {}  # of each field, the rows that have it
        self._places: dict[str, tuple[array[int], array[int], array[int]]] = {}

    def __len__(self) -> int:
        return len(self._facts["position"])

    def add(self, position: int, info: ImageInfo, places: Iterable[tuple[str, int, int, int]]) -> None:
        """Append a record; `places` has (field, offset, length, CRC32C) of each of its payloads."""
        row = len(self)
        for column, value in zip(self._facts.values(), (position, *_facts(info)), strict=True):
            column.append(value)
        for field, *place in places:
            own = self._places.get(field)
            if own is None:
                own = self._places[field] = array("Q"), array("I"), array("I")
                self._rows[field] = array("Q")
            self._rows[field].append(row)
            for column, value in zip(own, place, strict=True):
                column.append(value)

    def arrays(self) -> Arrays:
        """All columns, none left out."""
        count = len(self)
        columns = {name: np.frombuffer(own, FACTS[name], count) for name, own in self._facts.items()}
        for field, places in sorted(self._places.items()):
            rows = np.frombuffer(self._rows[field], np.uint64).astype(np.intp)
            for name, own in zip(columns_of(field), places, strict=True):
                columns[name] = np.full(count, usual_of(name), type_of(name))
                columns[name][rows] = np.frombuffer(own, type_of(name))
        return columns


_CODES = {"<u8": "Q", "<i4": "i", "|u1": "B"}


def _facts(info: ImageInfo) -> tuple[int, int, int, int]:
    return info.label, info.width, info.height, info.orientation


def in_pieces(parts: Iterable[Arrays]) -> Iterator[tuple[int, Arrays]]:
    """The columns of consecutive records, cut into pieces: the dense index of each first record, and its columns.

    Columns with nothing but usual values are left out. Memory: one piece and one of `parts`.
    """
    first, held, rows = 0, list[Arrays](), 0
    for part in parts:
        count, start = len(part["position"]), 0
        while start < count:
            own = {name: column[start : start + PIECE - rows] for name, column in part.items()}
            held.append(own)
            start, rows = start + len(own["position"]), rows + len(own["position"])
            if rows == PIECE:
                yield first, _joined(held, first)
                first, held, rows = first + PIECE, [], 0
    if held:
        yield first, _joined(held, first)


def _joined(parts: Sequence[Arrays], first: int) -> Arrays:
    columns: Arrays = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        own = [
            part[name] if name in part else np.full(len(part["position"]), usual_of(name), type_of(name))
            for part in parts
        ]
        column = np.concatenate(own)
        usual = np.arange(first, first + len(column), dtype=np.uint64) if name == "position" else usual_of(name)
        if (column != usual).any():
            columns[name] = column
    return columns
