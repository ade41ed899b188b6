"""Geometry: which part of an image is taken and how large it becomes. Torchvision's names, parameters and rounding.

Each class computes for a whole batch what torchvision computes for one image; widths and heights are float64 columns in
upright pixels, at least 1. Random numbers come from a `Draw`, so a sample's box does not depend on its batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import NamedTuple, Protocol, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.kernel.contract import FILTERS
from iofast.ops import span

MAX_SIZE = 32_767  # pixels a side of what a transform makes: times 65,500 it still fits the int32 of a box

ATTEMPTS = 10  # of RandomResizedCrop and RandomErasing, as in torchvision, before they do without

_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box"}  # Image.Resampling, also torchvision's

Column = NDArray[np.float64]


class Boxes(NamedTuple):
    """Left, top, width and height of one box per row, whole numbers in float64."""

    x: Column
    y: Column
    width: Column
    height: Column


@dataclass(frozen=True, slots=True)
class Resize:
    """Resample the whole image: `size` int = its short side (the aspect ratio is kept), or (height, width).

    With `max_size` (only for an int size) the long side is at most that, and the short side smaller where it must be.
    """

    size: int | Sequence[int]
    interpolation: str = "bilinear"
    max_size: int | None = None
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        height, width = pair("Resize", self.size)
        whole = isinstance(self.size, Sequence) and len(self.size) == 2
        object.__setattr__(self, "size", (height, width) if whole else height)
        check_filter(self)
        if self.max_size is None:
            return
        if not isinstance(self.size, int):
            raise OptionError(f"Resize: max_size goes only with an int size (the short side), found size {self.size}")
        if not self.size < self.max_size <= MAX_SIZE:
            raise OptionError(f"Resize: max_size must be {self.size + 1} to {MAX_SIZE}, found {self.max_size}")

    def sizes(self, widths: Column, heights: Column) -> tuple[Column, Column]:
        """The widths and heights that images of `widths` x `heights` are resampled to."""
        if not isinstance(self.size, int):
            height, width = self.size
            return np.full_like(widths, width), np.full_like(heights, height)
        short, long = np.minimum(widths, heights), np.maximum(widths, heights)
        new_short, new_long = np.full_like(short, self.size), np.floor(self.size * long / short)
        if self.max_size is not None:
            over = new_long > self.max_size
            new_short = np.where(over, np.maximum(np.floor(self.max_size * new_short / new_long), 1), new_short)
            new_long = np.where(over, self.max_size, new_long)
        upright = widths <= heights
        return np.where(upright, new_short, new_long), np.where(upright, new_long, new_short)


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The central `size` (int = square, or (height, width)) of the image.

    Where torchvision would pad a smaller image with black, iofast reports the image as undecodable.
    """

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", pair("CenterCrop", self.size))

    def boxes(self, draw: Draw, widths: Column, heights: Column) -> Boxes:  # noqa: ARG002  RandomCrop's signature
        height, width = pair("CenterCrop", self.size)
        x, y = np.rint((widths - width) / 2), np.rint((heights - height) / 2)  # half to even, as Python's round
        return Boxes(x, y, np.full_like(x, width), np.full_like(y, height))


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A random `size` (int = square, or (height, width)) of the image, every place equally likely, without padding.

    A smaller image is reported as undecodable; torchvision raises.
    """

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", pair("RandomCrop", self.size))

    def boxes(self, draw: Draw, widths: Column, heights: Column) -> Boxes:
        height, width = pair("RandomCrop", self.size)
        u = draw.uniform("crop", 2)
        y, x = np.floor(u[:, 0] * (heights - height + 1)), np.floor(u[:, 1] * (widths - width + 1))
        return Boxes(x, y, np.full_like(x, width), np.full_like(y, height))


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A random part of the image, resampled to `size` (int = square, or (height, width)).

    The part has `scale` (low, high) of the image's area, evenly, and an aspect ratio (width / height) of `ratio`
    (low, high), evenly in its logarithm. After 10 parts that do not fit in the image, a central one is taken.
    """

    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", pair("RandomResizedCrop", self.size))
        object.__setattr__(self, "scale", span("RandomResizedCrop: scale", self.scale))
        object.__setattr__(self, "ratio", span("RandomResizedCrop: ratio", self.ratio))
        if self.ratio[0] == 0:
            raise OptionError(f"RandomResizedCrop: ratio must be above 0, found {self.ratio}")
        check_filter(self)

    def boxes(self, draw: Draw, widths: Column, heights: Column) -> Boxes:
        """Lanes 0 and 1 of "crop" place the box (top, left); 2 + 2i and 3 + 2i are area and ratio of attempt i."""
        u = draw.uniform("crop", 2 + 2 * ATTEMPTS)
        # all attempts of all rows: 3 of 10 photographs need a second one, and picking those out costs what it saves
        shapes = self._shapes(u[:, 2::2], u[:, 3::2], widths[:, None], heights[:, None])
        first = np.arange(len(u)), np.argmax(shapes[0] > 0, axis=1)
        w, h = shapes[0][first], shapes[1][first]
        x, y = np.floor(u[:, 1] * (widths - w + 1)), np.floor(u[:, 0] * (heights - h + 1))
        if (rows := np.flatnonzero(w == 0)).size:
            w[rows], h[rows] = self._central_shapes(widths[rows], heights[rows])
            x[rows], y[rows] = (widths[rows] - w[rows]) // 2, (heights[rows] - h[rows]) // 2
        return Boxes(x, y, w, h)

    def _shapes(self, area: Column, ratio: Column, widths: Column, heights: Column) -> tuple[Column, Column]:
        """Width and height of the boxes drawn by uniform `area` and `ratio`, 0 where a box does not fit its image."""
        w, h = drawn_sides(widths * heights, area, ratio, self.scale, self.ratio)
        fits = (w > 0) & (w <= widths) & (h > 0) & (h <= heights)
        return w * fits, h * fits

    def _central_shapes(self, widths: Column, heights: Column) -> tuple[Column, Column]:
        """As much of the image as the nearest allowed aspect ratio leaves (at least 1 pixel, unlike torchvision)."""
        low, high = self.ratio
        aspect = widths / heights
        w = np.where(aspect > high, np.rint(heights * high), widths)
        h = np.where(aspect < low, np.rint(widths / low), heights)
        return np.maximum(w, 1), np.maximum(h, 1)


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip:
    """Mirror left and right with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise OptionError(f"RandomHorizontalFlip: p must be 0 to 1, found {self.p}")

    def flips(self, draw: Draw) -> NDArray[np.uint8]:
        """1 for each row that is mirrored."""
        return (draw.uniform("flip")[:, 0] < self.p).astype(np.uint8)


def pair(name: str, size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) of a `size` given as one int, as [int] or as (height, width); each 1 to 32,767."""
    try:
        # a tuple is asked for first: to ask whether something is a SupportsIndex takes 20 us, and every batch asks
        if isinstance(size, tuple) or not isinstance(size, SupportsIndex):
            sides = [index(side) for side in size]
        else:
            sides = [index(size)]
    except TypeError:
        raise OptionError(f"{name}: size must be an int or (height, width), found {size!r}") from None
    if len(sides) not in (1, 2) or not all(1 <= side <= MAX_SIZE for side in sides):
        raise OptionError(f"{name}: size must be 1 or 2 whole numbers from 1 to {MAX_SIZE}, found {size!r}")
    return sides[0], sides[-1]


def drawn_sides(
    area: Column, u_area: Column, u_ratio: Column, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[Column, Column]:
    """The two sides, in whole pixels, of rectangles of `scale` of `area` whose sides have the first : second `ratio`;
    the place in either range is a uniform number."""
    wanted = area * (scale[0] + (scale[1] - scale[0]) * u_area)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    sides = np.exp(low + (high - low) * u_ratio)
    return np.rint(np.sqrt(wanted * sides)), np.rint(np.sqrt(wanted / sides))


class _Resampling(Protocol):
    @property
    def interpolation(self) -> str: ...

    @property
    def antialias(self) -> bool | None: ...


def check_filter(transform: _Resampling) -> None:
    """Turn torchvision's InterpolationMode, or Pillow's number, into a string; refuse what the kernel does not do."""
    given, name = transform.interpolation, type(transform).__name__
    filter = getattr(given, "value", given)
    if isinstance(filter, int) and not isinstance(filter, bool):
        filter = _PILLOW.get(filter)
    filter = "nearest" if filter == "nearest-exact" else filter  # the centre of the pixel, as Pillow's nearest
    if not isinstance(filter, str) or filter not in FILTERS:
        raise OptionError(f"{name}: interpolation must be one of {', '.join(FILTERS)}, found {given!r}")
    if not transform.antialias and filter in ("bilinear", "bicubic"):
        raise OptionError(f"{name}: only antialias=True is supported, found {transform.antialias}")
    object.__setattr__(transform, "interpolation", filter)
