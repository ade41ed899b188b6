"""ResizeToBucket: a few output sizes instead of one, so that little of an image is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.order import nearest
from iofast.transforms.geometry import Boxes, Column, check_filter, pair

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ResizeToBucket:
    """Each image fills the size (height, width) of `sizes` whose aspect ratio is nearest to its own.

    What of the image has that aspect ratio, as large as there is, is resampled to the size: the centre, or with
    `random` any place, equally likely. A smaller image is enlarged. The nearest is that of `nearest(sizes, …)`; with
    `order.Buckets(sizes)` all images of a batch get one size.
    """

    sizes: Sequence[Size]
    interpolation: str = "bilinear"
    random: bool = False
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Sequence) or isinstance(self.sizes, str) or not self.sizes:
            raise OptionError(f"ResizeToBucket: sizes must be pairs (height, width), found {self.sizes!r}")
        sizes = tuple(pair("ResizeToBucket", size) for size in self.sizes)
        ratios = [width / height for height, width in sizes]
        if len(set(ratios)) < len(ratios):
            raise OptionError(f"ResizeToBucket: sizes must differ in aspect ratio, found {sizes}")
        object.__setattr__(self, "sizes", sizes)
        check_filter(self)

    def boxes(self, draw: Draw, widths: Column, heights: Column) -> Boxes:
        """What of each image is kept. Lanes 0 and 1 of "crop" place it (top, left)."""
        wide, high = self.outputs(widths, heights)
        w = np.minimum(widths, np.maximum(np.rint(heights * wide / high), 1))
        h = np.minimum(heights, np.maximum(np.rint(widths * high / wide), 1))
        if not self.random:
            return Boxes(np.rint((widths - w) / 2), np.rint((heights - h) / 2), w, h)
        u = draw.uniform("crop", 2)
        return Boxes(np.floor(u[:, 1] * (widths - w + 1)), np.floor(u[:, 0] * (heights - h + 1)), w, h)

    def outputs(self, widths: Column, heights: Column) -> tuple[Column, Column]:
        """Width and height of what each image becomes."""
        sizes = np.array(self.sizes, np.float64)[nearest(self.sizes, widths, heights)]
        return sizes[:, 1], sizes[:, 0]
