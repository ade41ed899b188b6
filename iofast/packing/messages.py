"""What the packing process and its workers send each other, on pipes: JSON, and the payloads of records behind it.

To a worker go `setup` (`PackWork.setup`) and `chunk` (`ChunkJob.value`). From it come `ready`, then `done` for each
chunk (`described`), `begin` with the position of each image of a careful one, `alive` now and then, and `fatal` with
the error, when no further image can succeed. File names travel as `os.fsdecode` gives them: JSON's escapes carry the
lone surrogates that stand for bytes which are not UTF-8.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, NamedTuple

from iofast.record import ImageInfo

MOST_BYTES = 1 << 36  # a few largest payloads; a longer message was not written by a worker
_LENGTH = struct.Struct("<I")

Message = tuple[str, Any, list[bytes]]


def encode(kind: str, value: object = None, payloads: Sequence[bytes] = ()) -> bytes:
    """A message as bytes."""
    head = json.dumps((kind, value, [*map(len, payloads)]), separators=(",", ":")).encode("ascii")
    return b"".join((_LENGTH.pack(len(head)), head, *payloads))


def decode(data: bytes) -> Message:
    """The message that these bytes are. Raises `ValueError` if they are none."""
    if len(data) < _LENGTH.size:
        raise ValueError(f"message: expected at least {_LENGTH.size} bytes, found {len(data)}")
    at = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    kind, value, lengths = json.loads(data[_LENGTH.size : at])
    payloads = []
    for length in lengths:
        payloads.append(data[at : at + length])
        at += length
    return kind, value, payloads


class PackedRecord(NamedTuple):
    """One packed record. `crcs`: CRC32C of each payload; None if they are not known."""

    position: int
    info: ImageInfo
    fields: dict[str, bytes]
    crcs: Mapping[str, int] | None


@dataclass(slots=True)
class ChunkJob:
    """A chunk of work: `images` are `sample.Image`. `skip` maps images that kill workers to reasons.

    `suspects` are images that a worker had announced when it died; a second death proves the fault. Both by position.
    """

    chunk: int
    images: Sequence[Any]
    careful: bool = False
    skip: dict[int, str] = field(default_factory=dict)
    suspects: set[int] = field(default_factory=set)

    @property
    def value(self) -> tuple[object, ...]:
        """What the worker gets; JSON has no numbers as names."""
        return self.chunk, self.images, self.careful, [*self.skip.items()]


class Done(NamedTuple):
    """A finished chunk of `images`: its records, (position, reason) of failures, and the bytes of its files.

    `left_out`: the number of images that `min_size` and `max_aspect` do not admit.
    """

    chunk: int
    images: int
    records: Sequence[PackedRecord]
    failed: Sequence[tuple[int, str]]
    bytes_in: int
    left_out: int


def described(done: Done) -> tuple[object, list[bytes]]:
    """A finished chunk as the value of a message, and its payloads."""
    rows = [
        (each.position, astuple(each.info), [(name, (each.crcs or {})[name]) for name in each.fields])
        for each in done.records
    ]
    value = (done.chunk, done.images, rows, done.failed, done.bytes_in, done.left_out)
    return value, [data for each in done.records for data in each.fields.values()]


def done_of(value: Sequence[Any], payloads: Sequence[bytes]) -> Done:
    """The finished chunk that `described` described."""
    chunk, images, rows, *rest = value
    data = iter(payloads)
    records = [
        PackedRecord(position, ImageInfo(*info), {name: next(data) for name, _ in crcs}, dict(crcs))
        for position, info, crcs in rows
    ]
    return Done(chunk, images, records, *rest)
