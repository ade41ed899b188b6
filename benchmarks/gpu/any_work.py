"""Any work on pixels, with any numbers: whether two ways to do it give the same bits."""

from collections.abc import Sequence

import numpy as np

from iofast.work import NUMBERS, Step, Work

POOL = [0, 1, 0.5, -0.5, 2, 7.99, 8, 63, 1e9, -1, 3, 5, 9, 20.5, 128, 255, 256, -40, 0.001, np.inf, -np.inf, np.nan]


def any_numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """float32: usual numbers, and extreme ones."""
    return np.where(rng.random(shape) < 0.6, rng.normal(0, 2, shape), rng.choice(POOL, shape)).astype(np.float32)


def any_work(
    rng: np.random.Generator,
    count: int,
    size: tuple[int, int],
    steps: int,
    erasings: int,
    codes: Sequence[Step] = tuple(Step),
) -> Work:
    """Work for `count` images of `size`, with `steps` of `codes` each; some images are mixed."""
    corners = rng.integers(-3, max(size) + 3, (2, count, erasings + 1, 4))
    wild = rng.random(corners.shape) < 0.01
    corners = np.where(wild, rng.integers(-(2**31), 2**31, corners.shape), corners).astype(np.int32)
    partner = np.arange(count)
    for row in range(0, count - 1, 2):
        if rng.random() < 0.5:
            partner[row : row + 2] = row + 1, row
    return Work(
        steps=rng.choice(np.array(codes), (count, steps)).astype(np.int8),
        numbers=any_numbers(rng, count, steps, NUMBERS),
        erased=corners[0, :, 1:],
        fills=rng.normal(0, 1, (count, erasings, 3)).astype(np.float32),
        noise=rng.integers(0, 3, (count, erasings)).astype(np.int32) * 12345,
        partner=partner,
        share=rng.random(count).astype(np.float32),
        patch=np.ascontiguousarray(corners[1, :, 0]),
        own=np.ones(count, np.float32),
    )
