"""EXIF and XMP of a PNG, from chunks before or behind its pixels.

Pillow reads chunks behind the pixels only after decoding. Here the beginning and the last 64 KiB of a file are read,
and more only if that does not reach back to the pixels.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from iofast.kernel.payload import Payload

_TAIL = 1 << 16  # bytes; the last chunk of pixels usually begins in there: libpng's have 8 KiB
_GUESSES = 16  # occurrences of the name IDAT to try: any data may contain it
_MOST_CHUNKS = 1 << 16  # chunks to read, on either side of the pixels
_MAX_TEXT = 1 << 26  # bytes of one chunk; Pillow refuses more text
_MAX_UNPACKED = 1 << 20  # bytes of a decompressed text; Pillow refuses more
_RAW, _XMP, _EXIF = b"Raw profile type exif", b"XML:com.adobe.xmp", b"exif"
_ENDS = (b"IEND", b"fcTL", b"fdAT")  # Pillow stops at the second frame of an animation


def metadata(data: Payload) -> tuple[bytes, bytes]:
    """Return the EXIF block and the XMP packet of a PNG; b"" if there is none."""
    found: dict[bytes, bytes] = {}
    for kind, start, length in _chunks(data):
        if kind == b"eXIf":
            found[_EXIF] = data[start : start + min(length, _MAX_TEXT)]
        elif kind in (b"tEXt", b"zTXt", b"iTXt"):
            key, zero, _ = data[start : start + min(length, 80)].partition(b"\0")
            if zero and (key in (_RAW, _XMP) or (key == _EXIF and kind == b"tEXt")):
                found[key] = _text(kind, data[start + len(key) + 1 : start + min(length, _MAX_TEXT)])
    return found[_EXIF] if _EXIF in found else _unhexed(found.get(_RAW, b"")), found.get(_XMP, b"")


def _chunks(data: Payload) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, offset, length) of the bodies of all chunks except pixels."""
    for kind, at, length in _walk(data, 8):
        if kind == b"IDAT":
            pixels = at
            break
        if kind == b"IEND":
            return
        yield kind, at + 8, length
    else:
        return
    for kind, at, length in _walk(data, _behind_pixels(data, pixels)):
        if kind in _ENDS:
            return
        yield kind, at + 8, length


def _walk(data: Payload, at: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, offset, length) of successive chunks from an offset on, at most `_MOST_CHUNKS`."""
    for _ in range(_MOST_CHUNKS):
        head = data[at : at + 8]
        kind, length = head[4:], int.from_bytes(head[:4], "big")
        if not kind.isalpha() or len(kind) != 4:
            return
        yield kind, at, length
        at += length + 12


def _behind_pixels(data: Payload, at: int) -> int:
    """Return the offset behind the last chunk of pixels; the first is at `at`. Of very many, only some are skipped."""
    start = max(at, len(data) - _TAIL)
    tail = data[start : len(data)]
    name = len(tail)
    for _ in range(_GUESSES):
        name = tail.rfind(b"IDAT", 0, name + 3)
        if name < 4:
            break
        if any(kind == b"IEND" for kind, _, _ in _walk(tail, name - 4)):
            return start + name + 8 + int.from_bytes(tail[name - 4 : name], "big")
    end = at
    for kind, chunk, length in _walk(data, at):
        if kind != b"IDAT":
            break
        end = chunk + length + 12
    return end


def _text(kind: bytes, body: bytes) -> bytes:
    """Return the text behind the keyword of a text chunk; b"" if it cannot be decompressed."""
    packed = kind == b"zTXt"
    if kind == b"iTXt":
        packed = body[:1] not in (b"", b"\0")
        body = body[1:2] + b"".join(body[2:].split(b"\0", 2)[2:])
    if not packed:
        return body[1:] if kind == b"iTXt" else body
    try:
        return zlib.decompressobj().decompress(body[1:], _MAX_UNPACKED) if body[:1] == b"\0" else b""
    except zlib.error:
        return b""


def _unhexed(text: bytes) -> bytes:
    """Decode a profile by ImageMagick: three lines (empty, name, length), then hexadecimal digits."""
    try:
        return bytes.fromhex("".join(text.decode("latin-1").split("\n")[3:]))
    except ValueError:
        return b""
