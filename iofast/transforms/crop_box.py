"""CropBox: the part of a stored image that became a sample, for its boxes, points and masks."""

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iofast.boxes import HEIGHT, WIDTH, within
from iofast.work import Edge, Step, beyond

Steps = tuple[tuple[int, tuple[float, ...]], ...]

_MOVING_STEPS = (Step.WARP_NEAREST, Step.WARP_BILINEAR, Step.FLIP, Step.PAD)


class CropBox(NamedTuple):
    """A part of an image that was cut out, resampled to a size, perhaps mirrored, and then moved by steps.

    box          left, top, right and lower edge in pixels of the upright stored image; fractions after a Resize
    size         width and height of the result
    flip         whether it was mirrored left and right
    orientation  the EXIF orientation of the stored image, 1 if it was upright
    steps        the steps that moved pixels after that, in order: codes of `iofast.work.Step` and their numbers
    """

    box: tuple[float, float, float, float]
    size: tuple[int, int]
    flip: bool = False
    orientation: int = 1
    steps: Steps = ()

    @classmethod
    def of(cls, row: NDArray[np.int32], size: tuple[int, int] | None, *, flip: bool, orientation: int) -> Self:
        """The crop of one row of `Pipeline.plan`; `size` is (height, width), None if the row holds it."""
        height, width = size or row[[HEIGHT, WIDTH]].tolist()
        left, top, right, lower, wide, high, x, y = within(row, (height, width)).tolist()  # a PAD step adds the rest
        across, down = (right - left) / wide, (lower - top) / high  # pixels of the image for one of the result
        box = left + x * across, top + y * down, left + (x + width) * across, top + (y + height) * down
        return cls(box, (width, height), flip, orientation)

    def then(self, codes: NDArray[np.int8], numbers: NDArray[np.float32]) -> Self:
        """The same crop, then those of the steps (S,) and their numbers (S, NUMBERS) that move pixels."""
        moving = [row for row, code in enumerate(codes.tolist()) if code in _MOVING_STEPS]
        return self._replace(steps=tuple((int(codes[row]), tuple(numbers[row].tolist())) for row in moving))

    def point(self, x: float, y: float) -> tuple[float, float]:
        """`points` for one point, in plain numbers."""
        if self.steps:
            x, y = self.points((x, y)).tolist()
            return x, y
        left, top, right, lower = self.box
        x, y = (x - left) * self.size[0] / (right - left), (y - top) * self.size[1] / (lower - top)
        return self.size[0] - x if self.flip else x, y

    def points(self, points: ArrayLike) -> NDArray[np.float64]:
        """The points in the result of `points` (x, y) of the upright stored image: float64 of the same shape, (…, 2).

        Points that were cut off lie outside of 0 to `size`. Sort the corners of a box afterwards, as it may be
        mirrored; use all four corners if it may be rotated or sheared.
        """
        left, top, right, lower = self.box
        moved = (np.asarray(points, np.float64) - (left, top)) * self.size / (right - left, lower - top)
        if self.flip:
            moved[..., 0] = self.size[0] - moved[..., 0]
        for code, own in self.steps:
            moved = self._moved(moved, code, own)
        return moved

    def _moved(self, points: NDArray[np.float64], code: int, own: tuple[float, ...]) -> NDArray[np.float64]:
        if code == Step.PAD:
            return points - own[:2]
        if code == Step.FLIP:
            mirrored = np.array(self.size) - points
            return np.where([own[0] != 0, own[1] != 0], mirrored, points)
        projected = np.concatenate((points, np.ones_like(points[..., :1])), axis=-1) @ np.linalg.inv(_matrix(own)).T
        return np.asarray(projected[..., :2] / projected[..., 2:])

    def mask(self, mask: NDArray[Any], fill: float = 0) -> NDArray[Any]:
        """The mask of the result, (height, width, …), from a `mask` (H, W) or (H, W, …) of the upright stored image.

        Each pixel is the nearest one of the mask; `fill` where there is none.
        """
        wide, high = self.size
        # one row and one column, broadcast: enough for most crops
        x: NDArray[np.float64] = np.arange(wide, dtype=np.float64)[None] + 0.5
        y: NDArray[np.float64] = np.arange(high, dtype=np.float64)[:, None] + 0.5
        inside = np.ones((1, 1), np.bool_)
        for code, own in reversed(self.steps):
            x, y, within = self._before(x, y, code, own)
            inside = inside & within
        left, top, right, lower = self.box
        x = wide - x if self.flip else x
        columns = np.floor(left + x * (right - left) / wide).astype(np.int64)
        rows = np.floor(top + y * (lower - top) / high).astype(np.int64)
        inside = inside & (columns >= 0) & (columns < mask.shape[1]) & (rows >= 0) & (rows < mask.shape[0])
        nearest = mask[np.clip(rows, 0, mask.shape[0] - 1), np.clip(columns, 0, mask.shape[1] - 1)]
        inside = inside.reshape(*inside.shape, *[1] * (mask.ndim - 2))
        return np.asarray(np.where(inside, nearest, np.asarray(fill, mask.dtype)))

    def _before(
        self, x: NDArray[np.float64], y: NDArray[np.float64], code: int, own: tuple[float, ...]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """The points before a step, and which of them lie in the image."""
        wide, high = self.size
        if code == Step.FLIP:
            return wide - x if own[0] else x, high - y if own[1] else y, np.ones((1, 1), np.bool_)
        if code == Step.PAD:
            columns = beyond(np.floor(x + own[0]).astype(np.int64), int(own[2]), Edge(int(own[4])))
            rows = beyond(np.floor(y + own[1]).astype(np.int64), int(own[3]), Edge(int(own[4])))
            return columns.astype(np.float64) + 0.5, rows.astype(np.float64) + 0.5, (columns >= 0) & (rows >= 0)
        m = _matrix(own)
        below = m[2, 0] * x + m[2, 1] * y + 1
        x, y = (m[0, 0] * x + m[0, 1] * y + m[0, 2]) / below, (m[1, 0] * x + m[1, 1] * y + m[1, 2]) / below
        return x, y, (x >= 0) & (x < wide) & (y >= 0) & (y < high)


def _matrix(own: tuple[float, ...]) -> NDArray[np.float64]:
    """The matrix of a warp, from a point (x, y, 1) of its result to one of its input."""
    return np.array([*own[:8], 1.0]).reshape(3, 3)
