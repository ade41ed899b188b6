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


def apart(memory: Pixels, sizes: Sizes) -> list[Pixels]:
    """One array (height, width, 3) for each image, one behind the other in `memory`, uint8 of `apart_bytes(sizes)`."""
    parts = np.split(memory, np.cumsum(3 * sizes.prod(axis=1)))
    return [part.reshape(height, width, 3) for part, (height, width) in zip(parts, sizes.tolist(), strict=False)]


def apart_bytes(sizes: Sizes) -> int:
    """The bytes of all images, without padding."""
    return int(3 * sizes.prod(axis=1).sum())
