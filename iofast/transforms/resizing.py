"""Resize, and random sizes to which images are resampled: for segmentation, detection, and timm's crops."""

import math
from collections.abc import Sequence
from dataclasses import field
from typing import cast

import numpy as np

from iofast.arguments import check_fields, checked, integer, optional
from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.transforms.arguments import MAX_SIZE, Pair, between, pair, positive_span, probability
from iofast.transforms.transform import Floats, Resizing


def _sides(ratio: Floats, widths: Floats, heights: Floats) -> tuple[Floats, Floats]:
    """Round down, as torchvision does, but not for the error of a division; at least 1."""
    wide, high = (np.clip(np.floor(sides * ratio + 1e-6), 1, MAX_SIZE) for sides in (widths, heights))
    return wide, high


def _lengths(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    lengths = tuple(integer(1, MAX_SIZE)(name, each) for each in (value if isinstance(value, Sequence) else [value]))
    if not lengths:
        raise OptionError(f"{name} must be one length or more, found {value!r}")
    return lengths


@checked()
class Resize(Resizing):
    """Resample the whole image: `size` int = its short side (the aspect ratio is kept), or (height, width).

    With `max_size` (only for an int size) the long side is at most that, and the short side is shortened to fit.
    """

    size: int | Sequence[int]
    interpolation: str = "bilinear"
    max_size: int | None = None
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        height, width = pair("Resize: size", self.size)
        two_sides = isinstance(self.size, Sequence) and len(self.size) == 2
        object.__setattr__(self, "size", (height, width) if two_sides else height)
        super().__post_init__()
        if isinstance(self.size, int):
            check_fields(self, max_size=optional(integer(self.size + 1, MAX_SIZE)))
        elif self.max_size is not None:
            raise OptionError(f"Resize: max_size needs an int size (the short side), found size {self.size}")

    @property
    def fixed(self) -> Pair | None:
        return None if isinstance(self.size, int) else cast(Pair, self.size)

    def sizes(self, draw: Draw, widths: Floats, heights: Floats) -> tuple[Floats, Floats]:  # noqa: ARG002  others draw
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


@checked(min_size=integer(1, MAX_SIZE), max_size=integer(1, MAX_SIZE))
class RandomResize(Resizing):
    """The short side becomes any length from `min_size` to below `max_size`, evenly; the aspect ratio is kept."""

    random = True
    min_size: int
    max_size: int
    interpolation: str = "bilinear"
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        if self.min_size >= self.max_size:
            found = f"{self.min_size} and {self.max_size}"
            raise OptionError(f"RandomResize: min_size must be below max_size, found {found}")
        super().__post_init__()

    def sizes(self, draw: Draw, widths: Floats, heights: Floats) -> tuple[Floats, Floats]:
        """Lane 0 of "resize"."""
        short = self.min_size + np.floor(draw.uniform("resize")[:, 0] * (self.max_size - self.min_size))
        return _sides(short / np.minimum(widths, heights), widths, heights)


@checked(min_size=_lengths)
class RandomShortestSize(Resizing):
    """The short side becomes one of `min_size`, or less if the long side would exceed `max_size`."""

    random = True
    min_size: int | Sequence[int]
    max_size: int | None = None
    interpolation: str = "bilinear"
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        check_fields(self, max_size=optional(integer(max(cast(Sequence[int], self.min_size)), MAX_SIZE)))
        super().__post_init__()

    def sizes(self, draw: Draw, widths: Floats, heights: Floats) -> tuple[Floats, Floats]:
        short = np.array(self.min_size, np.float64)[draw.integers("resize", len(self.min_size))]  # type: ignore[arg-type]
        ratio = short / np.minimum(widths, heights)
        if self.max_size is not None:
            ratio = np.minimum(ratio, self.max_size / np.maximum(widths, heights))
        return _sides(ratio, widths, heights)


@checked(target_size=pair, scale_range=positive_span)
class ScaleJitter(Resizing):
    """The largest size that fits into `target_size` (height, width), times a random factor from `scale_range`."""

    random = True
    target_size: int | Sequence[int]
    scale_range: Sequence[float] = (0.1, 2.0)
    interpolation: str = "bilinear"
    antialias: bool | None = field(default=True, repr=False)

    def sizes(self, draw: Draw, widths: Floats, heights: Floats) -> tuple[Floats, Floats]:
        height, width = cast(Pair, self.target_size)
        low, high = self.scale_range
        scale = low + (high - low) * draw.uniform("resize")[:, 0]
        return _sides(np.minimum(height / heights, width / widths) * scale, widths, heights)


@checked(
    size=pair,
    longest=between(0, 1),
    random_scale_prob=probability,
    random_aspect_prob=probability,
    random_scale_range=positive_span,
    random_aspect_range=positive_span,
)
class ResizeKeepRatio(Resizing):
    """timm's: the least size that fills `size` (`longest=0`), the greatest that fits into it (1), or between these.

    With `random_scale_prob` the sides change by a factor from `random_scale_range`; with `random_scale_area` that is a
    factor of the area that a crop shows. With `random_aspect_prob` the aspect ratio changes by one from
    `random_aspect_range`.
    """

    random = True
    size: int | Sequence[int]
    longest: float = 0.0
    interpolation: str = "bilinear"
    random_scale_prob: float = 0.0
    random_scale_range: Sequence[float] = (0.85, 1.05)
    random_scale_area: bool = False
    random_aspect_prob: float = 0.0
    random_aspect_range: Sequence[float] = (0.9, 1.11)
    antialias: bool | None = field(default=True, repr=False)

    def sizes(self, draw: Draw, widths: Floats, heights: Floats) -> tuple[Floats, Floats]:
        """Lanes: whether and how much of scale, whether and how much of aspect."""
        height, width = cast(Pair, self.size)
        across, down = widths / width, heights / height
        ratio = np.maximum(across, down) * self.longest + np.minimum(across, down) * (1 - self.longest)
        u = draw.uniform("resize", 4)
        low, high = self.random_scale_range
        factor = low + (high - low) * u[:, 1]
        factor = 1 / np.sqrt(factor) if self.random_scale_area else factor
        factor = np.where(u[:, 0] < self.random_scale_prob, factor, 1)
        low, high = map(math.log, self.random_aspect_range)
        aspect = np.where(u[:, 2] < self.random_aspect_prob, np.exp((low + (high - low) * u[:, 3]) / 2), 1)
        wide, high_ = widths * factor * aspect / ratio, heights * factor / aspect / ratio
        return np.maximum(np.rint(wide), 1), np.maximum(np.rint(high_), 1)
