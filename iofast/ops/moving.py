"""Operations that move the pixels of an image and keep its size."""

from __future__ import annotations

from collections.abc import Sequence

from iofast.errors import OptionError
from iofast.ops.arguments import (
    Span,
    between,
    colour,
    numbers,
    operation,
    optional,
    positive_span,
    probability,
    symmetric,
    warp_filter,
)


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


@operation(p=probability)
class RandomHorizontalFlip:
    """Mirror left and right with probability `p`.

    `alternating`: a sample that is mirrored in one epoch is not mirrored in the next. `p` is then the share of samples
    that is mirrored in epochs 0, 2, ….
    """

    p: float = 0.5
    alternating: bool = False


@operation(p=probability)
class RandomVerticalFlip:
    """Mirror top and bottom with probability `p`."""

    p: float = 0.5


@operation(degrees=symmetric, center=optional(numbers(2)), interpolation=warp_filter, fill=colour)
class RandomRotation:
    """Rotate counter-clockwise by an angle drawn evenly from `degrees` (one number d: from -d to d).

    `center` (x, y) is in pixels; the default is the middle of the image. The size stays, and the corners that become
    empty get the colour `fill` (0 to 1, one number or one per channel). `interpolation` is "nearest" or "bilinear".
    """

    degrees: float | Sequence[float]
    interpolation: str = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        if self.expand:
            raise OptionError("RandomRotation: expand must be False: all images of a batch have one size, found True")


@operation(
    degrees=symmetric,
    translate=optional(_shares, (0.0, 0.0)),
    scale=optional(positive_span, (1.0, 1.0)),
    shear=optional(_shear, (0.0, 0.0, 0.0, 0.0)),
    interpolation=warp_filter,
    fill=colour,
    center=optional(numbers(2)),
)
class RandomAffine:
    """Rotate, shift, scale and shear about the middle, each by an amount drawn evenly.

    `degrees` as of `RandomRotation`, but clockwise; `translate`: the largest shares of width and height to either side;
    `scale` (low, high); `shear` in degrees: s or (low, high) along x, or four numbers for x and y. `center`, `fill` and
    `interpolation` as of `RandomRotation`.
    """

    degrees: float | Sequence[float]
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: float | Sequence[float] | None = None
    interpolation: str = "nearest"
    fill: float | Sequence[float] = 0.0
    center: Sequence[float] | None = None


@operation(distortion_scale=between(0, 1), p=probability, interpolation=warp_filter, fill=colour)
class RandomPerspective:
    """With probability `p`, move each corner to a random place within `distortion_scale` of half the image.

    `fill` and `interpolation` as of `RandomRotation`.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: str = "bilinear"
    fill: float | Sequence[float] = 0.0


Move = RandomHorizontalFlip | RandomVerticalFlip | RandomRotation | RandomAffine | RandomPerspective
