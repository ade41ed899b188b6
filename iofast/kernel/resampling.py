"""Resampling by Pillow: a window of a resampled region, whatever the size of the whole image."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from iofast.kernel.contract import ALIASED

_NAMES = ("nearest", "box", "bilinear", "bicubic", "lanczos", "hamming")
FILTERS = {name: Image.Resampling[name.upper()] for name in _NAMES}
# Source pixels on each side at scale 1.
_REACH = {
    "nearest": 0,
    "box": 0.5,
    "bilinear": 1,
    "bicubic": 2,
    "lanczos": 3,
    "hamming": 1,
}  # source pixels on each side at scale 1
_HUGE = 1 << 26  # pixels; of a larger virtual image only the window is computed


def cut(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """Crop an image to a box inside it, without the size check of Pillow's `crop`."""
    if box == (0, 0, *image.size):
        return image
    piece = Image.new(image.mode, (box[2] - box[0], box[3] - box[1]))
    piece.paste(image, (-box[0], -box[1]))
    return piece


def resample(image: Image.Image, box: tuple[int, ...], size: tuple[int, int], name: str) -> Image.Image:
    """Return the window of `size` of the virtual image that `box`, a row of `decode_batch`'s boxes, describes."""
    x0, y0, x1, y1, virtual_width, virtual_height, x, y = box
    region = cut(image, (x0, y0, x1, y1))
    if region.size == (virtual_width, virtual_height):  # Pillow would copy it
        return cut(region, (x, y, x + size[0], y + size[1]))
    if name == ALIASED:
        return _between(region, box[4:], size)
    if virtual_width * virtual_height <= _HUGE:
        return cut(region.resize((virtual_width, virtual_height), FILTERS[name]), (x, y, x + size[0], y + size[1]))
    if name in ("nearest", "box"):
        return _pick(region, box[4:], size, name)
    # Pillow's `box` differs by the rounding of its 32-bit coordinates; cropping first keeps these small
    left, right, from_x, to_x = _span(region.width, virtual_width, (x, x + size[0]), _REACH[name])
    top, bottom, from_y, to_y = _span(region.height, virtual_height, (y, y + size[1]), _REACH[name])
    return cut(region, (left, top, right, bottom)).resize(size, FILTERS[name], box=(from_x, from_y, to_x, to_y))


def _pick(region: Image.Image, goal: tuple[int, ...], size: tuple[int, int], name: str) -> Image.Image:
    """Resample by nearest, or by box: one source pixel per output, except by box on an axis that shrinks.

    The choice of that pixel depends on the last bit, so positions are rounded as by Pillow for the whole virtual image.
    """
    virtual, first = list(goal[:2]), list(goal[2:])
    pixels = np.asarray(region)
    for axis, (length, wanted) in enumerate(zip(region.size, size, strict=True)):
        if name == "nearest" or length <= virtual[axis]:
            places = _places(length / virtual[axis], first[axis], first[axis] + wanted, name)
            pixels = pixels.take(np.minimum(places, length - 1), axis=1 - axis)
            virtual[axis], first[axis] = wanted, 0
    made = Image.fromarray(pixels).resize((virtual[0], virtual[1]), FILTERS[name])
    return cut(made, (first[0], first[1], first[0] + size[0], first[1] + size[1]))


def _between(region: Image.Image, goal: tuple[int, ...], size: tuple[int, int]) -> Image.Image:
    """Interpolate between the four nearest pixels; edge pixels are repeated."""
    pixels = np.asarray(region).astype(np.float64)
    for axis, (length, wanted) in enumerate(zip(region.size, size, strict=True)):
        centre = (goal[2 + axis] + np.arange(wanted) + 0.5) * (length / goal[axis]) - 0.5
        before = np.floor(centre).astype(np.int64)
        share = (centre - before).reshape(*((-1, 1) if axis else (1, -1)), *[1] * (pixels.ndim - 2))
        left, right = (pixels.take(np.clip(at, 0, length - 1), axis=1 - axis) for at in (before, before + 1))
        pixels = left * (1 - share) + right * share
    return Image.fromarray(np.floor(pixels + 0.5).astype(np.uint8))


def _places(scale: float, start: int, stop: int, name: str) -> NDArray[np.int64]:
    """Return the input of each of the outputs [start, stop) of an axis; `scale` is inputs per output."""
    if name == "box":
        centre = (np.arange(start, stop) + 0.5) * scale
        place = centre.astype(np.int64)  # or the one before, if the centre lies on their common edge
        distance = place - 1 - centre + 0.5
        return np.where((distance > -0.5) & (place > 0), place - 1, place)
    at, steps = scale * 0.5, np.full(1 << 16, scale)
    for _ in range(start >> 16):  # Pillow adds up the steps
        at = float(np.cumsum(np.concatenate(([at], steps)))[-1])
    behind = np.full(stop - (start >> 16 << 16), scale)
    behind[0] = at
    places: NDArray[np.int64] = np.cumsum(behind)[start & 0xFFFF :].astype(np.int64)
    return places


def _span(length: int, virtual: int, window: tuple[int, int], reach: float) -> tuple[int, int, float, float]:
    """Return the source pixels [low, high) of one axis that `window` depends on, and the window relative to `low`."""
    scale = length / virtual
    start, stop = window[0] * scale, window[1] * scale
    margin = reach * max(scale, 1) + 2
    low, high = max(0, math.floor(start - margin)), min(length, math.ceil(stop + margin))
    return low, high, start - low, stop - low
