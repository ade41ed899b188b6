"""Messages between the packing process and its workers, on pipes.

A frame is a little-endian u32 length and that many bytes of ASCII JSON. File names travel as `os.fsdecode` gives them;
JSON's \\u escapes carry the lone surrogates that stand for bytes which are not UTF-8.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

_LENGTH = struct.Struct("<I")
MAX_FRAME = 1 << 28  # far above any chunk; a larger length means that something else wrote to the pipe

Message = dict[str, object]


def encode(message: Message) -> bytes:
    """Encode one frame."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Assemble frames from the pieces that a pipe delivers."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add `data` and yield the messages that are complete. Raises `ValueError` for bytes that are no frames."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME:
                raise ValueError(f"frame length: expected at most {MAX_FRAME} bytes, found {length}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            message = json.loads(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            if not isinstance(message, dict):
                raise ValueError(f"frame: expected a JSON object, found a {type(message).__name__}")
            yield message
