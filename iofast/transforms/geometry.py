"""Geometry: the part of an image that is kept, and its new size. Torchvision's names, parameters and rounding.

Each class computes for a whole batch what torchvision computes for one image. Widths and heights are float64 columns in
upright pixels, at least 1. Random numbers come from a `Draw`, so a sample's box does not depend on its batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, Literal, NamedTuple, SupportsIndex, cast

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.kernel.contract import FILTERS
from iofast.ops.arguments import check_fields, colour, interpolation_name, operation, optional, whole
from iofast.work import Edge

MAX_SIZE = 32_767  # pixels a side of a transform's result: times 65,500 it still fits the int32 of a box

ATTEMPTS = 10  # of RandomResizedCrop and RandomErasing before they give up, as in torchvision

RANDOM = "random"  # bilinear or bicubic with equal chance for each image: timm's default

EDGES = {edge.name.lower(): edge for edge in Edge}  # torchvision's padding modes

Column = NDArray[np.float64]
Pair = tuple[int, int]
Sides = tuple[int, int, int, int]  # left, top, right, bottom


class Boxes(NamedTuple):
    """Left, top, width and height of one box per row, whole numbers in float64."""

    x: Column
    y: Column
    width: Column
    height: Column


def pair(name: str, size: Any) -> Pair:
    """(height, width) of a `size` given as one int, as [int] or as (height, width); each 1 to 32,767."""
    try:
        sides = [index(size)] if isinstance(size, SupportsIndex) else [index(side) for side in size]
    except TypeError:
        raise OptionError(f"{name} must be an int or (height, width), found {size!r}") from None
    if len(sides) not in (1, 2) or not all(1 <= side <= MAX_SIZE for side in sides):
        raise OptionError(f"{name} must be 1 or 2 whole numbers from 1 to {MAX_SIZE}, found {size!r}")
    return sides[0], sides[-1]


def _padding_mode(name: str, mode: object) -> object:
    if not isinstance(mode, str) or mode not in EDGES:
        raise OptionError(f"{name} must be {', '.join(EDGES)}, found {mode!r}")
    return mode


def _sides(name: str, padding: Any) -> Sides:
    """Left, top, right, bottom."""
    if padding is None:
        return 0, 0, 0, 0
    try:
        sides = [index(padding)] if isinstance(padding, SupportsIndex) else [index(side) for side in padding]
    except TypeError:
        sides = []
    if len(sides) not in (1, 2, 4) or not all(0 <= side <= MAX_SIZE for side in sides):
        raise OptionError(f"{name} must be 1, 2 or 4 whole numbers from 0 to {MAX_SIZE}, found {padding!r}")
    left, top, right, bottom = sides * (4 // len(sides))
    return left, top, right, bottom


@dataclass(frozen=True, slots=True)
class Resize:
    """Resample the whole image: `size` int = its short side (the aspect ratio is kept), or (height, width).

    With `max_size` (only for an int size) the long side is at most that, and the short side is shortened to fit.
    """

    size: int | Sequence[int]
    interpolation: str = "bilinear"
    max_size: int | None = None
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        height, width = pair("Resize: size", self.size)
        both = isinstance(self.size, Sequence) and len(self.size) == 2
        object.__setattr__(self, "size", (height, width) if both else height)
        check_filter(self)
        if isinstance(self.size, int):
            check_fields(self, max_size=optional(whole(self.size + 1, MAX_SIZE)))
        elif self.max_size is not None:
            raise OptionError(f"Resize: max_size needs an int size (the short side), found size {self.size}")

    def sizes(self, draw: Draw, widths: Column, heights: Column) -> tuple[Column, Column]:  # noqa: ARG002  others draw
        """The new widths and heights of images of `widths` x `heights`."""
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


@operation(size=pair, fill=colour, padding_mode=_padding_mode)
class CenterCrop:
    """The central `size` (int = square, or (height, width)) of the image.

    A smaller image is reported as undecodable, unless `pad_if_needed`: then it is padded on all sides as by
    `RandomCrop`. (Torchvision always pads with black; timm's CenterCropOrPad is `padding_mode="reflect"`.)
    """

    size: int | Sequence[int]
    pad_if_needed: bool = False
    fill: float | Sequence[float] = 0.0
    padding_mode: str = "constant"

    @property
    def pads(self) -> bool:
        """Whether a crop may reach beyond its image."""
        return self.pad_if_needed

    def boxes(self, draw: Draw, widths: Column, heights: Column) -> Boxes:  # noqa: ARG002  RandomCrop's signature
        height, width = cast(Pair, self.size)
        x, y = np.rint((widths - width) / 2), np.rint((heights - height) / 2)  # half to even, as Python's round
        return Boxes(x, y, np.full_like(x, width), np.full_like(y, height))


def _pad_if_needed(name: str, value: object) -> object:
    if not isinstance(value, bool) and value != "end":
        raise OptionError(f"{name} must be True, False or 'end', found {value!r}")
    return value


@operation(size=pair, padding=_sides, pad_if_needed=_pad_if_needed, fill=colour, padding_mode=_padding_mode)
class RandomCrop:
    """A random `size` (int = square, or (height, width)) of the image, every place equally likely.

    First `padding` pixels are added around the image: one number, (left and right, top and bottom), or (left, top,
    right, bottom). They have the colour `fill` (0 to 1), or continue the image by `padding_mode`: "edge", "reflect",
    "symmetric". A smaller image is reported as undecodable, unless `pad_if_needed`: then it is padded on all sides, or
    with "end" on the right and below, as by torchvision's references/segmentation.
    """

    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool | Literal["end"] = False
    fill: float | Sequence[float] = 0.0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        widest, shortest = max(cast(Sides, self.padding)), min(cast(Pair, self.size))
        if self.padding_mode in ("reflect", "symmetric") and widest >= shortest:
            found = f"found {widest} and {shortest}"
            raise OptionError(f"RandomCrop: padding with {self.padding_mode} must be less than the size, {found}")

    @property
    def pads(self) -> bool:
        """Whether a crop may reach beyond its image."""
        return bool(self.pad_if_needed) or any(cast(Sides, self.padding))

    def boxes(self, draw: Draw, widths: Column, heights: Column) -> Boxes:
        height, width = cast(Pair, self.size)
        left, top, right, bottom = cast(Sides, self.padding)
        u = draw.uniform("crop", 2)
        y = self._starts(u[:, 0], heights, height, (top, bottom))
        x = self._starts(u[:, 1], widths, width, (left, right))
        return Boxes(x, y, np.full_like(x, width), np.full_like(y, height))

    def _starts(self, u: Column, sides: Column, wanted: int, around: Pair) -> Column:
        """Where windows begin on an axis; `pad_if_needed` adds the missing pixels on both sides, or at the end."""
        missing = np.maximum(wanted - sides - sum(around), 0) if self.pad_if_needed else np.zeros_like(sides)
        before = np.zeros_like(sides) if self.pad_if_needed == "end" else missing
        return np.asarray(np.floor(u * (sides + before + missing + sum(around) - wanted + 1)) - around[0] - before)


@operation(padding=_sides, fill=colour, padding_mode=_padding_mode)
class Pad:
    """`padding` pixels around the result of `Resize((height, width))`; all parameters as of `RandomCrop`."""

    padding: int | Sequence[int]
    fill: float | Sequence[float] = 0.0
    padding_mode: str = "constant"

    @property
    def around(self) -> Sides:
        """Left, top, right, bottom."""
        return cast(Sides, self.padding)

    @property
    def pads(self) -> bool:
        """Whether a crop may reach beyond its image."""
        return True

    def boxes(self, draw: Draw, widths: Column, heights: Column) -> Boxes:  # noqa: ARG002  RandomCrop's signature
        left, top, right, bottom = self.around
        x, y = np.full_like(widths, -left), np.full_like(heights, -top)
        return Boxes(x, y, widths + left + right, heights + top + bottom)


def drawn_sides(
    area: Column, u_area: Column, u_ratio: Column, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[Column, Column]:
    """The two sides, in whole pixels, of random rectangles with `scale` of `area` and first : second side of `ratio`.

    The uniform numbers `u_area` and `u_ratio` choose within these ranges.
    """
    wanted = area * (scale[0] + (scale[1] - scale[0]) * u_area)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    sides = np.exp(low + (high - low) * u_ratio)
    return np.rint(np.sqrt(wanted * sides)), np.rint(np.sqrt(wanted / sides))


def check_filter(transform: Any) -> None:
    """Check `interpolation` and `antialias`; `interpolation` becomes a name."""
    found, name = transform.interpolation, type(transform).__name__
    filter = interpolation_name(found)
    if not isinstance(filter, str) or filter not in (*FILTERS, RANDOM):
        raise OptionError(f"{name}: interpolation must be one of {', '.join(FILTERS)} or {RANDOM}, found {found!r}")
    if not transform.antialias and filter in ("bicubic", RANDOM):
        raise OptionError(f"{name}: interpolation without antialias must be bilinear or nearest, found {found!r}")
    object.__setattr__(transform, "interpolation", filter)
