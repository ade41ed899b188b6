"""Entries: the writer's data about stored records, serialized until the index is written, one by one or in columns.

The LMDB writer keeps entries in an unnamed file, because only the finished tree has the places of payloads. A shard
writer keeps one file of entries beside each shard, so that a resumed run need not read the shard.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from iofast.kernel import crc32c
from iofast.record import KINDS, ImageInfo

_HEAD = struct.Struct("<II")  # CRC32C and length of the body
_RECORD = struct.Struct("<QiIIBH")
_FIELD = struct.Struct("<BIIQ")
_MAX_ENTRY = 1 << 20
_STEP = 1 << 20
_TOGETHER = 4096  # records whose columns are made together


class RecordEntry(NamedTuple):
    """One record. `fields`: (name, length, CRC32C, offset in the file), sorted by name."""

    position: int
    info: ImageInfo
    fields: tuple[tuple[str, int, int, int], ...]

    def at(self, start: int, offsets: Sequence[int]) -> RecordEntry:
        """Return a copy with offsets `start` + `offsets`."""
        own = zip(self.fields, offsets, strict=True)
        return self._replace(fields=tuple((name, length, crc, start + at) for (name, length, crc, _), at in own))


class FieldPlaces(NamedTuple):
    """Where payloads of one field lie in their files: columns of N rows, zero except `there`."""

    there: NDArray[np.bool_]  # whether the record has the field
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    crc: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """Consecutive records: columns of N rows. To handle a thousand takes as long as to handle a few `RecordEntry`."""

    position: NDArray[np.uint64]
    label: NDArray[np.int32]
    width: NDArray[np.int32]
    height: NDArray[np.int32]
    orientation: NDArray[np.uint8]
    fields: Mapping[str, FieldPlaces]  # sorted by name

    @classmethod
    def of(cls, entries: Sequence[RecordEntry]) -> Self:
        """The columns of these records."""
        places: dict[str, list[tuple[int, ...]]] = {}
        for row, entry in enumerate(entries):
            for name, length, crc, offset in entry.fields:
                places.setdefault(name, []).append((row, length, crc, offset))
        infos = [(each.info.label, each.info.width, each.info.height, each.info.orientation) for each in entries]
        label, width, height, orientation = np.array(infos, np.int32).reshape(-1, 4).T
        return cls(
            position=np.array([entry.position for entry in entries], np.uint64),
            label=label,
            width=width,
            height=height,
            orientation=orientation.astype(np.uint8),
            fields={name: _spread(places[name], len(entries)) for name in sorted(places)},
        )

    def __len__(self) -> int:
        return len(self.position)

    def rows(self, rows: slice) -> EntryColumns:
        """Some of the records."""
        places = {
            name: FieldPlaces(own.there[rows], own.offset[rows], own.length[rows], own.crc[rows])
            for name, own in self.fields.items()
        }
        return EntryColumns(
            position=self.position[rows],
            label=self.label[rows],
            width=self.width[rows],
            height=self.height[rows],
            orientation=self.orientation[rows],
            fields=places,
        )

    def images(self) -> tuple[NDArray[np.uint8], FieldPlaces]:
        """The image of each record: 1 + the place of its field in `KINDS`, 0 for none; and where it lies."""
        kind, image = np.zeros(len(self), np.uint8), _nowhere(len(self))
        for number, name in enumerate(KINDS, 1):
            if name in self.fields:
                own = self.fields[name]
                first = own.there & ~image.there
                kind[first] = number
                image = FieldPlaces(
                    there=image.there | own.there,
                    offset=np.where(first, own.offset, image.offset),
                    length=np.where(first, own.length, image.length),
                    crc=np.where(first, own.crc, image.crc),
                )
        return kind, image

    def beside_image(self, name: str) -> FieldPlaces:
        """Where a field lies, as if no record had it whose image it is."""
        own = self.fields.get(name)
        if own is None:
            return _nowhere(len(self))
        if name not in KINDS:
            return own
        return own._replace(there=own.there & (self.images()[0] != 1 + KINDS.index(name)))


def in_columns(entries: Iterable[tuple[int, RecordEntry]]) -> Iterator[EntryColumns]:
    """The records of `read`, some thousand at a time."""
    rest = iter(entries)
    while together := list(islice(rest, _TOGETHER)):
        yield EntryColumns.of([entry for _, entry in together])


def _nowhere(count: int) -> FieldPlaces:
    zeros = np.zeros(count, np.uint64)
    return FieldPlaces(np.zeros(count, np.bool_), zeros, zeros, np.zeros(count, np.uint32))


def _spread(places: Sequence[tuple[int, ...]], count: int) -> FieldPlaces:
    """The columns of `count` records, of which those at (row, length, CRC32C, offset) have the field."""
    row, length, crc, offset = np.array(places, np.uint64).T
    there, rows = np.zeros(count, np.bool_), row.astype(np.intp)
    there[rows] = True
    columns = np.zeros((3, count), np.uint64)
    columns[:, rows] = offset, length, crc
    return FieldPlaces(there, columns[0], columns[1], columns[2].astype(np.uint32))


def encode(entry: RecordEntry) -> bytes:
    """Serialize one record."""
    info = entry.info
    numbers: list[int | bytes] = [entry.position, info.label, info.width, info.height, info.orientation]
    numbers.append(len(entry.fields))
    for name, length, crc, offset in entry.fields:
        numbers += (len(name), length, crc, offset, name.encode())
    body = _layout(tuple([len(name) for name, *_ in entry.fields])).pack(*numbers)
    return _HEAD.pack(crc32c(body), len(body)) + body


@functools.lru_cache(maxsize=256)  # one `pack` call halves the time, and most records have the same fields
def _layout(names: tuple[int, ...]) -> struct.Struct:
    """The layout of an entry whose field names have these lengths in bytes."""
    return struct.Struct(_RECORD.format + "".join(f"{_FIELD.format[1:]}{name}s" for name in names))


def read(fd: int, start: int = 0) -> Iterator[tuple[int, RecordEntry]]:
    """Yield (offset, entry) from offset `start` on, up to the first incomplete or damaged entry."""
    data, base, at, more = b"", start, 0, True
    while True:
        if more and len(data) - at < _HEAD.size + _MAX_ENTRY:
            data, base, at = data[at:], base + at, 0
            chunk = os.pread(fd, _STEP + _MAX_ENTRY, base + len(data))
            data, more = data + chunk, bool(chunk)
        if len(data) - at < _HEAD.size:
            return
        crc, length = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if length > _MAX_ENTRY or len(body) < length or crc32c(body) != crc:
            return
        try:
            entry = _decode(body)
        except (struct.error, UnicodeDecodeError):
            return
        offset, at = base + at, at + _HEAD.size + length
        yield offset, entry


def _decode(body: bytes) -> RecordEntry:
    position, label, width, height, orientation, count = _RECORD.unpack_from(body)
    at, fields = _RECORD.size, []
    for _ in range(count):
        size, length, crc, offset = _FIELD.unpack_from(body, at)
        at += _FIELD.size + size
        fields.append((body[at - size : at].decode("ascii"), length, crc, offset))
    return RecordEntry(position, ImageInfo(label, width, height, orientation), tuple(fields))
