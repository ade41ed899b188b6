"""Flips and warps: where the pixels of a moved image come from, different for each image.

Coordinates are of pixel edges: the first pixel reaches from 0 to 1, and the middle of an image is half its size. The
matrices are torchvision's, from a place in the result to one in the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.ops.moving import RandomAffine, RandomHorizontalFlip, RandomPerspective, RandomRotation, RandomVerticalFlip
from iofast.transforms.geometry import Column
from iofast.transforms.programs import DrawnImages, Program, one
from iofast.work import NUMBERS, Step

Matrix = Sequence[Column | float]  # a to h; missing ones are 0


def warp(matrix: Matrix, rows: int, fill: Sequence[float]) -> NDArray[np.float32]:
    """The numbers of a warp, (N, NUMBERS); `fill` is a colour of 0 to 255."""
    numbers = np.zeros((rows, NUMBERS), np.float32)
    for place, column in enumerate(matrix):
        numbers[:, place] = column
    numbers[:, 8:11] = fill
    return numbers


def warp_by(op: Any, matrix: Matrix, rows: int) -> tuple[Step, NDArray[np.float32]]:
    """The step of a warp with the `interpolation` and `fill` of `op`, and its numbers (N, NUMBERS)."""
    step = Step.WARP_BILINEAR if op.interpolation == "bilinear" else Step.WARP_NEAREST
    return step, warp(matrix, rows, [255 * level for level in op.fill])


def turned(degrees: Column, x: Column, y: Column) -> Matrix:
    """Counter-clockwise about (x, y)."""
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    return cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y


def mirrored(op: RandomHorizontalFlip | RandomVerticalFlip, draw: Draw, name: str) -> NDArray[np.bool_]:
    """The images that a flip mirrors, bool (N,)."""
    if isinstance(op, RandomHorizontalFlip) and op.alternating:
        return (draw.of_sample("flip") < op.p) ^ (draw.epoch % 2 == 1)
    return draw.uniform(name)[:, 0] < op.p


def flipped(op: RandomHorizontalFlip | RandomVerticalFlip, images: DrawnImages, name: str) -> Program:
    """The step of a flip."""
    own = np.zeros((len(images), NUMBERS), np.float32)
    own[:, int(isinstance(op, RandomVerticalFlip))] = 1
    return one(Step.FLIP, mirrored(op, images.draw, name), own)


def rotated(op: RandomRotation, images: DrawnImages, name: str) -> Program:
    """The step of a rotation."""
    angle = _within(op.degrees, images.draw.uniform(name)[:, 0])
    return _always(op, turned(angle, *_middle(op, images)), len(images))


def affine(op: RandomAffine, images: DrawnImages, name: str) -> Program:
    """Lanes: angle, shift across and down, scale, shear along x and y. The inverse of shift * turn * shear * scale."""
    u = images.draw.uniform(name, 6)
    turn = np.deg2rad(_within(op.degrees, u[:, 0]))
    across, down = cast(Sequence[float], op.translate)
    right = np.rint((2 * u[:, 1] - 1) * across * images.widths)
    lower = np.rint((2 * u[:, 2] - 1) * down * images.heights)
    scale = _within(op.scale, u[:, 3])
    shears = cast(Sequence[float], op.shear)
    shear_x, shear_y = (np.deg2rad(_within(shears[2 * lane :], u[:, 4 + lane])) for lane in (0, 1))
    a = np.cos(turn - shear_y) / np.cos(shear_y)
    b = -np.cos(turn - shear_y) * np.tan(shear_x) / np.cos(shear_y) - np.sin(turn)
    c = np.sin(turn - shear_y) / np.cos(shear_y)
    d = -np.sin(turn - shear_y) * np.tan(shear_x) / np.cos(shear_y) + np.cos(turn)
    x, y = _middle(op, images)
    m = d / scale, -b / scale, -c / scale, a / scale
    from_x, from_y = x + right, y + lower
    matrix = m[0], m[1], x - m[0] * from_x - m[1] * from_y, m[2], m[3], y - m[2] * from_x - m[3] * from_y
    return _always(op, matrix, len(images))


def perspective(op: RandomPerspective, images: DrawnImages, name: str) -> Program:
    """Lanes: whether, then x and y of the upper left, upper right, lower right and lower left corner."""
    u = images.draw.uniform(name, 9)
    w, h = images.widths, images.heights
    wide, high = (np.floor(op.distortion_scale * np.floor(side / 2)) + 1 for side in (w, h))
    x, y = np.floor(u[:, 1::2] * wide[:, None]), np.floor(u[:, 2::2] * high[:, None])
    x[:, 1:3] += (w - wide)[:, None]
    y[:, 2:] += (h - high)[:, None]
    zero = np.zeros_like(w)
    start_x, start_y = np.stack((zero, w - 1, w - 1, zero), axis=1), np.stack((zero, zero, h - 1, h - 1), axis=1)
    matrix = between(np.stack((x, y), axis=2), np.stack((start_x, start_y), axis=2))
    step, own = warp_by(op, matrix, len(images))
    return one(step, u[:, 0] < op.p, own)


def between(to: Column, start: Column) -> Matrix:
    """The perspective that takes four points `start` (N, 4, 2) of an image to the places `to` of the result.

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


def _always(op: RandomRotation | RandomAffine, matrix: Matrix, rows: int) -> Program:
    step, own = warp_by(op, matrix, rows)
    return one(step, np.ones(rows, np.bool_), own)


def _within(limits: Any, u: Column) -> Column:
    low, high = limits[:2]
    return np.asarray(low + (high - low) * u)


def _middle(op: RandomRotation | RandomAffine, images: DrawnImages) -> tuple[Column, Column]:
    if op.center is None:
        return images.widths / 2, images.heights / 2
    return np.full(len(images), op.center[0]), np.full(len(images), op.center[1])
