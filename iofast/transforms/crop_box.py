"""Which part of a stored image became the image of a sample: what its boxes, points and masks need to follow it."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray


class CropBox(NamedTuple):
    """A part of an image, cut out, resampled to a size and perhaps mirrored.

    box          left, top, right and lower edge in pixels of the upright stored image; after a Resize with fractions
    size         width and height of the result
    flip         whether it was mirrored then, left and right
    orientation  the EXIF orientation that made the stored image upright before, 1 where there was nothing to do
    """

    box: tuple[float, float, float, float]
    size: tuple[int, int]
    flip: bool = False
    orientation: int = 1

    @classmethod
    def of(cls, row: NDArray[np.int32], size: tuple[int, int] | None, *, flip: bool, orientation: int) -> Self:
        """That of one row of what `Pipeline.plan` makes; `size` is (height, width), None where the row says it."""
        left, top, right, lower, wide, high, x, y = row.tolist()
        height, width = size or (high, wide)
        across, down = (right - left) / wide, (lower - top) / high  # pixels of the image for one of the result
        box = left + x * across, top + y * down, left + (x + width) * across, top + (y + height) * down
        return cls(box, (width, height), flip, orientation)

    def points(self, points: ArrayLike) -> NDArray[np.float64]:
        """Where `points` (x, y) of the upright stored image are in the result: float64 of the same shape, (…, 2).

        What was cut off lies outside of 0 to `size`. A mirrored box ends before it begins: sort its corners.
        """
        left, top, right, lower = self.box
        made = (np.asarray(points, np.float64) - (left, top)) * self.size / (right - left, lower - top)
        if self.flip:
            made[..., 0] = self.size[0] - made[..., 0]
        return made
