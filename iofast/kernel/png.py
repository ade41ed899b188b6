"""EXIF and XMP of a PNG, from chunks before or behind its pixels; and writing one, for Pillow writes no 16-bit colours.

Pillow reads chunks behind the pixels only after decoding. Here the beginning and the last 64 KiB of a file are read,
and more only if that does not reach back to the pixels.
"""

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from iofast.kernel.payload import Payload

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # by channels: gray, gray with alpha, RGB, RGBA

_PAETH, _LEVEL = 4, 6  # a row's filter; zlib's level, as Pillow has it
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


def write(pixels: NDArray[np.uint8] | NDArray[np.uint16]) -> bytes:
    """Return (height, width, 1 to 4 channels) as a PNG of 8 or 16 bits per sample.

    Every row has the filter Paeth, of those that one can choose without a search the best for photographs.
    """
    height, width, channels = pixels.shape
    big = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">"))
    pixel = channels * big.itemsize
    padded = np.zeros((height + 1, width + 1, pixel), np.uint8)  # with the zeros above and left of the image
    padded[1:, 1:] = big.view(np.uint8).reshape(height, width, pixel)
    rows = np.empty((height, 1 + width * pixel), np.uint8)
    rows[:, 0] = _PAETH
    for row in range(height):  # by rows, because the arithmetic takes ten times the memory of the pixels
        above = padded[row].astype(np.int16)
        left, up, corner = padded[row + 1, :-1], above[1:], above[:-1]
        rows[row, 1:] = (padded[row + 1, 1:] - _predicted(left.astype(np.int16), up, corner).astype(np.uint8)).ravel()
    head = struct.pack(">IIBBBBB", width, height, 8 * big.itemsize, COLOUR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), _LEVEL)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(name, body) for name, body in chunks)


def _predicted(left: NDArray[np.int16], up: NDArray[np.int16], corner: NDArray[np.int16]) -> NDArray[np.int16]:
    """Of left, up and corner the nearest to left + up - corner (PNG specification, 9.4)."""
    by_left, by_up = np.abs(up - corner), np.abs(left - corner)
    by_corner = np.abs(left + up - 2 * corner)
    return np.where((by_left <= by_up) & (by_left <= by_corner), left, np.where(by_up <= by_corner, up, corner))


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
