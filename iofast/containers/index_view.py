"""Reading an index: of the columns that are asked for, only the requested rows.

Opening costs the same for a thousand records as for a billion: the header of a piece is read when one of its rows is
first used. The columns of up to `HELD` records (60 MB) are read whole, compared with their checksums, and kept: 256
random rows of eight columns take 30 µs. Of more records single rows are read, with `pread`, because a mapped page that
another program cuts off would end the process (SIGBUS); their values are checked where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers.columns import FACTS, PIECE, PLACES, type_of, usual_of
from iofast.containers.columns_file import Arrays, Column, Header, read_header
from iofast.containers.file_bytes import FileBytes, retried
from iofast.containers.manifest import Manifest
from iofast.errors import ContainerError
from iofast.kernel import crc32c

HELD = 1 << 21  # records
_LEFT_OUT = -1  # start of a column in a piece that does not have it


class IndexView:
    """The columns of an index in a file. `find(piece)` returns offset and length of a piece in the file.

    Threads may share a view: its state (places of columns, columns) only grows. Errors are `ContainerError` that name
    `where`.
    """

    def __init__(self, data: FileBytes, manifest: Manifest, find: Callable[[int], tuple[int, int]], where: str) -> None:
        self._data, self._manifest, self._find, self._where = data, manifest, find, where
        self._opened = np.zeros(len(manifest.index), np.bool_)
        self._columns: dict[str, dict[int, Column]] = {}  # by name and piece
        self._held: Arrays = {}

    def read(self, names: Sequence[str], indices: NDArray[np.int64]) -> Arrays:
        """These columns of the records `indices`, (N,) each. Raises `IndexError` for an index out of range."""
        count = self._manifest.count
        if indices.size and not 0 <= indices.min() <= indices.max() < count:
            worst = int(indices.max() if indices.min() >= 0 else indices.min())
            raise IndexError(f"{self._where}: record {worst} is not in 0 … {count - 1}")
        if count <= HELD:
            for name in names:
                if name not in self._held:
                    self._held[name] = self._whole(name)
            return {name: self._held[name][indices] for name in names}
        pieces = indices // PIECE
        for piece in np.unique(pieces).tolist():
            self._open(piece)
        return {name: self._rows(name, pieces, indices) for name in names}

    def _whole(self, name: str) -> NDArray[Any]:
        """A column of all records, compared with its checksums."""
        parts = [_usual(name, np.arange(0, dtype=np.int64))]
        for piece in range(len(self._opened)):
            self._open(piece)
            column, first = self._columns.get(name, {}).get(piece), piece * PIECE
            rows = np.arange(first, min(first + PIECE, self._manifest.count), dtype=np.int64)
            own = _usual(name, rows) if column is None else retried(self._data, partial(self._checked, name, column))
            parts.append(own)
        return np.concatenate(parts)

    def _checked(self, name: str, column: Column) -> NDArray[Any]:
        dtype, rows, start, crc = column
        data = self._data[start : start + rows * dtype.itemsize]
        if len(data) < rows * dtype.itemsize or crc32c(data) != crc:
            what = f"the column {name} at offset {start} is damaged: its CRC32C differs"
            raise ContainerError(f"{self._where}: {what}")
        return np.frombuffer(data, dtype)

    def _rows(self, name: str, pieces: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[Any]:
        """Some rows of a column, read one by one."""
        columns, dtype = self._columns.get(name, {}), type_of(name)
        starts = np.full(len(self._opened), _LEFT_OUT, np.int64)
        for piece, column in columns.items():
            starts[piece] = column.start
        values, own = _usual(name, indices), starts[pieces]
        there = np.flatnonzero(own >= 0)
        if there.size:
            at = own[there] + indices[there] % PIECE * dtype.itemsize
            values[there] = self._data.gather(at, dtype.itemsize).view(dtype).reshape(-1)
        return values

    def check(self) -> Iterator[str]:
        """Yield what is wrong with whole columns: each is compared with its checksum."""
        for piece in range(len(self._manifest.index)):
            try:
                header = self._header(piece)
                for name, (dtype, count, start, crc) in header.columns.items():
                    if count and crc32c(self._data[start : start + count * dtype.itemsize]) != crc:
                        first = piece * PIECE
                        what = f"{name} of records {first} to {first + count - 1} at offset {start}"
                        yield f"{self._where}: the column {what} is damaged: its CRC32C differs"
            except ContainerError as error:
                yield str(error)

    def _open(self, piece: int) -> None:
        if self._opened[piece]:
            return
        for name, column in retried(self._data, lambda: self._header(piece)).columns.items():
            self._columns.setdefault(name, {})[piece] = column
        self._opened[piece] = True  # last: now other threads use the piece

    def _header(self, piece: int) -> Header:
        """Read the header of a piece. Raises `ContainerError` unless it is that of the manifest."""
        start, length = self._find(piece)
        size, seal = self._manifest.index[piece]
        where = f"{self._where}: piece {piece} of the index at offset {start}"
        if min(length, len(self._data) - start) < size:
            raise ContainerError(f"{where}: expected {size} bytes, found {min(length, len(self._data) - start)}")
        header = read_header(lambda first, stop: self._data[first:stop], start, size, where)
        rows = min(PIECE, self._manifest.count - piece * PIECE)
        if header.seal != seal:
            raise ContainerError(f"{where}: expected the header with CRC32C {seal}, found {header.seal}")
        for name, column in header.columns.items():
            field, _, part = name.rpartition(".")
            known = name in FACTS or (part in PLACES and field in self._manifest.fields)
            if not known or column.dtype != type_of(name) or column.rows != rows:
                found = f"{column.rows} {column.dtype} of {name!r:.80} at {column.start}"
                raise ContainerError(f"{where}: expected columns of {rows} rows of known names, found {found}")
        return header


def _usual(name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    """The values of a column that is left out."""
    return rows.astype(np.uint64) if name == "position" else np.full(len(rows), usual_of(name), type_of(name))
