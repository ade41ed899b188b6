"""Entries: the writer's data about stored records, serialized until the index is written.

The LMDB writer keeps entries in an unnamed file, because only the finished tree has the places of payloads. A shard
writer keeps one file of entries beside each shard, so that a resumed run need not read the shard.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from iofast.kernel import crc32c
from iofast.record import ImageInfo

_HEAD = struct.Struct("<II")  # CRC32C and length of the body
_RECORD = struct.Struct("<QiIIBH")
_FIELD = struct.Struct("<BIIQ")
_MAX_ENTRY = 1 << 20
_STEP = 1 << 20


class RecordEntry(NamedTuple):
    """One record. `fields`: (name, length, CRC32C, offset in the file), sorted by name."""

    position: int
    info: ImageInfo
    fields: tuple[tuple[str, int, int, int], ...]

    def at(self, start: int, offsets: Sequence[int]) -> RecordEntry:
        """Return a copy with offsets `start` + `offsets`."""
        own = zip(self.fields, offsets, strict=True)
        return self._replace(fields=tuple((name, length, crc, start + at) for (name, length, crc, _), at in own))


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
