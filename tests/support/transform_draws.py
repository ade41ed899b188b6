"""Plans and pixel work of many images, for the tests of transforms, and how often something is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iofast import transforms as T
from iofast.choices import Draw
from iofast.work import Step, Work

N = 20_000
MANY = Draw(4, 1, np.arange(N), samples=np.arange(N))
WIDTH, HEIGHT = 64, 48
FREQUENCY = 2 / math.sqrt(N)  # four standard deviations of a frequency
WORK_COLUMNS = ("steps", "numbers", "fills", "erased", "share", "patch", "own", "noise")


def work(*ops: T.Transform, draw: Draw = MANY, width: int = WIDTH, height: int = HEIGHT) -> Work:
    """The pixel work of images of one size."""
    return T.compile(ops).work(draw, np.full(len(draw), width), np.full(len(draw), height))


def plan(
    transforms: Sequence[T.Transform], images: Sequence[tuple[int, int]], seed: int = 0, epoch: int = 0
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Boxes and flips for images of these (width, height) at positions 0, 1, …"""
    widths, heights = np.array(images, np.int32).T
    boxes, flips = T.compile(transforms).plan(Draw(seed, epoch, np.arange(len(images))), widths, heights)
    assert (boxes.dtype, flips.dtype) == (np.int32, np.uint8)
    assert (boxes.shape, flips.shape) == ((len(images), 8), (len(images),))
    return boxes, flips


def numbers_of(made: Work, step: Step, column: int | None = None) -> NDArray[np.float64]:
    """The numbers (n, NUMBERS) of a step, wherever it is or in one column."""
    columns = slice(None) if column is None else column
    return made.numbers[:, columns][made.steps[:, columns] == step].astype(np.float64)


def share_of(made: Work, step: Step, column: int = 0) -> float:
    """The share of images with a step in a column."""
    return float((made.steps[:, column] == step).mean())


def equally_likely(counts: NDArray[np.int64]) -> bool:
    """Chi-square at about 0.1 %, by a normal distribution."""
    freedom = len(counts) - 1
    return bool(((counts - counts.mean()) ** 2 / counts.mean()).sum() < freedom + 3.1 * (2 * freedom) ** 0.5 + 3)
