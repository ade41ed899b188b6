"""Resampling by Pillow: a window of a resampled region, whatever the size of the whole."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from iofast.kernel.contract import ALIASED

FILTERS = {name: Image.Resampling[name.upper()] for name in ("nearest", "box", "bilinear", "bicubic", "lanczos")}
_REACH = {"nearest": 0, "box": 0.5, "bilinear": 1, "bicubic": 2, "lanczos": 3}  # source pixels on each side at scale 1
_HUGE = 1 << 26  # pixels; a resampled image larger than this is not made when a window of it is all that is wanted


def cut(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """`image.crop(box)` for a box inside of it, without the size check that Pillow makes there."""
    if box == (0, 0, *image.size):
        return image
    piece = Image.new(image.mode, (box[2] - box[0], box[3] - box[1]))
    piece.paste(image, (-box[0], -box[1]))
    return piece


def resample(image: Image.Image, box: tuple[int, ...], size: tuple[int, int], name: str) -> Image.Image:
    """The window of `size` of the virtual image of a row of `decode_batch`'s `boxes`, which must lie inside."""
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
    # Pillow's `box` gives the same window but for the rounding of its 32-bit coordinates: small numbers keep that small
    left, right, from_x, to_x = _span(region.width, virtual_width, (x, x + size[0]), _REACH[name])
    top, bottom, from_y, to_y = _span(region.height, virtual_height, (y, y + size[1]), _REACH[name])
    return cut(region, (left, top, right, bottom)).resize(size, FILTERS[name], box=(from_x, from_y, to_x, to_y))


def _pick(region: Image.Image, goal: tuple[int, ...], size: tuple[int, int], name: str) -> Image.Image:
    """`resample` by a filter that takes one pixel for each that is wanted, except by box where an axis shrinks.

    Which one it takes hangs on the last bit, so positions are rounded as in Pillow's resize to the whole virtual image.
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
    """`resample` between the four nearest pixels; beyond an edge there are its own."""
    pixels = np.asarray(region).astype(np.float64)
    for axis, (length, wanted) in enumerate(zip(region.size, size, strict=True)):
        centre = (goal[2 + axis] + np.arange(wanted) + 0.5) * (length / goal[axis]) - 0.5
        before = np.floor(centre).astype(np.int64)
        share = (centre - before).reshape(*((-1, 1) if axis else (1, -1)), *[1] * (pixels.ndim - 2))
        left, right = (pixels.take(np.clip(at, 0, length - 1), axis=1 - axis) for at in (before, before + 1))
        pixels = left * (1 - share) + right * share
    return Image.fromarray(np.floor(pixels + 0.5).astype(np.uint8))


def _places(scale: float, start: int, stop: int, name: str) -> NDArray[np.int64]:
    """The input that each of the outputs [start, stop) of an axis is; `scale`: inputs per output."""
    if name == "box":
        centre = (np.arange(start, stop) + 0.5) * scale
        place = centre.astype(np.int64)  # or the one before it, where the centre lies on the edge between them
        distance = place - 1 - centre + 0.5
        return np.where((distance > -0.5) & (place > 0), place - 1, place)
    at, steps = scale * 0.5, np.full(1 << 16, scale)
    for _ in range(start >> 16):  # added up from output to output
        at = float(np.cumsum(np.concatenate(([at], steps)))[-1])
    behind = np.full(stop - (start >> 16 << 16), scale)
    behind[0] = at
    places: NDArray[np.int64] = np.cumsum(behind)[start & 0xFFFF :].astype(np.int64)
    return places


def _span(length: int, virtual: int, window: tuple[int, int], reach: float) -> tuple[int, int, float, float]:
    """One axis: the source pixels that `window` of `virtual` depends on, and where in them the window lies."""
    scale = length / virtual
    start, stop = window[0] * scale, window[1] * scale
    margin = reach * max(scale, 1) + 2
    low, high = max(0, math.floor(start - margin)), min(length, math.ceil(stop + margin))
    return low, high, start - low, stop - low
