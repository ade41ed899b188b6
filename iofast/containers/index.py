"""The index of a container: its columns one after another, each with a row for every record (docs/format.md 3).

The place of a column follows from the number of records and the fields, and the manifest has its checksum, so opening
costs the same for a thousand records as for a billion. The columns of up to `HELD` records (60 MB) are read whole,
compared with their checksums, and kept: 256 random rows of eight columns take 30 µs. Of more records single rows are
read, with `pread`, because a mapped page that another program cuts off would end the process (SIGBUS); their values
are checked where they are used.

The fingerprint of a container covers keys, fields, lengths and checksums (docs/format.md 2.2).
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers.columns import ALIGN, FACTS, NOWHERE, Arrays, columns_of, fields_in, lacking, type_of
from iofast.containers.file_bytes import FileBytes, retried
from iofast.containers.manifest import Manifest
from iofast.errors import ContainerError
from iofast.kernel import crc32c

HELD = 1 << 21  # records
BLOCK = 1 << 26  # bytes of a value in an LMDB file, whose transactions are in memory until they are committed
_ROW = np.dtype([("position", "<u8"), ("length", "<u4"), ("crc", "<u4")])


class Layout:
    """Where the columns lie in the index of `count` records with these fields, which has `size` bytes."""

    def __init__(self, count: int, fields: Sequence[str]) -> None:
        self.starts: dict[str, int] = {}
        at = 0
        for name in (*FACTS, *(column for field in fields for column in columns_of(field))):
            self.starts[name] = at
            at += count * type_of(name).itemsize
            at += -at % ALIGN
        self.size = max(at, ALIGN)  # a reader refuses an empty file


def blocks_of(size: int) -> list[int]:
    """The bytes of each block of an index of this size."""
    return [min(BLOCK, size - start) for start in range(0, size, BLOCK)]


class IndexView:
    """The columns of an index in a file. `find(number)` returns where a block of it begins in the file.

    Threads may share a view: its state (places of blocks, columns) only grows. Errors are `ContainerError` that name
    `where`.
    """

    def __init__(self, data: FileBytes, manifest: Manifest, find: Callable[[int], int], where: str) -> None:
        self._data, self._count, self._find, self._where = data, manifest.count, find, where
        self._layout, self._sums = Layout(manifest.count, manifest.fields), manifest.index
        if self._sums.keys() != self._layout.starts.keys():
            found = f"columns of {', '.join(sorted(manifest.fields)):.200}, found {', '.join(sorted(self._sums)):.200}"
            raise ContainerError(f"{where}: expected an index with {found}")
        self._blocks = np.full(len(blocks_of(self._layout.size)), -1, np.int64)
        self._held: Arrays = {}

    def read(self, names: Sequence[str], indices: NDArray[np.int64]) -> Arrays:
        """These columns of the records `indices`, (N,) each, which must be in range."""
        if self._count > HELD:
            return {name: self._rows(name, indices) for name in names}
        for name in names:
            if name not in self._held:
                self._held[name] = retried(self._data, partial(self._whole, name))
        return {name: self._held[name][indices] for name in names}

    def check(self) -> Iterator[str]:
        """Yield what is wrong with whole columns: each is compared with its checksum."""
        for name in self._layout.starts:
            try:
                retried(self._data, partial(self._check, name))
            except ContainerError as error:
                yield str(error)

    def _check(self, name: str) -> None:
        crc = 0
        for part in self._parts(name):
            crc = crc32c(part, crc)
        self._compare(name, crc)

    def _whole(self, name: str) -> NDArray[Any]:
        data = b"".join(self._parts(name))
        self._compare(name, crc32c(data))
        return np.frombuffer(data, type_of(name))

    def _compare(self, name: str, crc: int) -> None:
        if f"{crc:08x}" != self._sums.get(name):
            at = int(self._places(np.array([self._layout.starts[name]]))[0])
            what = f"the column {name} of the index at offset {at} is damaged: its CRC32C differs"
            raise ContainerError(f"{self._where}: {what}")

    def _parts(self, name: str) -> Iterator[bytes]:
        """The bytes of a column; those in one block are read together."""
        at = self._layout.starts[name]
        stop = at + self._count * type_of(name).itemsize
        while at < stop:
            end = min(stop, at - at % BLOCK + BLOCK)
            start = int(self._places(np.array([at]))[0])
            part = self._data[start : start + end - at]
            if len(part) < end - at:
                raise ContainerError(f"{self._where}: the index ends within the column {name}")
            yield part
            at = end

    def _rows(self, name: str, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Some rows of a column, read one by one."""
        dtype = type_of(name)
        at = self._places(self._layout.starts[name] + indices * dtype.itemsize)
        return self._data.gather(at, dtype.itemsize).view(dtype).reshape(-1)

    def _places(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in the file of these places in the index."""
        blocks = at // BLOCK
        for number in np.unique(blocks).tolist():
            if self._blocks[number] < 0:
                self._blocks[number] = retried(self._data, partial(self._find, number))
        return np.asarray(self._blocks[blocks] + at % BLOCK)


class IndexWriter:
    """Write an index, in the order of its records, with `write(offset in the index, bytes)`."""

    def __init__(self, layout: Layout, write: Callable[[int, memoryview], object]) -> None:
        self._layout, self._write, self._row = layout, write, 0
        self._crcs = dict.fromkeys(layout.starts, 0)

    def add(self, columns: Arrays) -> None:
        """Append the columns of some records; a field that none of them has may lack its columns."""
        rows = len(columns["position"])
        for name, start in self._layout.starts.items():
            own = columns[name] if name in columns else lacking(name, rows)
            data = np.ascontiguousarray(own, type_of(name)).view(np.uint8).data
            self._write(start + self._row * type_of(name).itemsize, data)
            self._crcs[name] = crc32c(data, self._crcs[name])
        self._row += rows

    def sums(self) -> dict[str, str]:
        """The checksum of each column, for the manifest."""
        return {name: f"{crc:08x}" for name, crc in self._crcs.items()}


class Fingerprint:
    """The fingerprint of the records added so far, whose keys have `key_width` digits."""

    def __init__(self, key_width: int) -> None:
        self._width = key_width
        self._fields: dict[str, Any] = {}  # SHA-256 of each field's rows

    def add(self, columns: Arrays) -> None:
        """Add records, by their positions and the columns of their fields."""
        for name in fields_in(columns):
            offset, length, crc = (columns[each] for each in columns_of(name))
            there = offset != np.uint64(NOWHERE)
            rows = np.empty(int(there.sum()), _ROW)
            rows["position"], rows["length"], rows["crc"] = columns["position"][there], length[there], crc[there]
            if len(rows):
                self._fields.setdefault(name, hashlib.sha256()).update(rows)

    def __str__(self) -> str:
        whole = hashlib.sha256(bytes([self._width]))
        for name, own in sorted(self._fields.items()):
            whole.update(bytes([len(name)]) + name.encode() + own.digest())
        return f"sha256:{whole.hexdigest()}"
