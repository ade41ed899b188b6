"""The binary index: what is stored about each record, in chunks of 65,536 (docs/format.md section 3).

A chunk is a head and a few sections, each a column of rows of one size: a reader of labels reads no places. A section
that says nothing is left out. This module writes chunks and parses their heads; `index_view` reads rows.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple

import numpy as np

from iofast.containers.entries import EntryColumns, RecordEntry
from iofast.errors import ContainerError
from iofast.kernel import crc32c
from iofast.record import image_field

CHUNK_ROWS = 65_536
BLOCK_ROWS = 256  # rows per checksum: 6 KB of images, checked in 1 µs
ABSENT = 0xFFFFFFFF  # `Located.file` of a field that a record does not have
NOWHERE = (1 << 48) - 1  # its offset in a section of places
MAGIC = b"iofastIX"
VERSION = 2
PADDING = 64  # bytes after a chunk: at most one less
CRC_SIZE = 4  # of the checksum after each block of a section

IMAGES, LABELS, POSITIONS, LONG_POSITIONS, FIELDS = 0, 1, 2, 3, 16  # codes of sections; FIELDS + n: field number n
# `place` of an image row: 48 bits of offset, 3 of orientation - 1, 3 of kind (`EntryColumns.images`), the upper 5 of
# width and of height
IMAGE_ROW = np.dtype(
    [("place", "<u8"), ("length", "<u4"), ("crc", "<u4"), ("label", "<i4"), ("width", "<u2"), ("height", "<u2")]
)
FIELD_ROW = np.dtype([("low", "<u4"), ("high", "<u2"), ("length", "<u4"), ("crc", "<u4")])
_NO_FIELD = np.array((NOWHERE & 0xFFFFFFFF, NOWHERE >> 32, 0, 0), FIELD_ROW)
_ROWS = {IMAGES: IMAGE_ROW, LABELS: np.dtype("<i4"), POSITIONS: np.dtype("<u4"), LONG_POSITIONS: np.dtype("<u8")}

_HEAD = struct.Struct("<8sHHIQQQQ")  # then the codes and a CRC32C
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Stamp(NamedTuple):
    """LMDB's last transaction id and last page number at the time of indexing; zeros in sets of shards."""

    a: int = 0
    b: int = 0


class Head(NamedTuple):
    """The head of a chunk. `starts`: offset in the chunk of each section that it has, by code; `size` in bytes."""

    first: int  # dense index of the first row
    rows: int
    position: int  # of the first row
    stamp: Stamp
    starts: dict[int, int]
    size: int


def row_type(code: int) -> np.dtype[np.generic]:
    """The dtype of a row of a section."""
    return _ROWS.get(code, FIELD_ROW)


def chunk_count(records: int) -> int:
    """How many chunks index so many records."""
    return -(-records // CHUNK_ROWS)


def head_limit(fields: int) -> int:
    """The most bytes that the head of a chunk with so many fields has."""
    return _HEAD.size + 2 * (len(_ROWS) + fields) + CRC_SIZE


def block_crc(rows: bytes | memoryview, first: int) -> int:
    """The CRC32C of a block's rows and of the dense index of the first: a block in a wrong place is noticed too."""
    return crc32c(_U64.pack(first), crc32c(rows))


class Outline:
    """Which sections a chunk has. Known without the places of payloads, so LMDB can reserve the bytes of a chunk."""

    def __init__(self) -> None:
        self.rows = 0
        self.first = self.last = -1  # positions
        self._labelled = False
        self._names: set[str] = set()  # of fields, except each record's image

    def add(self, entry: RecordEntry) -> None:
        """Count one record."""
        names = tuple([name for name, *_ in entry.fields])
        self._count(entry.position, entry.position, 1, entry.info.label >= 0, _others(names))

    def add_columns(self, records: EntryColumns) -> None:
        """Count these records."""
        others = {name for name in records.fields if records.beside_image(name).there.any()}
        first, last = records.position[[0, -1]].tolist()
        self._count(first, last, len(records), bool((records.label >= 0).any()), others)

    def codes(self, fields: Sequence[str]) -> list[int]:
        """The codes of all sections, in order. `fields` are those of the manifest."""
        codes = [IMAGES, LABELS] if self._labelled else [IMAGES]
        if self.last - self.first >= self.rows:  # positions rise, so there are holes
            codes.append(POSITIONS if self.last - self.first < 1 << 32 else LONG_POSITIONS)
        return codes + [FIELDS + number for number, name in enumerate(fields) if name in self._names]

    def size(self, fields: Sequence[str]) -> int:
        """Bytes of the chunk."""
        return _layout(self.codes(fields), self.rows)[1]

    def _count(self, first: int, last: int, rows: int, labelled: bool, others: Set[str]) -> None:
        if not self.rows:
            self.first = first
        self.rows, self.last = self.rows + rows, last
        self._labelled = self._labelled or labelled
        self._names |= others


class Outlines:
    """The outlines of all chunks, filled record by record."""

    def __init__(self) -> None:
        self.chunks: list[Outline] = []

    def add(self, entry: RecordEntry) -> None:
        """Count one record."""
        if not self.chunks or self.chunks[-1].rows == CHUNK_ROWS:
            self.chunks.append(Outline())
        self.chunks[-1].add(entry)


@functools.lru_cache(maxsize=256)  # most records have the same fields
def _others(names: tuple[str, ...]) -> frozenset[str]:
    """The fields of a record except its image."""
    return frozenset(names) - {image_field(names)}


def encode_rows(records: Iterable[EntryColumns], fields: Sequence[str], stamp: Stamp) -> Iterator[bytes]:
    """The chunks of an index, one after another: memory does not grow with the records."""
    chunk: list[EntryColumns] = []
    first = rows = 0
    for own in records:
        start = 0
        while start < len(own):
            part = own.rows(slice(start, start + CHUNK_ROWS - rows))
            chunk.append(part)
            start, rows = start + len(part), rows + len(part)
            if rows == CHUNK_ROWS:
                yield _encode(chunk, first, fields, stamp)
                chunk, first, rows = [], first + CHUNK_ROWS, 0
    if chunk:
        yield _encode(chunk, first, fields, stamp)


def _encode(records: Sequence[EntryColumns], first: int, fields: Sequence[str], stamp: Stamp) -> bytes:
    """The bytes of one chunk; `first` is the dense index of its first record."""
    outline = Outline()
    for own in records:
        _check_ends(own)
        outline.add_columns(own)
    sections = {
        code: b"".join([_section(code, own, outline.first, fields) for own in records])
        for code in outline.codes(fields)
    }
    return encode_chunk(sections, first, outline.rows, outline.first, stamp)


def _section(code: int, records: EntryColumns, position: int, fields: Sequence[str]) -> bytes:
    """The rows of a section; `position` is that of the chunk's first record."""
    if code >= FIELDS:
        return _field_rows(fields[code - FIELDS], records)
    if code == IMAGES:
        return _image_rows(records)
    if code == LABELS:
        return records.label.astype(_ROWS[LABELS]).tobytes()
    return (records.position - np.uint64(position)).astype(_ROWS[code]).tobytes()


def _image_rows(records: EntryColumns) -> bytes:
    kind, image = records.images()
    width, height = records.width.astype(np.uint64), records.height.astype(np.uint64)
    rows = np.zeros(len(records), IMAGE_ROW)
    rows["place"] = image.offset | (records.orientation.astype(np.uint64) - np.uint64(1)) << np.uint64(48)
    rows["place"] |= kind.astype(np.uint64) << np.uint64(51)
    rows["place"] |= width >> np.uint64(16) << np.uint64(54) | height >> np.uint64(16) << np.uint64(59)
    rows["length"], rows["crc"], rows["label"] = image.length, image.crc, records.label
    rows["width"], rows["height"] = width & np.uint64(0xFFFF), height & np.uint64(0xFFFF)
    return rows.tobytes()


def _field_rows(name: str, records: EntryColumns) -> bytes:
    own = records.beside_image(name)
    rows = np.zeros(len(records), FIELD_ROW)
    rows["low"], rows["high"] = own.offset & np.uint64(0xFFFFFFFF), own.offset >> np.uint64(32)
    rows["length"], rows["crc"] = own.length, own.crc
    rows[~own.there] = _NO_FIELD
    return rows.tobytes()


def _check_ends(records: EntryColumns) -> None:
    for name, own in records.fields.items():
        wrong = np.flatnonzero(own.offset + own.length > NOWHERE)
        if wrong.size:
            position = records.position[wrong[0]]
            raise ContainerError(f"field {name} of position {position} ends behind 2^48 bytes of its file")


def encode_chunk(sections: dict[int, bytes], first: int, rows: int, position: int, stamp: Stamp) -> bytes:
    """A chunk of these sections (code → bytes of its rows), whose first record has this dense index and position."""
    parts = [encode_head(sorted(sections), first, rows, position, stamp)]
    for code in sorted(sections):
        data, step = sections[code], BLOCK_ROWS * row_type(code).itemsize
        for number, at in enumerate(range(0, len(data), step)):
            block = data[at : at + step]
            parts.extend((block, _U32.pack(block_crc(block, first + number * BLOCK_ROWS))))
    return b"".join(parts)


def encode_head(codes: Sequence[int], first: int, rows: int, position: int, stamp: Stamp) -> bytes:
    """The head of a chunk with these sections."""
    head = _HEAD.pack(MAGIC, VERSION, len(codes), rows, first, position, *stamp)
    head += struct.pack(f"<{len(codes)}H", *codes)
    return head + _U32.pack(crc32c(head))


def decode_head(data: bytes, fields: int) -> Head:
    """Parse the head at the start of `data`. `fields` is the number of fields of the manifest.

    Raises `ContainerError` unless the head is complete, of this version, and possible.
    """
    if len(data) < _HEAD.size:
        raise ContainerError(f"an index chunk of {len(data)} bytes is shorter than its head of {_HEAD.size}")
    magic, version, count, rows, first, position, a, b = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        found = f"{magic!r} version {version}"
        raise ContainerError(f"an index chunk must begin with {MAGIC!r} version {VERSION}, found {found}")
    end = _HEAD.size + 2 * count
    if len(data) < end + CRC_SIZE or crc32c(data[:end]) != _U32.unpack_from(data, end)[0]:
        raise ContainerError("an index chunk's head is damaged: its CRC32C differs")
    codes = list(struct.unpack_from(f"<{count}H", data, _HEAD.size))
    known = {*_ROWS, *range(FIELDS, FIELDS + fields)}
    if codes != sorted(known.intersection(codes)) or codes[:1] != [IMAGES] or {POSITIONS, LONG_POSITIONS} <= {*codes}:
        raise ContainerError(f"an index chunk of {fields} fields must have images and known sections, found {codes}")
    if not 1 <= rows <= CHUNK_ROWS:
        raise ContainerError(f"an index chunk must have 1 to {CHUNK_ROWS} rows, found {rows}")
    starts, size = _layout(codes, rows)
    return Head(first, rows, position, Stamp(a, b), starts, size)


def _layout(codes: Sequence[int], rows: int) -> tuple[dict[int, int], int]:
    """Where each section of a chunk starts, and the size of the chunk."""
    starts, at = {}, _HEAD.size + 2 * len(codes) + CRC_SIZE
    for code in codes:
        starts[code] = at
        at += rows * row_type(code).itemsize + -(-rows // BLOCK_ROWS) * CRC_SIZE
    return starts, at
