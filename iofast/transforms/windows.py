"""Windows cut out of an image before it is resized, as in SSD's recipe: larger than the image, or around its boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.ops.arguments import colour, operation, optional, probability, span, whole
from iofast.transforms.geometry import Boxes, Column

Places = NDArray[np.float64]  # boxes of an image, (n, 4): left, top, right, lower edge in pixels

_SSD_OPTIONS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_ROUNDS = 50  # of RandomIoUCrop; each succeeds with 1 chance in 7 or more, so 1 image in 2,000 stays whole needlessly
_LANES = 4  # of each trial: width, height, left, top


@operation(fill=colour, side_range=span, p=probability)
class RandomZoomOut:
    """With probability `p`, put the image into a larger one of colour `fill`, by a random factor from `side_range`.

    `Resize((height, width))` must follow; both are one resampling.
    """

    fill: float | Sequence[float] = 0.0
    side_range: Sequence[float] = (1.0, 4.0)
    p: float = 0.5

    def __post_init__(self) -> None:
        if self.side_range[0] < 1:
            raise OptionError(f"RandomZoomOut: side_range must be 1 or more, found {self.side_range}")

    def windows(self, draw: Draw, widths: Column, heights: Column) -> Boxes:
        """The windows of images of `widths` x `heights`. Lanes of "zoom out": whether, how much, left, top."""
        u = draw.uniform("zoom out", 4)
        low, high = self.side_range
        factor = np.where(u[:, 0] < self.p, low + (high - low) * u[:, 1], 1)
        wide, tall = np.floor(widths * factor), np.floor(heights * factor)
        return Boxes(-np.floor((wide - widths) * u[:, 2]), -np.floor((tall - heights) * u[:, 3]), wide, tall)


def _options(name: str, values: Sequence[float]) -> tuple[float, ...]:
    try:
        options = tuple(map(float, values))
    except (TypeError, ValueError):
        options = ()
    if not options or not all(0 <= option < math.inf for option in options):
        raise OptionError(f"{name} must be one or more finite numbers from 0 on, found {values!r}")
    return options


@operation(sampler_options=optional(_options, _SSD_OPTIONS), trials=whole(1, 1000))
class RandomIoUCrop:
    """A random part of the image that shows one of its boxes well enough.

    A part has `min_scale` to `max_scale` of width and height, and an aspect ratio (width / height) between the two. It
    is accepted if the middle of a box lies in it and the intersection over union with that box is at least a number
    drawn from `sampler_options`. After `trials` parts another number is drawn; 1 or more leaves the image whole. An
    image without boxes stays whole. Boxes whose middle is cut off are removed. The loader needs `targets` that are
    boxes.
    """

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: Sequence[float] = _SSD_OPTIONS
    trials: int = 40

    def __post_init__(self) -> None:
        low, high = span("RandomIoUCrop: min_scale and max_scale", (self.min_scale, self.max_scale))
        span("RandomIoUCrop: min_aspect_ratio and max_aspect_ratio", (self.min_aspect_ratio, self.max_aspect_ratio))
        if not 0 < low <= high <= 1:
            raise OptionError(f"RandomIoUCrop: min_scale and max_scale must be above 0 to 1, found {low} and {high}")

    def windows(self, draw: Draw, widths: Column, heights: Column, places: Sequence[Places]) -> Boxes:
        """The windows of images of `widths` x `heights` with boxes at `places`."""
        windows = Boxes(np.zeros_like(widths), np.zeros_like(heights), widths.copy(), heights.copy())
        rows = np.array([row for row, own in enumerate(places) if len(own)], np.intp)
        for number in range(_ROUNDS):
            some = draw.rows(rows)
            options = np.array(self.sampler_options)[some.integers(f"IoU {number} option", len(self.sampler_options))]
            rows, options, some = rows[options < 1], options[options < 1], some.rows(np.flatnonzero(options < 1))
            if not len(rows):
                break
            u = some.uniform(f"IoU {number}", _LANES * self.trials).reshape(len(rows), self.trials, _LANES)
            parts = self._parts(u, widths[rows, None], heights[rows, None])
            accepted = [_first(parts[at], places[row], options[at]) for at, row in enumerate(rows.tolist())]
            for at, trial in enumerate(accepted):
                if trial is not None:
                    left, top, right, low = parts[at, trial].tolist()
                    for column, value in zip(windows, (left, top, right - left, low - top), strict=True):
                        column[rows[at]] = value
            rows = rows[[trial is None for trial in accepted]]
        return windows

    def _parts(self, u: NDArray[np.float64], widths: Column, heights: Column) -> NDArray[np.float64]:
        """Left, top, right and lower edge of parts from the uniform `u` (N, trials, 4); empty if the shape is wrong."""
        shares = self.min_scale + (self.max_scale - self.min_scale) * u[..., :2]
        w, h = np.floor(widths * shares[..., 0]), np.floor(heights * shares[..., 1])
        ratio = w / np.maximum(h, 1)
        w = w * ((self.min_aspect_ratio <= ratio) & (ratio <= self.max_aspect_ratio))
        x, y = np.floor((widths - w) * u[..., 2]), np.floor((heights - h) * u[..., 3])
        return np.stack((x, y, x + w, y + h), axis=-1)


def _first(parts: NDArray[np.float64], places: Places, least: float) -> int | None:
    """The first of `parts` (trials, 4) with an intersection over union >= `least` with a box of `places` (n, 4)."""
    middle = (places[:, :2] + places[:, 2:]) / 2
    x0, y0, x1, y1 = (parts[:, edge, None] for edge in range(4))
    shown = (x0 < middle[:, 0]) & (middle[:, 0] < x1) & (y0 < middle[:, 1]) & (middle[:, 1] < y1)
    wide = np.minimum(x1, places[:, 2]) - np.maximum(x0, places[:, 0])
    high = np.minimum(y1, places[:, 3]) - np.maximum(y0, places[:, 1])
    both = np.maximum(wide, 0) * np.maximum(high, 0)
    areas = (places[:, 2:] - places[:, :2]).prod(axis=1)
    union = np.maximum((x1 - x0) * (y1 - y0) + areas - both, 1e-9)
    good = (shown & (both / union >= least)).any(axis=1)
    return int(np.argmax(good)) if good.any() else None
