"""Reading the binary index: only the sections that are asked for, and of them only the requested rows.

Opening costs the same for a thousand records as for a billion. The head of a chunk is read when one of its rows is
first used, and a block of 256 rows is compared with its checksum when one of them is first used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers import index
from iofast.containers.entries import FieldPlaces
from iofast.containers.file_bytes import FileBytes, retried
from iofast.containers.index import BLOCK_ROWS, CHUNK_ROWS, CRC_SIZE, FIELDS, Head, Stamp
from iofast.containers.manifest import Manifest
from iofast.errors import ContainerError
from iofast.record import KINDS

Rows = NDArray[Any]  # NumPy cannot express the type of a structured array

_LEFT_OUT = -1  # start of a section that a chunk does not have; 0 = the chunk was not opened yet
_AT_A_TIME = 1024  # blocks that are read together: 6 MB of images
_BLOCKS = CHUNK_ROWS // BLOCK_ROWS  # of a whole chunk
_U32 = struct.Struct("<I")


class IndexView:
    """The rows of an index in a file, read on request and not cached.

    `find(chunk)` returns offset and length of a chunk in the file. Threads may share a view: its state (places of
    sections, checked blocks) only grows. Errors are `ContainerError` that name `where`; every method raises
    `IndexError` for an index out of range.
    """

    def __init__(self, data: FileBytes, manifest: Manifest, find: Callable[[int], tuple[int, int]], where: str) -> None:
        count = manifest.count
        if count * index.IMAGE_ROW.itemsize > len(data):  # before memory is taken for so many
            raise ContainerError(f"{where} has {len(data)} bytes, too few for an index of {count} records")
        self._where, self._manifest = where, manifest
        self._heads = _Heads(data, manifest, find, where)
        self._sections: dict[int, _Section] = {}
        self._kinds = np.zeros(8, bool)  # of three bits
        self._kinds[0] = True
        self._kinds[1 : len(KINDS) + 1] = [name in manifest.fields for name in KINDS]

    def stamp(self) -> Stamp:
        """The stamp that all chunks share; zeros if there are no records."""
        return self._heads.stamp()

    def images(self, indices: NDArray[np.int64]) -> Rows:
        """Rows of `index.IMAGE_ROW`, checked except for their places, which the reader checks."""
        rows = self._rows(index.IMAGES, indices)[0]
        kind = rows["place"] >> 51 & 7
        wrong = ~self._kinds[kind] | self._impossible(rows["label"])
        wrong |= (kind == 0) & ((rows["place"] << 16 | rows["length"] | rows["crc"]) != 0)
        if wrong.any():
            row = int(np.argmax(wrong))
            found = f"label {rows['label'][row]}, image of kind {kind[row]}"
            raise ContainerError(f"{self._where}: the index row of record {indices[row]} is impossible: {found}")
        return rows

    def labels(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Labels, -1 for none. No other section is read."""
        labels, there = self._rows(index.LABELS, indices)
        labels = labels.astype(np.int32) if there is None else np.where(there, labels, np.int32(-1))
        wrong = self._impossible(labels)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ContainerError(f"{self._where}: the label {labels[row]} of record {indices[row]} is impossible")
        return labels

    def positions(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Positions in the packing order, the numbers in the keys."""
        steps = (indices & (CHUNK_ROWS - 1)).astype(np.uint64)  # of records without holes between them
        for code in (index.POSITIONS, index.LONG_POSITIONS):
            rows, there = self._rows(code, indices)
            steps = rows.astype(np.uint64) if there is None else np.where(there, rows, steps)
        positions: NDArray[np.uint64] = self._heads.positions[indices >> 16] + steps
        last = np.uint64(min(10**self._manifest.key_width, 1 << 64) - 1)  # longest position in a key
        wrong = (positions > last) | (positions < steps)
        if wrong.any():
            row = int(np.argmax(wrong))
            width = self._manifest.key_width
            found = f"the position {positions[row]} of record {indices[row]} is impossible: keys have {width} digits"
            raise ContainerError(f"{self._where}: {found}")
        return positions

    def places(self, indices: NDArray[np.int64], field: int) -> FieldPlaces:
        """Where field number `field` of the manifest lies. The images of records are not among them."""
        rows, there = self._rows(FIELDS + field, indices)
        offset = rows["low"] | rows["high"].astype(np.uint64) << 32
        absent = offset == index.NOWHERE
        if (absent & ((rows["length"] | rows["crc"]) != 0)).any():
            row, name = int(np.argmax(absent)), self._manifest.fields[field]
            found = f"it has no place for {name}, but a length or checksum"
            raise ContainerError(f"{self._where}: the index row of record {indices[row]} is impossible: {found}")
        offset[absent] = 0
        there = ~absent if there is None else there & ~absent
        return FieldPlaces(there, offset, rows["length"].astype(np.uint64), rows["crc"].astype(np.uint32))

    def _rows(self, code: int, indices: NDArray[np.int64]) -> tuple[Rows, NDArray[np.bool_] | None]:
        if indices.size and (indices.min() < 0 or indices.max() >= self._manifest.count):
            worst = int(indices.max() if indices.min() >= 0 else indices.min())
            raise IndexError(f"{self._where}: record {worst} is not in 0 … {self._manifest.count - 1}")
        section = self._sections.get(code)
        if section is None:
            section = self._sections.setdefault(code, _Section(self._heads, code))
        return section.rows(indices)

    def _impossible(self, labels: NDArray[np.int32]) -> NDArray[np.bool_]:
        classes = self._manifest.classes
        top = np.iinfo(np.int32).max if classes is None else len(classes) - 1
        return (labels < -1) | (labels > top)


class _Heads:
    """The heads of chunks; sections share them, without a reference to the view: a cycle would keep the file open."""

    def __init__(self, data: FileBytes, manifest: Manifest, find: Callable[[int], tuple[int, int]], where: str) -> None:
        self.data, self.where, self.count = data, where, manifest.count
        self.positions = np.zeros(index.chunk_count(manifest.count), np.uint64)  # of each first row, once read
        self._find, self._fields = find, len(manifest.fields)
        self._stamp: Stamp | None = None

    def stamp(self) -> Stamp:
        """The stamp of chunk 0, which all chunks share; zeros if there are no records."""
        if self._stamp is None:
            self._stamp = self.read(0)[1].stamp if self.count else Stamp()
        return self._stamp

    def read(self, chunk: int) -> tuple[int, Head]:
        """Read the head of a chunk: its offset in the file, and its content."""
        return retried(self.data, lambda: self._read(chunk))

    def _read(self, chunk: int) -> tuple[int, Head]:
        offset, length = self._find(chunk)
        expected = min(CHUNK_ROWS, self.count - chunk * CHUNK_ROWS), chunk * CHUNK_ROWS
        try:
            fields = self._fields
            head = index.decode_head(self.data[offset : offset + min(length, index.head_limit(fields))], fields)
            if (head.rows, head.first) != expected:
                found = f"{head.rows} rows from row {head.first}"
                raise ContainerError(f"expected {expected[0]} rows from row {expected[1]}, found {found}")
            if not 0 <= length - head.size < index.PADDING:
                raise ContainerError(f"expected {head.size} bytes, found {length}")
            if chunk and head.stamp != self.stamp():
                raise ContainerError(f"expected the stamp of chunk 0, {self.stamp()}, found {head.stamp}")
        except ContainerError as error:
            raise ContainerError(f"{self.where}: index chunk {chunk} at offset {offset}: {error}") from None
        self.positions[chunk] = head.position
        return offset, head


class _Section:
    """The rows of one section in all chunks."""

    def __init__(self, heads: _Heads, code: int) -> None:
        self._heads, self._code = heads, code
        self._type = index.row_type(code)
        chunks = index.chunk_count(heads.count)
        self._starts = np.zeros(chunks, np.int64)  # in the file
        self._checked = np.zeros(chunks * _BLOCKS, np.bool_)  # 4 MB for a billion rows, taken as it is used
        self._partial = False  # whether a chunk is known that does not have the section

    def rows(self, indices: NDArray[np.int64]) -> tuple[Rows, NDArray[np.bool_] | None]:
        """The checked rows of valid indices, copied, and which of them exist; None for all of them."""
        if len(indices) > BLOCK_ROWS and (np.diff(indices) == 1).all():
            return self._run(int(indices[0]), int(indices[-1]) + 1)
        chunks = indices >> 16
        starts = self._starts[chunks]
        if not starts.all():
            for chunk in np.unique(chunks[starts == 0]).tolist():
                self._open(chunk)
            starts = self._starts[chunks]
        blocks = indices >> 8
        if not (checked := self._checked[blocks]).all():
            self._check(np.unique(blocks[~checked]))
        size, row = self._type.itemsize, indices & (CHUNK_ROWS - 1)
        # one gather for all chunks waits for the GIL once
        begin = starts + row * size + (row >> 8) * CRC_SIZE
        if not self._partial or (there := starts > 0).all():
            return self._heads.data.gather(begin, size).view(self._type).reshape(len(indices)), None
        rows = np.zeros(len(indices), self._type)
        rows[there] = self._heads.data.gather(begin[there], size).view(self._type).reshape(-1)
        return rows, there

    def _run(self, first: int, stop: int) -> tuple[Rows, NDArray[np.bool_] | None]:
        """`rows` of consecutive indices: one read for each chunk, a tenth of the time for labels."""
        rows, there = np.zeros(stop - first, self._type), np.ones(stop - first, np.bool_)
        for chunk in range(first >> 16, (stop - 1 >> 16) + 1):
            if not self._starts[chunk]:
                self._open(chunk)
            low, high = max(first, chunk * CHUNK_ROWS), min(stop, (chunk + 1) * CHUNK_ROWS)
            if self._starts[chunk] > 0:
                rows[low - first : high - first] = self._blocks(low, high)
            else:
                there[low - first : high - first] = False
        return rows, None if there.all() else there

    def _blocks(self, low: int, high: int) -> Rows:
        """Rows `low` to `high` of one chunk, from one read of their blocks."""
        size, begin = self._type.itemsize, low // BLOCK_ROWS
        end = min(-(-high // BLOCK_ROWS) * BLOCK_ROWS, self._heads.count)  # of the last block
        step, number = BLOCK_ROWS * size + CRC_SIZE, -(-end // BLOCK_ROWS) - begin
        at = int(self._starts[low >> 16]) + begin % _BLOCKS * step
        data = memoryview(self._heads.data[at : at + (end - begin * BLOCK_ROWS) * size + number * CRC_SIZE])
        parts = [data[place : place + step] for place in range(0, len(data), step)]
        for block in (each for each in range(begin, begin + number) if not self._checked[each]):
            parts[block - begin] = self._compared(block, at + (block - begin) * step, parts[block - begin])
        rows = np.frombuffer(b"".join([part[:-CRC_SIZE] for part in parts]), self._type)
        return rows[low - begin * BLOCK_ROWS : high - begin * BLOCK_ROWS]

    def _open(self, chunk: int) -> None:
        offset, head = self._heads.read(chunk)
        start = head.starts.get(self._code)
        if start is None:
            self._partial = True
            self._checked[chunk * _BLOCKS : (chunk + 1) * _BLOCKS] = True
        self._starts[chunk] = _LEFT_OUT if start is None else offset + start  # last: now other threads use the chunk

    def _check(self, blocks: NDArray[np.int64]) -> None:
        """Compare blocks with their checksums."""
        size = self._type.itemsize
        at = self._starts[blocks >> 8] + (blocks & (_BLOCKS - 1)) * (BLOCK_ROWS * size + CRC_SIZE)
        whole = (blocks + 1) * BLOCK_ROWS <= self._heads.count
        for first in range(0, len(blocks), _AT_A_TIME):
            some = np.flatnonzero(whole[first : first + _AT_A_TIME]) + first
            found = self._heads.data.gather(at[some], BLOCK_ROWS * size + CRC_SIZE)
            for number, block in enumerate(some.tolist()):
                self._compared(int(blocks[block]), int(at[block]), found[number].data)
        if not whole[-1]:  # the last block of the index
            block = int(blocks[-1])
            length = (self._heads.count - block * BLOCK_ROWS) * size + CRC_SIZE
            # by `gather`, like the rows: a stored file without a cache fetches a slice apart from them
            self._compared(block, int(at[-1]), self._heads.data.gather(at[-1:], length)[0].data)

    def _compared(self, block: int, at: int, data: memoryview) -> memoryview:
        """The bytes of a block, as they were read or fetched again. Raises `ContainerError` if they stay wrong."""
        first, file = block * BLOCK_ROWS, self._heads.data
        if not _is_sound(data, first) and file.fetch_again(at, at + len(data)):
            data = file.gather(np.array([at], np.int64), len(data))[0].data
        if not _is_sound(data, first):
            where = f"{self._heads.where}: the index is damaged at offset {at}"
            raise ContainerError(f"{where}: the CRC32C of rows {first} … of section {self._code} differs")
        self._checked[block] = True
        return data


def _is_sound(data: memoryview, first: int) -> bool:
    """Whether a block that begins with row `first` has its checksum."""
    return len(data) >= CRC_SIZE and index.block_crc(data[:-CRC_SIZE], first) == _U32.unpack(data[-CRC_SIZE:])[0]
