"""Where the pixels of a moved image come from: the numbers of warps, each image its own.

Coordinates are of pixel edges: the first pixel reaches from 0 to 1, and the middle of an image is half its size. The
matrices are torchvision's, from a place in the result to one in the image.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.ops.moving import (
    Move,
    RandomAffine,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomRotation,
    RandomVerticalFlip,
    colour,
)
from iofast.transforms.geometry import Column
from iofast.transforms.programs import DrawnImages, Program, one
from iofast.work import NUMBERS, Step

Matrix = Sequence[Column | float]  # a to h; those left out are 0


def warp(matrix: Matrix, rows: int, fill: Sequence[float]) -> NDArray[np.float32]:
    """The numbers of a warp, (N, NUMBERS); `fill` is a colour of 0 to 255."""
    made = np.zeros((rows, NUMBERS), np.float32)
    for place, each in enumerate(matrix):
        made[:, place] = each
    made[:, 8:11] = fill
    return made


def turned(degrees: Column, x: Column, y: Column) -> Matrix:
    """Counter-clockwise about (x, y)."""
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    return cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y


def moved(op: Move, images: DrawnImages, name: str) -> Program:
    """The step that an operation is, with what is drawn for it under `name`."""
    if isinstance(op, RandomHorizontalFlip | RandomVerticalFlip):
        own = np.zeros((len(images), NUMBERS), np.float32)
        own[:, int(isinstance(op, RandomVerticalFlip))] = 1
        return one(Step.FLIP, mirrored(op, images.draw, name), own)
    always = np.ones(len(images), np.bool_)
    if isinstance(op, RandomRotation):
        u, (x, y) = images.draw.uniform(name)[:, 0], _middle(op, images)
        matrix = turned(_within(op.degrees, u), x, y)  # type: ignore[arg-type]
    elif isinstance(op, RandomAffine):
        matrix = _affine(op, images, name)
    else:
        lanes = images.draw.uniform(name, 9)
        always, matrix = lanes[:, 0] < op.p, _perspective(op, images, lanes[:, 1:])
    step = Step.WARP_BILINEAR if op.interpolation == "bilinear" else Step.WARP_NEAREST
    return one(step, always, warp(matrix, len(images), colour(op)))


def mirrored(op: RandomHorizontalFlip | RandomVerticalFlip, draw: Draw, name: str) -> NDArray[np.bool_]:
    """Which images a flip mirrors, bool (N,)."""
    if isinstance(op, RandomHorizontalFlip) and op.alternating:
        return (draw.of_sample("flip") < op.p) ^ (draw.epoch % 2 == 1)
    return draw.uniform(name)[:, 0] < op.p


def _within(limits: Sequence[float], u: Column) -> Column:
    return np.asarray(limits[0] + (limits[1] - limits[0]) * u)


def _middle(op: RandomRotation | RandomAffine, images: DrawnImages) -> tuple[Column, Column]:
    if op.center is None:
        return images.widths / 2, images.heights / 2
    return np.full(len(images), op.center[0]), np.full(len(images), op.center[1])


def _affine(op: RandomAffine, images: DrawnImages, name: str) -> Matrix:
    """Lanes: angle, shift across and down, scale, shear along x and y. The inverse of shift * turn * shear * scale."""
    u = images.draw.uniform(name, 6)
    turn = np.deg2rad(_within(op.degrees, u[:, 0]))  # type: ignore[arg-type]
    across, down = op.translate  # type: ignore[misc]
    right = np.rint((2 * u[:, 1] - 1) * across * images.widths)
    lower = np.rint((2 * u[:, 2] - 1) * down * images.heights)
    scale = _within(op.scale, u[:, 3])  # type: ignore[arg-type]
    shears: Sequence[float] = op.shear  # type: ignore[assignment]
    shear_x, shear_y = (np.deg2rad(_within(shears[2 * lane :], u[:, 4 + lane])) for lane in (0, 1))
    a = np.cos(turn - shear_y) / np.cos(shear_y)
    b = -np.cos(turn - shear_y) * np.tan(shear_x) / np.cos(shear_y) - np.sin(turn)
    c = np.sin(turn - shear_y) / np.cos(shear_y)
    d = -np.sin(turn - shear_y) * np.tan(shear_x) / np.cos(shear_y) + np.cos(turn)
    x, y = _middle(op, images)
    m = d / scale, -b / scale, -c / scale, a / scale
    from_x, from_y = x + right, y + lower
    return m[0], m[1], x - m[0] * from_x - m[1] * from_y, m[2], m[3], y - m[2] * from_x - m[3] * from_y


def _perspective(op: RandomPerspective, images: DrawnImages, u: Column) -> Matrix:
    """Lanes: x and y of the upper left, upper right, lower right and lower left corner."""
    w, h = images.widths, images.heights
    wide, high = (np.floor(op.distortion_scale * np.floor(side / 2)) + 1 for side in (w, h))
    x, y = np.floor(u[:, 0::2] * wide[:, None]), np.floor(u[:, 1::2] * high[:, None])
    x[:, 1:3] += (w - wide)[:, None]
    y[:, 2:] += (h - high)[:, None]
    zero = np.zeros_like(w)
    start_x, start_y = np.stack((zero, w - 1, w - 1, zero), axis=1), np.stack((zero, zero, h - 1, h - 1), axis=1)
    return between(np.stack((x, y), axis=2), np.stack((start_x, start_y), axis=2))


def between(to: Column, start: Column) -> Matrix:
    """The perspective that takes four points `start` (N, 4, 2) of an image to the places `to` of the result.

    Each pair of points gives two equations in a to h; images whose corners lie on a line stay as they are.
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
