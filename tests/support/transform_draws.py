"""For the tests of transforms: plans and pixel work of many images, frequencies of draws, sets of images."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from kernel_images import jpeg
from numpy.typing import NDArray
from PIL import Image

from iofast import open_writer
from iofast import transforms as T
from iofast.choices import Draw
from iofast.transforms.transform import Op
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


def work_hash(op: Op) -> str:
    """A hash of the work of an operation, and of two more behind it: equal names before them change theirs."""
    pipeline = T.Pipeline(ops=(op, T.RandomGrayscale(0.5), T.RandomSolarize(0.5)))
    made = pipeline.work(Draw(7, 3, np.arange(16), samples=np.arange(16)), np.full(16, 64.0), np.full(16, 48.0))
    drawn = {name: getattr(made, name) for name in WORK_COLUMNS}
    drawn["numbers"] = drawn["numbers"][:, :, :12]  # those that a step of `Step` has
    # rounded, because sines and logarithms differ between machines
    columns = [np.rint(drawn[name] * 64.0).astype(np.int64).tobytes() for name in WORK_COLUMNS]
    return hashlib.sha256(b"".join(columns)).hexdigest()[:8]


def numbers_of(made: Work, step: Step, column: int | None = None) -> NDArray[np.float64]:
    """The numbers (n, NUMBERS) of a step, in any column or in one."""
    columns = slice(None) if column is None else column
    return made.numbers[:, columns][made.steps[:, columns] == step].astype(np.float64)


def share_of(made: Work, step: Step, column: int = 0) -> float:
    """The share of images with a step in a column."""
    return float((made.steps[:, column] == step).mean())


def equally_likely(counts: NDArray[np.int64]) -> bool:
    """Chi-square at about 0.1 %, by a normal distribution."""
    freedom = len(counts) - 1
    return bool(((counts - counts.mean()) ** 2 / counts.mean()).sum() < freedom + 3.1 * (2 * freedom) ** 0.5 + 3)


def write_smooth(path: Path, sizes: Iterable[tuple[int, int]]) -> Path:
    """An LMDB with a smooth JPEG of each (width, height), labelled 0, 1, …"""
    rng = np.random.default_rng(3)
    with open_writer(path) as writer:
        for label, size in enumerate(sizes):
            small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
            image = small.resize(size, Image.Resampling.BICUBIC)
            writer.write({"jpg": jpeg(np.asarray(image), quality=90), "cls": label})
    return path
