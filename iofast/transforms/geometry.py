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
from iofast.kernel.contract import ALIASED, FILTERS
from iofast.ops.arguments import interpolation_name
from iofast.ops.moving import filling
from iofast.work import Edge

MAX_SIZE = 32_767  # pixels a side of what a transform makes: times 65,500 it still fits the int32 of a box

ATTEMPTS = 10  # of RandomResizedCrop and RandomErasing, as in torchvision, before they do without

RANDOM = "random"  # bilinear or bicubic, each as likely as the other, for each image: timm's default

EDGES = {edge.name.lower(): edge for edge in Edge}  # torchvision's padding modes

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

    def sizes(self, draw: Draw, widths: Column, heights: Column) -> tuple[Column, Column]:  # noqa: ARG002  others draw
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

    A smaller image is reported as undecodable, unless `pad_if_needed`: then it is padded on all sides as
    `RandomCrop` does it. (Torchvision always pads, with black; timm's CenterCropOrPad is `padding_mode="reflect"`.)
    """

    size: int | Sequence[int]
    pad_if_needed: bool = False
    fill: float | Sequence[float] = 0.0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", pair("CenterCrop", self.size))
        check_padding(self)

    @property
    def pads(self) -> bool:
        """Whether it may take in what lies outside of an image."""
        return self.pad_if_needed

    def boxes(self, draw: Draw, widths: Column, heights: Column) -> Boxes:  # noqa: ARG002  RandomCrop's signature
        height, width = pair("CenterCrop", self.size)
        x, y = np.rint((widths - width) / 2), np.rint((heights - height) / 2)  # half to even, as Python's round
        return Boxes(x, y, np.full_like(x, width), np.full_like(y, height))


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A random `size` (int = square, or (height, width)) of the image, every place equally likely.

    `padding` pixels are put around the image first: one number, (left and right, top and bottom), or (left, top, right,
    bottom). They have the colour `fill` (0 to 1), or go on as `padding_mode` says: "edge", "reflect", "symmetric". A
    smaller image is reported as undecodable, unless `pad_if_needed`.
    """

    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: float | Sequence[float] = 0.0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", pair("RandomCrop", self.size))
        object.__setattr__(self, "padding", _sides("RandomCrop", self.padding))
        check_padding(self)
        height, width = pair("RandomCrop", self.size)
        if self.padding_mode in ("reflect", "symmetric") and max(self._around) >= min(height, width):
            found = f"found {max(self._around)} and {min(height, width)}"
            raise OptionError(f"RandomCrop: padding with {self.padding_mode} must be less than the size, {found}")

    @property
    def pads(self) -> bool:
        """Whether it may take in what lies outside of an image."""
        return self.pad_if_needed or any(self._around)

    @property
    def _around(self) -> tuple[int, int, int, int]:
        left, top, right, bottom = self.padding or (0, 0, 0, 0)  # type: ignore[misc]
        return left, top, right, bottom

    def boxes(self, draw: Draw, widths: Column, heights: Column) -> Boxes:
        height, width = pair("RandomCrop", self.size)
        left, top, right, bottom = self._around
        u = draw.uniform("crop", 2)
        y = self._starts(u[:, 0], heights, height, (top, bottom))
        x = self._starts(u[:, 1], widths, width, (left, right))
        return Boxes(x, y, np.full_like(x, width), np.full_like(y, height))

    def _starts(self, u: Column, sides: Column, wanted: int, around: tuple[int, int]) -> Column:
        """Where windows begin on an axis; with `pad_if_needed` what is lacking is added before and behind."""
        lacking = np.maximum(wanted - sides - sum(around), 0) if self.pad_if_needed else np.zeros_like(sides)
        return np.asarray(np.floor(u * (sides + 2 * lacking + sum(around) - wanted + 1)) - around[0] - lacking)


@dataclass(frozen=True, slots=True)
class Pad:
    """`padding` pixels around an image that `Resize((height, width))` made, as `RandomCrop` has them."""

    padding: int | Sequence[int]
    fill: float | Sequence[float] = 0.0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        object.__setattr__(self, "padding", _sides("Pad", self.padding))
        check_padding(self)

    @property
    def around(self) -> tuple[int, int, int, int]:
        """Left, top, right, bottom."""
        return self.padding  # type: ignore[return-value]

    @property
    def pads(self) -> bool:
        """Whether it may take in what lies outside of an image."""
        return True

    def boxes(self, draw: Draw, widths: Column, heights: Column) -> Boxes:  # noqa: ARG002  RandomCrop's signature
        left, top, right, bottom = self.around
        x, y = np.full_like(widths, -left), np.full_like(heights, -top)
        return Boxes(x, y, widths + left + right, heights + top + bottom)


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
    filter = interpolation_name(given)
    if not isinstance(filter, str) or filter not in (*FILTERS, RANDOM):
        raise OptionError(f"{name}: interpolation must be one of {', '.join(FILTERS)} or {RANDOM}, found {given!r}")
    if not transform.antialias and filter in ("bicubic", RANDOM):
        raise OptionError(f"{name}: without antialias only bilinear and nearest are supported, found {given!r}")
    object.__setattr__(transform, "interpolation", filter)


def filter_of(transform: _Resampling) -> str:
    """The kernel's name of what a transform resamples with."""
    aliased = transform.interpolation == "bilinear" and not transform.antialias
    return ALIASED if aliased else transform.interpolation


class _Padding(Protocol):
    @property
    def fill(self) -> float | Sequence[float]: ...

    @property
    def padding_mode(self) -> str: ...


def check_padding(transform: _Padding) -> None:
    """Check and normalise `fill` and `padding_mode`."""
    name = type(transform).__name__
    if transform.padding_mode not in EDGES:
        raise OptionError(f"{name}: padding_mode must be {', '.join(EDGES)}, found {transform.padding_mode!r}")
    object.__setattr__(transform, "fill", filling(name, transform.fill))


def _sides(name: str, padding: int | Sequence[int] | None) -> tuple[int, int, int, int]:
    """Left, top, right, bottom."""
    if padding is None:
        return 0, 0, 0, 0
    try:
        sides = [index(padding)] if isinstance(padding, SupportsIndex) else [index(side) for side in padding]
    except TypeError:
        sides = []
    if len(sides) not in (1, 2, 4) or not all(0 <= side <= MAX_SIZE for side in sides):
        found = f"found {padding!r}"
        raise OptionError(f"{name}: padding must be 1, 2 or 4 whole numbers from 0 to {MAX_SIZE}, {found}")
    left, top, right, bottom = sides * (4 // len(sides))
    return left, top, right, bottom
