"""How much memory an image takes at most on its way into a container, known before it is decoded.

Figures are bytes for each pixel, as measured (`tests/test_memory.py` measures again) and rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from iofast.kernel import colour, pillow
from iofast.kernel.contract import LARGE, Status, StatusError, TranscodeRecipe

Size = tuple[int, int]

_HELD = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # by Pillow's modes; others: 4
_WITH_ALPHA = 9  # the image, its alpha, its colours
_DECODERS = {"webp": 12, "avif": 16, "heic": 16, "ppm": 8}  # beside the image; others work by rows
ENCODED = {"jpeg": 11, "png": 5, "webp": 30, "rgb": 11, "yuv420": 13}  # the image and its encoder
NATIVE = {"jpeg": 4, "rgb": 11, "yuv420": 6}  # encoded by the C code
BY_BOTH = {kind: figure + 11 for kind, figure in ENCODED.items()}  # decoded by the C code, encoded by Pillow
_COPIES = 11  # of an image that is not large, where the C code does a part of what Pillow does
_WHOLE = 7  # a JPEG that is decoded only to find damage
_ROWS, _TILE_ROWS, _BITS = 278, 323, 258  # TIFF tags


def check(recipe: TranscodeRecipe, size: Size, needed: int, mode: str) -> None:
    """Raise `StatusError` for an image of this size and mode that is above a limit; `needed` is in bytes."""
    pixels = f"{size[0]}x{size[1]} pixels of {mode}"
    if math.prod(size) > recipe.max_pixels:
        reason, limit = "pixels", f"{pixels}, --max-pixels is {recipe.max_pixels}"
    elif needed > recipe.max_memory:
        most = recipe.max_memory / 1e6
        reason, limit = "memory", f"{pixels} take up to {needed / 1e6:.4g} MB, --max-memory is {most:.4g} MB"
    else:
        return
    raise StatusError(Status.LIMIT, limit, f"the image is larger than the limit on {reason}")


def of_pillow(opened: pillow.Opened, goal: Size, canvas: Size, kind: str, *, blended: bool) -> int:
    """Bytes that Pillow takes to decode an image, resample it to `goal`, and encode it on a `canvas` as `kind`.

    `blended`: transparency is laid over a background.
    """
    image, size = opened.image, opened.upright(opened.orientation)
    held, plain = _HELD.get(image.mode, 4), 1 if image.mode in pillow.GRAY else 4
    if image.mode == "F" or image.mode.startswith("I"):
        most = 3 * held + 2
    elif blended and colour.has_alpha(image):
        most = _WITH_ALPHA
    else:
        most = held if image.mode in ("L", "RGB") else held + plain
    most = max(most, 2 * plain if opened.orientation > 1 else 0)
    resampled = 0 if goal == size else 4 * goal[0] * (size[1] + goal[1])  # first the rows, then the columns
    copies = 0 if math.prod(size) > LARGE else _COPIES
    stages = (
        math.prod(size) * (most + _decoder(opened) + copies),
        math.prod(size) * (plain + copies) + resampled,
        math.prod(canvas) * ENCODED[kind] + (0 if canvas == goal else 4 * math.prod(goal)),
    )
    return len(opened.data) + math.ceil(max(stages))


def of_native(size: Size, canvas: Size, encoder: int, *, coefficients: int, whole: bool) -> int:
    """The same of a JPEG that the C code decodes.

    `encoder` is a figure of the canvas's. `coefficients` is how many are held for each pixel: components of a
    progressive file. `whole`: the file is decoded once more, to find damage that no pixel of the result shows.
    """
    decoder = (_WHOLE if whole else 1) + 2 * coefficients
    return max(math.prod(size) * decoder, math.prod(canvas) * encoder)


def _decoder(opened: pillow.Opened) -> float:
    image = opened.image
    if isinstance(image, JpegImageFile):
        return 2 * image.layers + 1 if image.info.get("progressive") else 0  # coefficients
    if isinstance(image, TiffImageFile) and image.info.get("compression") != "raw":
        return _strip(image.tag_v2, opened.size[1])
    return _DECODERS.get(opened.format, 0)


def _strip(tags: Mapping[int, Any], height: int) -> float:
    """The strip or row of tiles that is unpacked at once."""
    bits, rows = tags.get(_BITS, (8,)), tags.get(_ROWS, tags.get(_TILE_ROWS, height))
    return float(sum(bits) / 8 * min(1, max(1, rows) / height))
