"""The binary index: what is stored about each record, in chunks of 65,536 (docs/format.md section 3).

A chunk is a head and a few sections, each a column of rows of one size: a reader of labels reads no places. A section
that says nothing is left out. This module writes chunks and parses their heads; `index_view` reads rows.
"""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from iofast.containers.entries import RecordEntry
from iofast.errors import ContainerError
from iofast.kernel import crc32c
from iofast.record import IMAGE_FIELDS, RAW_FIELDS, image_field

CHUNK_ROWS = 65_536
BLOCK_ROWS = 256  # rows per checksum: 6 KB of images, checked in 1 µs
ABSENT = 0xFFFFFFFF  # `Located.file` of a field that a record does not have
NOWHERE = (1 << 48) - 1  # its offset in a section of places
MAGIC = b"iofastIX"
VERSION = 2
PADDING = 64  # bytes after a chunk: at most one less
CRC_SIZE = 4  # of the checksum after each block of a section

IMAGES, LABELS, POSITIONS, LONG_POSITIONS, FIELDS = 0, 1, 2, 3, 16  # codes of sections; FIELDS + n: field number n
KINDS = (*IMAGE_FIELDS, *RAW_FIELDS)  # an image row has 1 + the place of its field, or 0 for a record without image

# `place` of an image row: 48 bits of offset, 3 of orientation - 1, 3 of kind, the upper 5 of width and of height
IMAGE_ROW = np.dtype(
    [("place", "<u8"), ("length", "<u4"), ("crc", "<u4"), ("label", "<i4"), ("width", "<u2"), ("height", "<u2")]
)
FIELD_ROW = np.dtype([("low", "<u4"), ("high", "<u2"), ("length", "<u4"), ("crc", "<u4")])
_ROWS = {IMAGES: IMAGE_ROW, LABELS: np.dtype("<i4"), POSITIONS: np.dtype("<u4"), LONG_POSITIONS: np.dtype("<u8")}

_HEAD = struct.Struct("<8sHHIQQQQ")  # then the codes and a CRC32C
_IMAGE = struct.Struct("<QIIiHH")
_FIELD = struct.Struct("<IHII")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_NO_FIELD = _FIELD.pack(NOWHERE & 0xFFFFFFFF, NOWHERE >> 32, 0, 0)


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


@functools.lru_cache(maxsize=256)  # most records have the same fields
def _roles(names: tuple[str, ...]) -> tuple[str, int, frozenset[str]]:
    """The field with the image of a record, its kind, and all other fields."""
    image = image_field(names)
    return image or "", 0 if image is None else 1 + KINDS.index(image), frozenset(names) - {image or ""}


class Outline:
    """Which sections a chunk has. Known without the places of payloads, so LMDB can reserve the bytes of a chunk."""

    def __init__(self) -> None:
        self.rows = 0
        self.first = self.last = -1  # positions
        self._labelled = False
        self._names: set[str] = set()

    def add(self, position: int, label: int, others: frozenset[str]) -> None:
        """Count one record with these fields beside its image."""
        if not self.rows:
            self.first = position
        self.rows, self.last = self.rows + 1, position
        self._labelled = self._labelled or label >= 0
        self._names |= others

    def codes(self, fields: Sequence[str]) -> list[int]:
        """The codes of all sections, in order. `fields` are those of the manifest."""
        codes = [IMAGES, LABELS] if self._labelled else [IMAGES]
        if self.last - self.first >= self.rows:  # positions rise, so there are holes
            codes.append(POSITIONS if self.last - self.first < 1 << 32 else LONG_POSITIONS)
        return codes + [FIELDS + number for number, name in enumerate(fields) if name in self._names]

    def size(self, fields: Sequence[str]) -> int:
        """Bytes of the chunk."""
        return _layout(self.codes(fields), self.rows)[1]


class Outlines:
    """The outlines of all chunks, filled record by record."""

    def __init__(self) -> None:
        self.chunks: list[Outline] = []

    def add(self, entry: RecordEntry) -> None:
        """Count one record."""
        if not self.chunks or self.chunks[-1].rows == CHUNK_ROWS:
            self.chunks.append(Outline())
        others = _roles(tuple([name for name, *_ in entry.fields]))[2]
        self.chunks[-1].add(entry.position, entry.info.label, others)


class _Chunk:
    """The sections of one chunk, filled record by record."""

    def __init__(self) -> None:
        self.outline = Outline()
        self._images, self._labels, self._positions = bytearray(), array("i"), array("Q")
        self._fields: dict[str, bytearray] = {}

    def add(self, entry: RecordEntry) -> None:
        """Add one record."""
        info, row = entry.info, self.outline.rows
        image, kind, others = _roles(tuple([name for name, *_ in entry.fields]))
        self.outline.add(entry.position, info.label, others)
        self._labels.append(info.label)
        self._positions.append(entry.position)
        place, own_length, own_crc = 0, 0, 0
        for name, length, crc, offset in entry.fields:
            if offset + length > NOWHERE:
                raise ContainerError(f"field {name} of position {entry.position} ends behind 2^48 bytes of its file")
            if name == image:
                place, own_length, own_crc = offset, length, crc
                continue
            field = self._fields.setdefault(name, bytearray())
            field += _NO_FIELD * (row - len(field) // _FIELD.size)
            field += _FIELD.pack(offset & 0xFFFFFFFF, offset >> 32, length, crc)
        place |= info.orientation - 1 << 48 | kind << 51 | info.width >> 16 << 54 | info.height >> 16 << 59
        sides = info.width & 0xFFFF, info.height & 0xFFFF
        self._images += _IMAGE.pack(place, own_length, own_crc, info.label, *sides)

    def encode(self, first: int, fields: Sequence[str], stamp: Stamp) -> bytes:
        """The bytes of the chunk; `first` is the dense index of its first record."""
        codes = self.outline.codes(fields)
        sections = {code: self._section(code, fields) for code in codes}
        return encode_chunk(sections, first, self.outline.rows, self.outline.first, stamp)

    def _section(self, code: int, fields: Sequence[str]) -> bytes:
        if code >= FIELDS:
            rows = self._fields[fields[code - FIELDS]]
            return bytes(rows) + _NO_FIELD * (self.outline.rows - len(rows) // _FIELD.size)
        if code == IMAGES:
            return bytes(self._images)
        if code == LABELS:
            return np.array(self._labels, _ROWS[LABELS]).tobytes()
        positions = np.array(self._positions, np.uint64)
        return bytes((positions - positions[0]).astype(_ROWS[code]).data)


def encode_rows(entries: Iterable[RecordEntry], fields: Sequence[str], stamp: Stamp) -> Iterator[bytes]:
    """The chunks of an index, one after another: memory does not grow with the records."""
    chunk, first = _Chunk(), 0
    for entry in entries:
        if chunk.outline.rows == CHUNK_ROWS:
            yield chunk.encode(first, fields, stamp)
            chunk, first = _Chunk(), first + CHUNK_ROWS
        chunk.add(entry)
    if chunk.outline.rows:
        yield chunk.encode(first, fields, stamp)


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
