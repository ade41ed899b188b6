"""The binary index: one row per record, in chunks of 65,536 (docs/format.md section 3 is its specification).

Opening costs the same for a thousand records as for a hundred million: `IndexView` reads only the requested rows, and
checks a block of 256 rows when one of them is first used.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from iofast.containers.entries import RecordEntry
from iofast.containers.file_bytes import FileBytes
from iofast.containers.manifest import Manifest
from iofast.errors import ContainerError
from iofast.record import LONGEST_SIDE

CHUNK_ROWS = 65_536
BLOCK_ROWS = 256  # rows per checksum: 20 KB for three fields, checked in 3 µs
ABSENT = 0xFFFFFFFF  # the `file` of a field that a record does not have
HEADER_SIZE = 64
MAGIC = b"iofastIX"
VERSION = 1

_HEADER = struct.Struct("<8sHHIQIHHQQQI")
_U32 = struct.Struct("<I")
_PLACE = np.dtype([("file", "<u4"), ("offset", "<u8"), ("length", "<u4"), ("crc", "<u4")])

Rows = NDArray[Any]  # of `row_dtype`; NumPy cannot express the type of a structured array


class Stamp(NamedTuple):
    """LMDB's last transaction id and last page number at the time of indexing; zeros in sets of shards."""

    a: int = 0
    b: int = 0


def row_dtype(fields: Sequence[str]) -> np.dtype[Any]:
    """The dtype of a row of a container with these fields; `place` has (file, offset, length, crc) for each."""
    head = [("position", "<u8"), ("label", "<i4"), ("width", "<u4"), ("height", "<u4"), ("orientation", "u1")]
    return np.dtype([*head, ("flags", "u1"), ("place", _PLACE, (len(fields),))])


def row_struct(fields: Sequence[str]) -> struct.Struct:
    """The same row for `struct`: six numbers, then four for each field."""
    return struct.Struct("<QiIIBB" + "IQII" * len(fields))


def chunk_size(rows: int, fields: Sequence[str]) -> int:
    """Bytes of a chunk of so many rows."""
    return HEADER_SIZE + 4 * _blocks(rows) + rows * row_dtype(fields).itemsize


def chunk_count(records: int) -> int:
    """How many chunks index so many records."""
    return -(-records // CHUNK_ROWS)


def encode_rows(
    rows: Iterable[tuple[int, RecordEntry]], count: int, fields: Sequence[str], stamp: Stamp
) -> Iterator[bytes]:
    """The chunks of an index of `count` rows: for each record the number of its file, and its entry."""
    rows, pack = iter(rows), row_struct(fields).pack
    numbers = {name: number for number, name in enumerate(fields)}
    for chunk in range(chunk_count(count)):
        body = b"".join([pack(*_numbers(*row, numbers)) for row in itertools.islice(rows, CHUNK_ROWS)])
        yield encode_chunk(body, chunk * CHUNK_ROWS, fields, stamp)


def _numbers(file: int, entry: RecordEntry, numbers: Mapping[str, int]) -> list[int]:
    """The numbers of a row, as `row_struct` packs them."""
    info = entry.info
    row = [entry.position, info.label, info.width, info.height, info.orientation, 0]
    row += [ABSENT, 0, 0, 0] * len(numbers)
    for name, length, crc, offset in entry.fields:
        at = 6 + 4 * numbers[name]
        row[at : at + 4] = [file, offset, length, crc]
    return row


def encode_chunk(rows: bytes, first: int, fields: Sequence[str], stamp: Stamp) -> bytes:
    """A chunk of these rows, given as bytes; `first` is the dense index of the first row."""
    row_size = row_dtype(fields).itemsize
    count, rest = divmod(len(rows), row_size)
    if rest or not 1 <= count <= CHUNK_ROWS or first % CHUNK_ROWS:
        raise ContainerError(f"{len(rows)} bytes from row {first} are no chunk of rows of {row_size} bytes")
    step = BLOCK_ROWS * row_size
    checks = b"".join(_U32.pack(google_crc32c.value(rows[at : at + step])) for at in range(0, len(rows), step))
    head = _HEADER.pack(MAGIC, VERSION, HEADER_SIZE, row_size, first, count, len(fields), 0, *stamp, 0, 0)
    return head + _U32.pack(google_crc32c.value(head + checks)) + checks + rows


def decode_header(data: bytes, fields: Sequence[str]) -> tuple[int, int, Stamp]:
    """Check the header at the start of `data`, which must contain the block checksums too.

    Returns dense index of the first row, number of rows, and stamp. Raises `ContainerError` unless the header is
    complete, of this version, and fits the fields.
    """
    if len(data) < HEADER_SIZE:
        raise ContainerError(f"an index chunk of {len(data)} bytes is shorter than its header of {HEADER_SIZE}")
    magic, version, size, row_size, first, rows, own, flags, a, b, strings, zero = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        found = f"{magic!r} version {version}"
        raise ContainerError(f"an index chunk must begin with {MAGIC!r} version {VERSION}, found {found}")
    fixed = (size, row_size, own, flags, strings, zero)
    expected = (HEADER_SIZE, row_dtype(fields).itemsize, len(fields), 0, 0, 0)
    if fixed != expected or not 1 <= rows <= CHUNK_ROWS:
        raise ContainerError(f"an index chunk's header must be {(*expected, 'up to 65536')}, found {(*fixed, rows)}")
    end = HEADER_SIZE + 4 * _blocks(rows)
    crc = _U32.unpack_from(data, HEADER_SIZE - 4)[0]
    if len(data) < end or google_crc32c.value(data[: HEADER_SIZE - 4] + data[HEADER_SIZE:end]) != crc:
        raise ContainerError("an index chunk's header is damaged: its CRC32C differs")
    return first, rows, Stamp(a, b)


class IndexView:
    """The rows of an index in a file, read on request and not cached.

    `find(chunk)` returns offset and length of a chunk in the file. `groups` are the location groups of a row, by
    default the manifest's fields. Threads may share a view: its state (places of chunks, checked blocks) only grows.
    Errors are `ContainerError` that name `where`.
    """

    def __init__(
        self,
        data: FileBytes,
        manifest: Manifest,
        find: Callable[[int], tuple[int, int]],
        where: str,
        groups: Sequence[str] | None = None,
    ) -> None:
        self._data, self._find, self._where, self._manifest = data, find, where, manifest
        self._groups = manifest.fields if groups is None else groups
        self._dtype = row_dtype(self._groups)
        self._starts = np.full(chunk_count(manifest.count), -1, np.int64)  # offset of each chunk's first row
        blocks = chunk_count(manifest.count) * (CHUNK_ROWS // BLOCK_ROWS)
        self._checks = np.zeros(blocks, np.uint32)  # of opened chunks; 1.6 MB for 100 million rows
        self._checked = np.zeros(blocks, np.bool_)
        self._stamp: Stamp | None = None

    def stamp(self) -> Stamp:
        """The stamp that all chunks share; zeros if there are no records."""
        if self._stamp is None:
            self._stamp = self._open(0) if self._manifest.count else Stamp()
        return self._stamp

    def rows(self, indices: NDArray[np.int64]) -> Rows:
        """The checked rows of these dense indices, copied. Raises `IndexError` for an index out of range."""
        if indices.size and (indices.min() < 0 or indices.max() >= self._manifest.count):
            worst = int(indices.max() if indices.min() >= 0 else indices.min())
            raise IndexError(f"{self._where}: record {worst} is not in 0 … {self._manifest.count - 1}")
        chunks = indices >> 16
        starts = self._starts[chunks]
        if indices.size and starts.min() < 0:
            for chunk in np.unique(chunks[starts < 0]).tolist():
                self._open(chunk)
            starts = self._starts[chunks]
        blocks = indices >> 8
        for block in np.unique(blocks[~self._checked[blocks]]).tolist():
            self._check(block)
        # one gather for all chunks waits for the GIL once: 256 rows of 1.28 million take 70 µs
        begin = starts + (indices & (CHUNK_ROWS - 1)) * self._dtype.itemsize
        rows: Rows = self._data.gather(begin, self._dtype.itemsize).view(self._dtype).reshape(len(indices))
        self._check_rows(rows)
        return rows

    def _open(self, chunk: int) -> Stamp:
        offset, length = self._find(chunk)
        count = self._count(chunk)
        try:
            expected = chunk_size(count, self._groups)
            if length != expected:
                raise ContainerError(f"expected {expected} bytes, found {length}")
            head = self._data[offset : offset + HEADER_SIZE + 4 * _blocks(count)]
            first, rows, stamp = decode_header(head, self._groups)
            if (first, rows) != (chunk * CHUNK_ROWS, count):
                found = f"{rows} rows from row {first}"
                raise ContainerError(f"expected {count} rows from row {chunk * CHUNK_ROWS}, found {found}")
            if chunk and stamp != self.stamp():
                raise ContainerError(f"expected the stamp of chunk 0, {self.stamp()}, found {stamp}")
        except ContainerError as error:
            raise ContainerError(f"{self._where}: index chunk {chunk} at offset {offset}: {error}") from None
        block = first // BLOCK_ROWS
        self._checks[block : block + _blocks(count)] = np.frombuffer(head, "<u4", offset=HEADER_SIZE)
        self._starts[chunk] = offset + len(head)  # last: from here on, other threads use the chunk
        return stamp

    def _check(self, block: int) -> None:
        """Compare a block of rows with its checksum."""
        chunk, number = divmod(block, CHUNK_ROWS // BLOCK_ROWS)
        start = int(self._starts[chunk])
        at = start + number * BLOCK_ROWS * self._dtype.itemsize
        end = start + min(self._count(chunk), (number + 1) * BLOCK_ROWS) * self._dtype.itemsize
        if google_crc32c.value(self._data[at:end]) != self._checks[block]:
            first = block * BLOCK_ROWS
            raise ContainerError(
                f"{self._where}: the index is damaged at offset {at}: the CRC32C of rows {first} … differs"
            )
        self._checked[block] = True

    def _count(self, chunk: int) -> int:
        return min(CHUNK_ROWS, self._manifest.count - chunk * CHUNK_ROWS)

    def _check_rows(self, rows: Rows) -> None:
        """Refuse rows that no writer of this version writes; the reader checks the places."""
        classes = self._manifest.classes
        top = np.iinfo(np.int32).max if classes is None else len(classes) - 1
        last = np.uint64(min(10**self._manifest.key_width, 1 << 64) - 1)  # longest position in a key
        wrong = (rows["orientation"] - 1 > 7) | (rows["flags"] != 0) | (rows["label"] < -1) | (rows["label"] > top)
        wrong |= (rows["position"] > last) | (np.maximum(rows["width"], rows["height"]) > LONGEST_SIDE)
        if wrong.any():
            row = rows[int(np.argmax(wrong))]
            found = f"label {row['label']}, {row['width']}×{row['height']}, orientation {row['orientation']}, "
            found += f"flags {row['flags']}, keys of {self._manifest.key_width} digits"
            raise ContainerError(f"{self._where}: the index row of position {row['position']} is impossible: {found}")


def _blocks(rows: int) -> int:
    return -(-rows // BLOCK_ROWS)
