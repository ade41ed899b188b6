"""The columns of an index: one plain array per fact about the records.

`position`, `label`, `width`, `height`, `orientation`, and of each field `<field>.offset`, `<field>.length` and
`<field>.crc32c` (docs/format.md section 3).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers.columns_file import Arrays
from iofast.record import ImageInfo

NOWHERE = (1 << 64) - 1  # the offset of a field that a record does not have
ABSENT = 0xFFFFFFFF  # `Located.file` of it

FACTS = {"position": "<u8", "label": "<i4", "width": "<i4", "height": "<i4", "orientation": "|u1"}
PLACES = {"offset": "<u8", "length": "<u4", "crc32c": "<u4"}
_CODES = {"<u8": "Q", "<i4": "i", "|u1": "B"}


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
            rows, offsets, lengths, crcs = own  # unrolled: called for each record, twice in a conversion
            rows.append(row)
            offsets.append(offset)
            lengths.append(length)
            crcs.append(crc)

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
