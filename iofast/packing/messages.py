"""Messages between the packing process and its workers, on pipes.

A frame is two little-endian u32 and u64 lengths, ASCII JSON of the first length, and bytes of the second: the payloads
of packed records. File names travel as `os.fsdecode` gives them; JSON's \\u escapes carry the lone surrogates that
stand for bytes which are not UTF-8.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from iofast.record import ImageInfo

_LENGTHS = struct.Struct("<IQ")
MAX_FRAME = 1 << 28  # far above any chunk; a larger length means that something else wrote to the pipe
MAX_PAYLOADS = 1 << 36  # a few largest payloads

Message = dict[str, Any]


class PackedRecord(NamedTuple):
    """One packed record. `crcs`: CRC32C of each payload; None if they are not known."""

    position: int
    info: ImageInfo
    fields: dict[str, bytes]
    crcs: Mapping[str, int] | None


def encode(message: Message, payloads: Sequence[bytes] = ()) -> bytes:
    """Encode one frame."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return b"".join((_LENGTHS.pack(len(body), sum(map(len, payloads))), body, *payloads))


def described(records: Sequence[PackedRecord]) -> tuple[list[object], list[bytes]]:
    """Records as a member of a message, and their payloads."""
    rows: list[object] = []
    payloads: list[bytes] = []
    for record in records:
        fields = [(name, len(payload), (record.crcs or {})[name]) for name, payload in record.fields.items()]
        info = record.info
        rows.append((record.position, info.label, info.width, info.height, info.orientation, fields))
        payloads += record.fields.values()
    return rows, payloads


def records_of(rows: Sequence[Sequence[Any]], payloads: memoryview) -> list[PackedRecord]:
    """The records that `described` described."""
    records, at = [], 0
    for position, *info, places in rows:
        fields, crcs = {}, {}
        for name, length, crc in places:
            fields[name], crcs[name] = bytes(payloads[at : at + length]), crc
            at += length
        records.append(PackedRecord(position, ImageInfo(*info), fields, crcs))
    return records


class Frames:
    """Assemble frames from the pieces that a pipe delivers."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Message, memoryview]]:
        """Add `data`; yield the messages that are complete, with their payloads. Raises `ValueError` for no frames."""
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            length, size = _LENGTHS.unpack_from(self._buffer)
            if length > MAX_FRAME or size > MAX_PAYLOADS:
                raise ValueError(f"frame length: expected at most {MAX_FRAME} bytes, found {length} and {size}")
            start = _LENGTHS.size + length
            if len(self._buffer) < start + size:
                return
            with memoryview(self._buffer) as view:
                frame = bytes(view[: start + size])
            del self._buffer[: start + size]
            message = json.loads(frame[_LENGTHS.size : start])
            if not isinstance(message, dict):
                raise ValueError(f"frame: expected a JSON object, found a {type(message).__name__}")
            yield message, memoryview(frame)[start:]
