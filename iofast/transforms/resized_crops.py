"""Parts of an image that are resampled to one size: random ones, or the middle."""

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Literal, cast

import numpy as np

from iofast.arguments import checked
from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.transforms.arguments import Pair, pair, positive_span, span
from iofast.transforms.transform import Boxes, Crop, Floats, Resampling

TRIALS = 10  # of RandomResizedCrop and RandomErasing before they give up, as in torchvision


class ResamplingCrop(Resampling, Crop):
    """A crop that is resampled to its size."""

    def outputs(self, widths: Floats, heights: Floats) -> tuple[Floats, Floats]:
        """Width and height of each image's result."""
        height, width = cast(Pair, self.fixed(None))
        return np.full_like(widths, width), np.full_like(heights, height)


def drawn_sides(
    area: Floats, u_area: Floats, u_ratio: Floats, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[Floats, Floats]:
    """The two sides, in whole pixels, of random rectangles with `scale` of `area` and first : second side of `ratio`.

    The uniform numbers `u_area` and `u_ratio` choose within these ranges.
    """
    wanted = area * (scale[0] + (scale[1] - scale[0]) * u_area)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    sides = np.exp(low + (high - low) * u_ratio)
    return np.rint(np.sqrt(wanted * sides)), np.rint(np.sqrt(wanted / sides))


@checked(size=pair, scale=span, ratio=positive_span)
class RandomResizedCrop(ResamplingCrop):
    """A random part of the image, resampled to `size` (int = square, or (height, width)).

    The part has `scale` (low, high) of the image's area, evenly, and an aspect ratio (width / height) of `ratio`
    (low, high), evenly in its logarithm. After 10 parts that do not fit in the image, the central one is used.

    `style="tensorflow"` draws as tf.image.sample_distorted_bounding_box: first the aspect ratio, evenly, then a height
    that `scale` allows, evenly; after 10 attempts the whole image is used.
    """

    random = True
    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"
    antialias: bool | None = field(default=True, repr=False)
    style: Literal["torchvision", "tensorflow"] = field(default="torchvision", repr=False)

    def __post_init__(self) -> None:
        if self.style not in ("torchvision", "tensorflow"):
            raise OptionError(f"RandomResizedCrop: style must be torchvision or tensorflow, found {self.style!r}")
        super().__post_init__()

    def boxes(self, draw: Draw, widths: Floats, heights: Floats) -> Boxes:
        """Lanes 0 and 1 of "crop" place the box (top, left); 2 + 2i and 3 + 2i are area and ratio of trial i."""
        u = draw.uniform("crop", 2 + 2 * TRIALS)
        # all trials of all rows: 3 of 10 photographs need a second one, and selecting those costs what it saves
        shapes = self._shapes(u[:, 2::2], u[:, 3::2], widths[:, None], heights[:, None])
        first = np.arange(len(u)), np.argmax(shapes[0] > 0, axis=1)
        w, h = shapes[0][first], shapes[1][first]
        x, y = np.floor(u[:, 1] * (widths - w + 1)), np.floor(u[:, 0] * (heights - h + 1))
        if (rows := np.flatnonzero(w == 0)).size:
            w[rows], h[rows] = self._central_shapes(widths[rows], heights[rows])
            x[rows], y[rows] = (widths[rows] - w[rows]) // 2, (heights[rows] - h[rows]) // 2
        return Boxes(x, y, w, h)

    def _shapes(self, area: Floats, ratio: Floats, widths: Floats, heights: Floats) -> tuple[Floats, Floats]:
        """Widths and heights of boxes from uniform numbers `area` and `ratio`; 0 if a box does not fit its image."""
        if self.style == "tensorflow":
            w, h = self._heights_first(area, ratio, widths, heights)
        else:
            w, h = drawn_sides(widths * heights, area, ratio, self.scale, self.ratio)
        fits = (w > 0) & (w <= widths) & (h > 0) & (h <= heights)
        return w * fits, h * fits

    def _heights_first(self, u: Floats, ratio: Floats, widths: Floats, heights: Floats) -> tuple[Floats, Floats]:
        """TensorFlow's GenerateRandomCrop (sample_distorted_bounding_box_op.cc)."""
        aspect = self.ratio[0] + (self.ratio[1] - self.ratio[0]) * ratio
        area = widths * heights
        least, most = (np.rint(np.sqrt(share * area / aspect)) for share in self.scale)
        too_wide = np.rint(most * aspect) > widths
        most = np.minimum(np.where(too_wide, np.floor((widths + 0.4999) / aspect), most), heights)
        least = np.minimum(least, most)
        h = least + np.floor(u * (most - least + 1))
        w = np.rint(h * aspect)
        good = (w * h >= self.scale[0] * area) & (w * h <= self.scale[1] * area)
        return w * good, h * good

    def _central_shapes(self, widths: Floats, heights: Floats) -> tuple[Floats, Floats]:
        """The most of the image that has the nearest allowed aspect ratio (at least 1 pixel, unlike torchvision)."""
        if self.style == "tensorflow":
            return widths, heights
        low, high = self.ratio
        aspect = widths / heights
        w = np.where(aspect > high, np.rint(heights * high), widths)
        h = np.where(aspect < low, np.rint(widths / low), heights)
        return np.maximum(w, 1), np.maximum(h, 1)


@checked(size=pair)
class ResizedCenterCrop(ResamplingCrop):
    """The central square of `fraction` of the short side, resampled to `size` (int = square, or (height, width)).

    FFCV's CenterCropRGBImageDecoder and TensorFlow's evaluation; the part has the aspect ratio of `size`.
    """

    size: int | Sequence[int]
    fraction: float = 224 / 256
    interpolation: str = "bilinear"
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.fraction, int | float) or not 0 < self.fraction <= 1:
            raise OptionError(f"ResizedCenterCrop: fraction must be above 0 and at most 1, found {self.fraction!r}")
        super().__post_init__()

    def boxes(self, draw: Draw, widths: Floats, heights: Floats) -> Boxes:  # noqa: ARG002  RandomResizedCrop's signature
        height, width = cast(Pair, self.size)
        scale = self.fraction * np.minimum(widths / width, heights / height)
        w, h = (np.maximum(np.floor(side * scale + 1e-6), 1) for side in (width, height))
        return Boxes(np.floor((widths - w) / 2), np.floor((heights - h) / 2), w, h)
