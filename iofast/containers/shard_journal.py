"""`<DST>.partial/records`: what was written into the shards, entry by entry, so that a killed run finds its place.

The shards hold the payloads themselves, so nothing is written twice; an entry says which record lies where, with what
sizes, checksums and image size. An entry follows the bytes it speaks of. Little here is trusted: `ShardWriter.resume`
compares every byte of a record with what it would write. Label and image size, which a tar does not have, are believed:
the checksum of the entry covers them.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from iofast.kernel import crc32c
from iofast.record import ImageInfo

_HEAD = struct.Struct("<II")  # CRC32C of what follows it, length of what follows the head
RECORD = struct.Struct("<QIQQiIIBBH")
_FIELD = struct.Struct("<BIIQ")
_MAX_ENTRY = 1 << 20
_STEP = 1 << 20


class Placed(NamedTuple):
    """One record in a shard. `fields` has name, length, CRC32C and absolute offset; "" is the whole record."""

    position: int
    shard: int
    start: int  # offsets of the record's first byte, and of the first behind it
    stop: int
    info: ImageInfo
    split: str
    fields: tuple[tuple[str, int, int, int], ...]


def encode(placed: Placed) -> bytes:
    """The entry of one record."""
    info, split = placed.info, placed.split.encode()
    sizes = (info.label, info.width, info.height, info.orientation, len(split), len(placed.fields))
    numbers: list[int | bytes] = [placed.position, placed.shard, placed.start, placed.stop, *sizes, split]
    for name, length, crc, offset in placed.fields:
        numbers += (len(name), length, crc, offset, name.encode())
    body = _layout(len(split), tuple([len(name) for name, *_ in placed.fields])).pack(*numbers)
    return _HEAD.pack(crc32c(body), len(body)) + body


@functools.lru_cache(maxsize=256)  # most records have the same fields: packed at once, an entry takes half as long
def _layout(split: int, names: tuple[int, ...]) -> struct.Struct:
    """An entry whose split and field names have these lengths in bytes."""
    return struct.Struct(f"{RECORD.format}{split}s" + "".join(f"{_FIELD.format[1:]}{name}s" for name in names))


def entries(fd: int, start: int = 0) -> Iterator[tuple[int, Placed]]:
    """The whole entries from offset `start` of the file, each with the offset behind it; a torn end is left out."""
    data, base, at, more = b"", start, 0, True
    while True:
        if more and len(data) - at < _HEAD.size + _MAX_ENTRY:
            data, base, at = data[at:], base + at, 0
            read = os.pread(fd, _STEP + _MAX_ENTRY, base + len(data))
            data, more = data + read, bool(read)
        if len(data) - at < _HEAD.size:
            return
        crc, length = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if length > _MAX_ENTRY or len(body) < length or crc32c(body) != crc:
            return
        try:
            placed = _decode(body)
        except (struct.error, UnicodeDecodeError):
            return
        at += _HEAD.size + length
        yield base + at, placed


def _decode(body: bytes) -> Placed:
    position, shard, start, stop, label, width, height, orientation, split, count = RECORD.unpack_from(body)
    at = RECORD.size + split
    name_of_split, fields = body[RECORD.size : at].decode("ascii"), []
    for _ in range(count):
        size, length, crc, offset = _FIELD.unpack_from(body, at)
        at += _FIELD.size + size
        fields.append((body[at - size : at].decode("ascii"), length, crc, offset))
    info = ImageInfo(label, width, height, orientation)
    return Placed(position, shard, start, stop, info, name_of_split, tuple(fields))
