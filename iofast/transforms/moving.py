"""Operations that move the pixels of an image and keep its size."""

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from iofast.arguments import checked, optional
from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.transforms.arguments import (
    Span,
    between,
    colour,
    numbers,
    positive_span,
    probability,
    symmetric,
    warp_filter,
)
from iofast.transforms.transform import DrawnImages, Floats, ImageOp, Program, one_step
from iofast.transforms.warps import Matrix, perspective, turned, warp_by
from iofast.work import NUMBERS, Step


def _shares(name: str, value: Sequence[float]) -> Span:
    across, down = numbers(2)(name, value)
    if not 0 <= min(across, down) <= max(across, down) <= 1:
        raise OptionError(f"{name} must be two shares of 0 to 1, found {value!r}")
    return across, down


def _shear(name: str, value: float | Sequence[float]) -> tuple[float, ...]:
    """Low and high along x, then along y."""
    if isinstance(value, int | float):
        return *symmetric(name, value), 0.0, 0.0
    limits = (*numbers(2, 4)(name, value), 0.0, 0.0)
    return *symmetric(name, limits[:2]), *symmetric(name, limits[2:4])


class _Move(ImageOp):
    moves = True

    def always(self, matrix: Matrix, rows: int) -> Program:
        """A warp of all images."""
        step, of_step = warp_by(self, matrix, rows)
        return one_step(step, np.ones(rows, np.bool_), of_step)


class _Flip(_Move):
    """A flip of some images; `axis` is 0 for left and right, 1 for top and bottom."""

    axis: ClassVar[int]
    p: float

    def mirrored(self, draw: Draw, name: str) -> NDArray[np.bool_]:
        """The images that are mirrored, bool (N,)."""
        return draw.uniform(name)[:, 0] < self.p

    def draw(self, images: DrawnImages, name: str) -> Program:
        axes = np.zeros((len(images), NUMBERS), np.float32)
        axes[:, self.axis] = 1
        return one_step(Step.FLIP, self.mirrored(images.draw, name), axes)


@checked(p=probability)
class RandomHorizontalFlip(_Flip):
    """Mirror left and right with probability `p`.

    `alternating`: a sample that is mirrored in one epoch is not mirrored in the next. `p` is then the share of samples
    that is mirrored in epochs 0, 2, ….
    """

    drawn_as, axis = "horizontal flip", 0
    p: float = 0.5
    alternating: bool = False

    def mirrored(self, draw: Draw, name: str) -> NDArray[np.bool_]:
        if self.alternating:
            return (draw.of_sample("flip") < self.p) ^ (draw.epoch % 2 == 1)
        return draw.uniform(name)[:, 0] < self.p


@checked(p=probability)
class RandomVerticalFlip(_Flip):
    """Mirror top and bottom with probability `p`."""

    drawn_as, axis = "vertical flip", 1
    p: float = 0.5


@checked(degrees=symmetric, center=optional(numbers(2)), interpolation=warp_filter, fill=colour)
class RandomRotation(_Move):
    """Rotate counter-clockwise by an angle drawn evenly from `degrees` (one number d: from -d to d).

    `center` (x, y) is in pixels; the default is the middle of the image. The size stays, and the corners that become
    empty get the colour `fill` (0 to 1, one number or one per channel). `interpolation` is "nearest" or "bilinear".
    """

    drawn_as = "rotation"
    degrees: float | Sequence[float]
    interpolation: str = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        if self.expand:
            raise OptionError("RandomRotation: expand must be False: all images of a batch have one size, found True")

    def draw(self, images: DrawnImages, name: str) -> Program:
        angle = _in_range(self.degrees, images.draw.uniform(name)[:, 0])
        return self.always(turned(angle, *_centre(self, images)), len(images))


@checked(
    degrees=symmetric,
    translate=optional(_shares, (0.0, 0.0)),
    scale=optional(positive_span, (1.0, 1.0)),
    shear=optional(_shear, (0.0, 0.0, 0.0, 0.0)),
    interpolation=warp_filter,
    fill=colour,
    center=optional(numbers(2)),
)
class RandomAffine(_Move):
    """Rotate, shift, scale and shear about the middle, each by an amount drawn evenly.

    `degrees` as of `RandomRotation`, but clockwise; `translate`: the largest shares of width and height to either side;
    `scale` (low, high); `shear` in degrees: s or (low, high) along x, or four numbers for x and y. `center`, `fill` and
    `interpolation` as of `RandomRotation`.
    """

    drawn_as = "affine"
    degrees: float | Sequence[float]
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: float | Sequence[float] | None = None
    interpolation: str = "nearest"
    fill: float | Sequence[float] = 0.0
    center: Sequence[float] | None = None

    def draw(self, images: DrawnImages, name: str) -> Program:
        """Lanes: angle, shift across and down, scale, shear along x and y.

        The matrix is the inverse of shift * turn * shear * scale.
        """
        u = images.draw.uniform(name, 6)
        turn = np.deg2rad(_in_range(self.degrees, u[:, 0]))
        across, down = cast(Sequence[float], self.translate)
        right = np.rint((2 * u[:, 1] - 1) * across * images.widths)
        lower = np.rint((2 * u[:, 2] - 1) * down * images.heights)
        scale = _in_range(self.scale, u[:, 3])
        shears = cast(Sequence[float], self.shear)
        shear_x, shear_y = (np.deg2rad(_in_range(shears[2 * axis :], u[:, 4 + axis])) for axis in (0, 1))
        a = np.cos(turn - shear_y) / np.cos(shear_y)
        b = -np.cos(turn - shear_y) * np.tan(shear_x) / np.cos(shear_y) - np.sin(turn)
        c = np.sin(turn - shear_y) / np.cos(shear_y)
        d = -np.sin(turn - shear_y) * np.tan(shear_x) / np.cos(shear_y) + np.cos(turn)
        x, y = _centre(self, images)
        m = d / scale, -b / scale, -c / scale, a / scale
        from_x, from_y = x + right, y + lower
        matrix = m[0], m[1], x - m[0] * from_x - m[1] * from_y, m[2], m[3], y - m[2] * from_x - m[3] * from_y
        return self.always(matrix, len(images))


@checked(distortion_scale=between(0, 1), p=probability, interpolation=warp_filter, fill=colour)
class RandomPerspective(_Move):
    """With probability `p`, move each corner to a random place within `distortion_scale` of half the image.

    `fill` and `interpolation` as of `RandomRotation`.
    """

    drawn_as = "perspective"
    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: str = "bilinear"
    fill: float | Sequence[float] = 0.0

    def draw(self, images: DrawnImages, name: str) -> Program:
        """Lanes: whether, then x and y of the upper left, upper right, lower right and lower left corner."""
        u = images.draw.uniform(name, 9)
        w, h = images.widths, images.heights
        wide, high = (np.floor(self.distortion_scale * np.floor(side / 2)) + 1 for side in (w, h))
        x, y = np.floor(u[:, 1::2] * wide[:, None]), np.floor(u[:, 2::2] * high[:, None])
        x[:, 1:3] += (w - wide)[:, None]
        y[:, 2:] += (h - high)[:, None]
        zero = np.zeros_like(w)
        start_x, start_y = np.stack((zero, w - 1, w - 1, zero), axis=1), np.stack((zero, zero, h - 1, h - 1), axis=1)
        matrix = perspective(np.stack((x, y), axis=2), np.stack((start_x, start_y), axis=2))
        step, of_step = warp_by(self, matrix, len(images))
        return one_step(step, u[:, 0] < self.p, of_step)


def _in_range(limits: Any, u: Floats) -> Floats:
    low, high = limits[:2]
    return np.asarray(low + (high - low) * u)


def _centre(op: RandomRotation | RandomAffine, images: DrawnImages) -> tuple[Floats, Floats]:
    if op.center is None:
        return images.widths / 2, images.heights / 2
    return np.full(len(images), op.center[0]), np.full(len(images), op.center[1])
