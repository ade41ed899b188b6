"""Boxes: what is cut out of each image and resampled, as rows (…, 8) of int32 with these columns.

X0 Y0 X1 Y1    the region, in pixels of the upright image
WIDTH HEIGHT   of the resampled region; without a transform of fixed size also of the output
LEFT TOP       the corner of the output window in that

A box of zeros stands for an image of unknown size; the kernel then reports what is wrong with it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

X0, Y0, X1, Y1, WIDTH, HEIGHT, LEFT, TOP = range(8)
COLUMNS = 8
REGION, SIZE, CORNER = slice(X0, WIDTH), slice(WIDTH, LEFT), slice(LEFT, COLUMNS)


def whole(widths: NDArray[Any], heights: NDArray[Any]) -> NDArray[np.int32]:
    """Return the boxes of whole images that are not resampled, int32 (N, 8)."""
    boxes = np.zeros((len(widths), COLUMNS), np.int32)
    for column, values in ((X1, widths), (Y1, heights), (WIDTH, widths), (HEIGHT, heights)):
        boxes[:, column] = values
    return boxes


def output_sizes(boxes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return height and width, at least 1, of what each box makes without a fixed size, int64 (N, 2)."""
    return np.maximum(boxes[:, [HEIGHT, WIDTH]], 1).astype(np.int64)


def fits(boxes: NDArray[np.int32], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Whether each window of `size` (height, width) lies within the resampled image of its box (…, 8): bool (…)."""
    corner = boxes[..., CORNER]
    return np.asarray(((corner >= 0) & (corner <= boxes[..., SIZE] - np.array(size[::-1]))).all(axis=-1))


def within(boxes: NDArray[np.int32], size: tuple[int, int]) -> NDArray[np.int32]:
    """Return `boxes` (…, 8) with windows of `size` (height, width) moved into the resampled images where they fit."""
    moved = boxes.copy()
    moved[..., CORNER] = np.clip(boxes[..., CORNER], 0, np.maximum(boxes[..., SIZE] - np.array(size[::-1]), 0))
    return moved
