"""Where a PNG keeps its EXIF and XMP: in chunks before or behind its pixels, in one of several ways.

Pillow reads those behind the pixels only after it has decoded them. Here they are found without: of a file, its
beginning and its last 64 KiB are read, and more only where that does not reach back to the pixels.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from iofast.kernel.payload import Payload

_TAIL = 1 << 16  # bytes; the last chunk of pixels begins in there unless it is larger: libpng's have 8 KiB
_GUESSES = 16  # places of the name IDAT that are tried: it may occur in any data
_MOST_CHUNKS = 1 << 16  # that are looked at, on either side of the pixels
_MAX_TEXT = 1 << 26  # bytes of one chunk; Pillow refuses more text
_MAX_UNPACKED = 1 << 20  # bytes that a compressed text may have; Pillow refuses more
_RAW, _XMP, _EXIF = b"Raw profile type exif", b"XML:com.adobe.xmp", b"exif"
_ENDS = (b"IEND", b"fcTL", b"fdAT")  # Pillow reads nothing behind an animation's second frame


def metadata(data: Payload) -> tuple[bytes, bytes]:
    """The EXIF block and the XMP packet of a PNG, each empty where there is none."""
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
    """(name, offset, length) of the bodies of all chunks but those of pixels."""
    at = 8
    for _ in range(_MOST_CHUNKS):
        kind, length = _chunk(data, at)
        if kind == b"IDAT":
            break
        if not kind or kind == b"IEND":
            return
        yield kind, at + 8, length
        at += length + 12
    else:
        return
    at = _behind_pixels(data, at)
    for _ in range(_MOST_CHUNKS):
        kind, length = _chunk(data, at)
        if not kind or kind in _ENDS:
            return
        yield kind, at + 8, length
        at += length + 12


def _chunk(data: Payload, at: int) -> tuple[bytes, int]:
    """Name and length of the chunk at an offset; no name where there is none."""
    head = data[at : at + 8]
    kind = head[4:]
    return (kind if kind.isalpha() and len(kind) == 4 else b""), int.from_bytes(head[:4], "big")


def _behind_pixels(data: Payload, at: int) -> int:
    """The offset behind the last chunk of pixels, the first of which is at `at`; of very many, behind some of them."""
    start = max(at, len(data) - _TAIL)
    tail = data[start : len(data)]
    found = len(tail)
    for _ in range(_GUESSES):
        found = tail.rfind(b"IDAT", 0, found + 3)
        if found < 4:
            break
        if _leads_to_end(tail, found - 4):
            return start + found + 8 + _chunk(tail, found - 4)[1]
    for _ in range(_MOST_CHUNKS):
        kind, length = _chunk(data, at)
        if kind != b"IDAT":
            break
        at += length + 12
    return at


def _leads_to_end(tail: bytes, at: int) -> bool:
    """Whether chunk follows chunk from here to the end of the picture."""
    kind = b"IDAT"
    while kind and kind != b"IEND":
        kind, length = _chunk(tail, at)
        at += length + 12
    return kind == b"IEND"


def _text(kind: bytes, body: bytes) -> bytes:
    """What a text chunk says, behind its keyword."""
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
    """The block in ImageMagick's profiles: three lines (empty, a name, its length), then digits."""
    try:
        return bytes.fromhex("".join(text.decode("latin-1").split("\n")[3:]))
    except ValueError:
        return b""
