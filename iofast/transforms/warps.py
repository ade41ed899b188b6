"""Warps: where the pixels of a moved image come from, different for each image.

Coordinates are of pixel edges: the first pixel reaches from 0 to 1, and the middle of an image is half its size. The
matrices are torchvision's, from a point of the result to one of the image.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.transforms.transform import Floats
from iofast.work import NUMBERS, Step

Matrix = Sequence[Floats | float]  # a to h; missing ones are 0


def warp_by(op: Any, matrix: Matrix, rows: int) -> tuple[Step, NDArray[np.float32]]:
    """The step of a warp with the `interpolation` and `fill` of `op`, and its numbers (N, NUMBERS)."""
    step = Step.WARP_BILINEAR if op.interpolation == "bilinear" else Step.WARP_NEAREST
    numbers = np.zeros((rows, NUMBERS), np.float32)
    for lane, column in enumerate(matrix):
        numbers[:, lane] = column
    numbers[:, 8:11] = [255 * level for level in op.fill]
    return step, numbers


def turned(degrees: Floats, x: Floats, y: Floats) -> Matrix:
    """Counter-clockwise about (x, y)."""
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    return cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y


def perspective(to: Floats, start: Floats) -> Matrix:
    """The perspective that takes four points `start` (N, 4, 2) of an image to the points `to` of the result.

    Each pair of points gives two equations in a to h. An image stays as it is if its corners lie on a line.
    """
    x, y = to[..., 0], to[..., 1]
    ones, zeros = np.ones_like(x), np.zeros_like(x)
    across = np.stack((x, y, ones, zeros, zeros, zeros, -start[..., 0] * x, -start[..., 0] * y), axis=-1)
    down = np.stack((zeros, zeros, zeros, x, y, ones, -start[..., 1] * x, -start[..., 1] * y), axis=-1)
    system = np.concatenate((across, down), axis=1)
    wanted = np.concatenate((start[..., 0], start[..., 1]), axis=1)
    flat = np.abs(np.linalg.det(system)) < 1e-9
    system[flat] = np.eye(8)
    wanted[flat] = (1, 0, 0, 0, 1, 0, 0, 0)
    return tuple(np.linalg.solve(system, wanted[..., None])[..., 0].T)
