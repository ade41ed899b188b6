"""Upper bounds for the memory of packing and of decoding an image, computed before it is decoded.

Figures are bytes per pixel, measured (`tests/kernel/test_memory.py` measures again) and rounded up.
"""

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from iofast.kernel import colour, pillow
from iofast.kernel.contract import LARGE, MAX_MEMORY, MAX_PIXELS, Header, TranscodeRecipe, beyond
from iofast.kernel.payload import Payload

Size = tuple[int, int]

_PIXEL = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # by Pillow's mode; others: 4
_WITH_ALPHA = 9  # the image, its alpha, its colours
_DECODERS = {"webp": 12, "avif": 16, "heic": 16, "jxl": 16, "ppm": 8}  # beyond the image; others work by rows
ENCODED = {"jpeg": 11, "png": 5, "webp": 30, "rgb": 11}  # the image and its encoder
NATIVE = {"jpeg": 4, "rgb": 11}  # encoded by the C code
NATIVE_THEN_PILLOW = {kind: figure + 11 for kind, figure in ENCODED.items()}  # decoded by the C code, encoded by Pillow
_COPIES = 11  # of an image below LARGE, when the C code replaces some of Pillow's functions
_WHOLE = 7  # a JPEG that is decoded as a whole
_LEVELS = 7  # Pillow's image, and an array of its pixels
_SMALL = MAX_MEMORY // 8  # bytes; decoders that take less do not wait for each other
_ROWS, _TILE_ROWS, _BITS = 278, 323, 258  # TIFF tags


_room = threading.Condition()
_taken: dict[int, int] = {}  # bytes, by thread


def _forget() -> None:
    """A forked process has none of the threads that hold memory, or the lock."""
    global _room
    _room = threading.Condition()
    _taken.clear()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def reserved(needed: int) -> Iterator[None]:
    """Wait until the large images that this process decodes take at most `MAX_MEMORY` together, with `needed` bytes.

    An image that takes more waits until it is the only one.
    """
    own = threading.get_ident()
    if needed < _SMALL or own in _taken:
        yield
        return
    with _room:
        _room.wait_for(lambda: not _taken or sum(_taken.values()) + needed <= MAX_MEMORY)
        _taken[own] = needed
    try:
        yield
    finally:
        with _room:
            del _taken[own]
            _room.notify_all()


def check(recipe: TranscodeRecipe, size: Size, needed: int, mode: str) -> None:
    """Raise `StatusError` if an image of this size and mode exceeds a limit; `needed` is in bytes."""
    if math.prod(size) > recipe.max_pixels:
        raise beyond("pixels", f"{size[0]}x{size[1]} pixels of {mode}, the limit is {recipe.max_pixels}")
    _limit(size, mode, needed, recipe.max_memory)


def opened(
    data: Payload, max_pixels: int = MAX_PIXELS, max_memory: int = MAX_MEMORY, kind: str | None = None
) -> pillow.Opened:
    """Open an image that Pillow will decode; `kind` is its format, if known.

    Raises `StatusError` beyond the limits, or any error of Pillow.
    """
    kind = pillow.format_of(data) if kind is None else kind
    if kind == "jxl":  # opening decodes it
        max_pixels = min(max_pixels, max_memory // (_DECODERS["jxl"] + 4))
    image = pillow.open_image(data, max_pixels, kind)
    if math.prod(image.size) > LARGE:  # a smaller one never takes so much
        size = image.upright(image.orientation)
        _limit(size, image.image.mode, of_pillow(image, size, (0, 0), "png", blended=True), max_memory)
    return image


def check_whole(header: Header, size: int, max_memory: int = MAX_MEMORY) -> int:
    """Return the memory in bytes for a JPEG of `size` bytes as a whole, in C. Raises `StatusError` beyond the limit."""
    needed = size + of_whole(header)
    _limit((header.width, header.height), mode_of(header), needed, max_memory)
    return needed


def mode_of(header: Header) -> str:
    """Return Pillow's mode of a JPEG."""
    return {1: "L", 3: "RGB"}.get(header.components, "CMYK")


def _limit(size: Size, mode: str, needed: int, most: int) -> None:
    if needed > most:
        found = f"{size[0]}x{size[1]} pixels of {mode} take up to {needed / 1e6:.4g} MB"
        raise beyond("memory", f"{found}, the limit is {most / 1e6:.4g} MB")


def loaded(data: Payload, max_pixels: int = MAX_PIXELS, max_memory: int = MAX_MEMORY) -> pillow.Opened:
    """Open and decode a whole image by Pillow. Raises like `opened`, and for a JPEG without its end."""
    image = opened(data, max_pixels, max_memory)
    pillow.check_end(image)
    image.image.load()
    return image


def of_pillow(opened: pillow.Opened, goal: Size, canvas: Size, kind: str, *, blended: bool) -> int:
    """Return the bytes for decoding an image in Pillow, resampling it to `goal`, and encoding a `canvas` as `kind`.

    `blended` means that transparency is laid over a background.
    """
    image, size = opened.image, opened.upright(opened.orientation)
    pixel, plain = _PIXEL.get(image.mode, 4), 1 if image.mode in pillow.GRAY else 4
    if image.mode == "F" or image.mode.startswith("I"):
        most = 3 * pixel + 2
    elif blended and colour.has_alpha(image):
        most = _WITH_ALPHA
    else:
        most = pixel if image.mode in ("L", "RGB") else pixel + plain
    most = max(most, 2 * plain if opened.orientation > 1 else 0)
    resampled = 0 if goal == size else 4 * goal[0] * (size[1] + goal[1])  # first the rows, then the columns
    copies = 0 if math.prod(size) > LARGE else _COPIES
    stages = (
        math.prod(size) * (most + _decoder(opened) + copies),
        math.prod(size) * (plain + copies) + resampled,
        math.prod(canvas) * ENCODED[kind] + (0 if canvas == goal else 4 * math.prod(goal)),
    )
    return len(opened.data) + math.ceil(max(stages))


def of_levels(opened: pillow.Opened) -> int:
    """Return the bytes for decoding an image in Pillow to an array of its pixels, uint8 (height, width, 3)."""
    pixels = math.prod(opened.size)
    if pixels <= LARGE:
        return 0  # of several at a time, too
    return max(of_pillow(opened, opened.upright(opened.orientation), (0, 0), "png", blended=True), pixels * _LEVELS)


def of_whole(header: Header) -> int:
    """Return the bytes for decoding a whole image, by its header alone."""
    size = header.width, header.height
    if header.format == "jpeg":
        return of_native(size, (0, 0), 0, coefficients=header.components if header.progressive else 0, whole=True)
    return math.prod(size) * (_DECODERS.get(header.format, 0) + _WITH_ALPHA)


def of_native(size: Size, canvas: Size, encoder: int, *, coefficients: int, whole: bool) -> int:
    """Return the bytes for a JPEG that the C code decodes.

    `encoder` is the figure for the canvas, `coefficients` the number kept per pixel: components of a progressive file.
    `whole` means that the file is decoded once more for validation.
    """
    decoder = (_WHOLE if whole else 1) + 2 * coefficients
    return max(math.prod(size) * decoder, math.prod(canvas) * encoder)


def _decoder(opened: pillow.Opened) -> float:
    image = opened.image
    if isinstance(image, JpegImageFile):
        return 2 * image.layers + 1 if image.info.get("progressive") else 0  # coefficients
    if isinstance(image, TiffImageFile) and image.info.get("compression") != "raw":
        # the strip or row of tiles that is decompressed at once
        height, bits = opened.size[1], image.tag_v2.get(_BITS, (8,))
        rows = image.tag_v2.get(_ROWS, image.tag_v2.get(_TILE_ROWS, height))
        return float(sum(bits) / 8 * min(1, max(1, rows) / height))
    return _DECODERS.get(opened.format, 0)
