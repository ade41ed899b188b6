"""Sizes that images are resampled to which are drawn for each: for segmentation, detection, and timm's crops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index

import numpy as np

from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.ops import span
from iofast.transforms.geometry import MAX_SIZE, Column, Resize, check_filter, pair


@dataclass(frozen=True, slots=True)
class RandomResize:
    """The short side becomes any length from `min_size` to below `max_size`, evenly; the aspect ratio is kept."""

    min_size: int
    max_size: int
    interpolation: str = "bilinear"
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        low, high = pair("RandomResize", (self.min_size, self.max_size))
        if low >= high:
            raise OptionError(f"RandomResize: min_size must be below max_size, found {low} and {high}")
        check_filter(self)

    def sizes(self, draw: Draw, widths: Column, heights: Column) -> tuple[Column, Column]:
        """The widths and heights that images of `widths` x `heights` are resampled to. Lane 0 of "resize"."""
        short = self.min_size + np.floor(draw.uniform("resize")[:, 0] * (self.max_size - self.min_size))
        return _sides(short / np.minimum(widths, heights), widths, heights)


@dataclass(frozen=True, slots=True)
class RandomShortestSize:
    """The short side becomes one of `min_size`, less where the long side would be more than `max_size`."""

    min_size: int | Sequence[int]
    max_size: int | None = None
    interpolation: str = "bilinear"
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        given = self.min_size if isinstance(self.min_size, Sequence) else [self.min_size]
        sizes = tuple(pair("RandomShortestSize", size)[0] for size in given)
        if not sizes or (self.max_size is not None and not max(sizes) <= index(self.max_size) <= MAX_SIZE):
            found = f"found {self.min_size!r} and {self.max_size!r}"
            raise OptionError(f"RandomShortestSize: max_size must be from the largest min_size to {MAX_SIZE}, {found}")
        object.__setattr__(self, "min_size", sizes)
        check_filter(self)

    def sizes(self, draw: Draw, widths: Column, heights: Column) -> tuple[Column, Column]:
        """As `RandomResize.sizes`."""
        short = np.array(self.min_size, np.float64)[draw.integers("resize", len(self.min_size))]  # type: ignore[arg-type]
        ratio = short / np.minimum(widths, heights)
        if self.max_size is not None:
            ratio = np.minimum(ratio, self.max_size / np.maximum(widths, heights))
        return _sides(ratio, widths, heights)


@dataclass(frozen=True, slots=True)
class ScaleJitter:
    """As large as fits into `target_size` (height, width), times a factor drawn evenly from `scale_range`."""

    target_size: int | Sequence[int]
    scale_range: Sequence[float] = (0.1, 2.0)
    interpolation: str = "bilinear"
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "target_size", pair("ScaleJitter", self.target_size))
        object.__setattr__(self, "scale_range", span("ScaleJitter: scale_range", self.scale_range))
        if self.scale_range[0] == 0:
            raise OptionError(f"ScaleJitter: scale_range must be above 0, found {self.scale_range}")
        check_filter(self)

    def sizes(self, draw: Draw, widths: Column, heights: Column) -> tuple[Column, Column]:
        """As `RandomResize.sizes`."""
        height, width = pair("ScaleJitter", self.target_size)
        low, high = self.scale_range
        scale = low + (high - low) * draw.uniform("resize")[:, 0]
        return _sides(np.minimum(height / heights, width / widths) * scale, widths, heights)


@dataclass(frozen=True, slots=True)
class ResizeKeepRatio:
    """timm's: just as large as fills `size` (`longest=0`), or as fits into it (`longest=1`), or between these.

    With `random_scale_prob` that is changed by a factor from `random_scale_range`, of sides, or of the area that a crop
    shows where `random_scale_area`; with `random_aspect_prob` the aspect ratio by one from `random_aspect_range`.
    """

    size: int | Sequence[int]
    longest: float = 0.0
    interpolation: str = "bilinear"
    random_scale_prob: float = 0.0
    random_scale_range: Sequence[float] = (0.85, 1.05)
    random_scale_area: bool = False
    random_aspect_prob: float = 0.0
    random_aspect_range: Sequence[float] = (0.9, 1.11)
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        height, width = pair("ResizeKeepRatio", self.size)
        object.__setattr__(self, "size", (height, width))
        for name in ("longest", "random_scale_prob", "random_aspect_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"ResizeKeepRatio: {name} must be 0 to 1, found {getattr(self, name)!r}")
        for name in ("random_scale_range", "random_aspect_range"):
            low, high = span(f"ResizeKeepRatio: {name}", getattr(self, name))
            if low == 0:
                raise OptionError(f"ResizeKeepRatio: {name} must be above 0, found {getattr(self, name)!r}")
            object.__setattr__(self, name, (low, high))
        check_filter(self)

    def sizes(self, draw: Draw, widths: Column, heights: Column) -> tuple[Column, Column]:
        """As `RandomResize.sizes`. Lanes: whether and how much of scale, whether and how much of aspect."""
        height, width = pair("ResizeKeepRatio", self.size)
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


RandomSize = RandomResize | RandomShortestSize | ScaleJitter | ResizeKeepRatio
Resizing = Resize | RandomSize


def _sides(ratio: Column, widths: Column, heights: Column) -> tuple[Column, Column]:
    """Rounded down, as torchvision does it, but for what a division lost; at least 1."""
    return (
        np.clip(np.floor(widths * ratio + 1e-6), 1, MAX_SIZE),
        np.clip(np.floor(heights * ratio + 1e-6), 1, MAX_SIZE),
    )
