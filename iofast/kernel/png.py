"""EXIF and XMP of a PNG, from chunks before or behind its pixels; and writing one, for Pillow writes no 16-bit colours.

Pillow reads chunks behind the pixels only after decoding. Here the beginning and the last 64 KiB of a file are read,
and more only if that does not reach back to the pixels.
"""

import contextlib
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.PngImagePlugin import PngImageFile, PngStream

from iofast.kernel.payload import Payload, stream

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # by channels: gray, gray with alpha, RGB, RGBA

_PAETH, _LEVEL = 4, 6  # a row's filter; zlib's level, as Pillow has it
_TAIL = 1 << 16  # bytes; the last chunk of pixels usually begins in there: libpng's have 8 KiB
_GUESSES = 16  # occurrences of the name IDAT to try: any data may contain it
_MOST_CHUNKS = 1 << 16  # chunks to read, on either side of the pixels
_MAX_TEXT = 1 << 26  # bytes of one chunk; Pillow refuses more text
_TEXTS = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")
_ENDS = (b"IEND", b"fcTL", b"fdAT")  # Pillow stops at the second frame of an animation
_RAW, _XMP = "Raw profile type exif", "XML:com.adobe.xmp"


def metadata(image: PngImageFile, data: Payload) -> tuple[bytes, bytes]:
    """Return the EXIF block and the XMP packet of an opened PNG; b"" if there is none."""
    info = dict(image.info)
    if image.tile:  # else it is loaded, and Pillow has read to the end
        info |= _behind(data, image.tile[0][2] - 8)
    block, xmp = _bytes(info.get("exif")), _bytes(info.get("xmp") or info.get(_XMP))  # Pillow 9.5 has the text alone
    return block or _unhexed(_bytes(info.get(_RAW))), xmp


def _bytes(value: object) -> bytes:
    """A chunk's content; Pillow gives that of most texts as text."""
    return value if isinstance(value, bytes) else str(value or "").encode("utf-8", "replace")


def _behind(data: Payload, pixels: int) -> dict[Any, Any]:
    """What Pillow finds in the chunks behind the pixels, the first chunk of which begins at `pixels`."""
    file = stream(data)
    file.seek(_behind_pixels(data, pixels))
    found = PngStream(file)
    with contextlib.suppress(Exception):  # damage ends the search, and Pillow's decoder ignores it
        for _ in range(_MOST_CHUNKS):
            kind, at, length = found.read()
            if kind in _ENDS:
                break
            if kind in _TEXTS and length <= _MAX_TEXT:
                with contextlib.suppress(ValueError):  # a text that unpacks to too much: those behind it count
                    found.call(kind, at, length)
            file.seek(at + length + 4)
    return found.im_info


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


def _unhexed(text: bytes) -> bytes:
    """Decode a profile by ImageMagick: three lines (empty, name, length), then hexadecimal digits."""
    try:
        return bytes.fromhex("".join(text.decode("utf-8", "replace").split("\n")[3:]))
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
