"""Batches whose images differ in size: how large each is, and where in memory it goes. Nothing here decodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Sizes = NDArray[np.int64]  # (N, 2): height and width
Pixels = NDArray[np.uint8]


def output_sizes(boxes: NDArray[np.int32]) -> Sizes:
    """Height and width of what each row of `boxes` makes, int64 (N, 2), where the pipeline has no fixed size.

    At least 1: an image of unknown size has a box of zeros, and the kernel says of it what is wrong.
    """
    return np.maximum(boxes[:, 5:3:-1], 1).astype(np.int64)


def pad_to_largest(sizes: Sizes) -> tuple[int, int]:
    """The height and width that all of `sizes` fit in; (1, 1) where there are none."""
    height, width = sizes.max(axis=0, initial=1).tolist()
    return height, width


def padded(out: Pixels, sizes: Sizes) -> list[Pixels]:
    """The top left corner of each image of `out`, uint8 (N, height, width, 3) of any strides; the rest becomes 0."""
    corners = []
    for image, (height, width) in zip(out, sizes.tolist(), strict=True):
        image[height:] = 0
        image[:height, width:] = 0
        corners.append(image[:height, :width])
    return corners


def apart(memory: Pixels, sizes: Sizes) -> list[Pixels]:
    """One array (height, width, 3) for each image, one behind the other in `memory`, uint8 of `apart_bytes(sizes)`."""
    parts = np.split(memory, np.cumsum(3 * sizes.prod(axis=1)))
    return [part.reshape(height, width, 3) for part, (height, width) in zip(parts, sizes.tolist(), strict=False)]


def apart_bytes(sizes: Sizes) -> int:
    """The bytes of all images, without padding."""
    return int(3 * sizes.prod(axis=1).sum())
