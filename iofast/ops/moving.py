"""Operations that move the pixels of an image and keep its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iofast.errors import OptionError
from iofast.ops.arguments import (
    Span,
    WithProbability,
    between,
    check_fields,
    colour,
    numbers,
    optional,
    positive_span,
    probability,
    symmetric,
    warp_filter,
)


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip:
    """Mirror left and right with probability `p`.

    `alternating`: a sample that is mirrored in one epoch is not mirrored in the next. `p` is then the share of samples
    that is mirrored in epochs 0, 2, ….
    """

    p: float = 0.5
    alternating: bool = False

    def __post_init__(self) -> None:
        check_fields(self, p=probability)


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip(WithProbability):
    """Mirror top and bottom with probability `p`."""


@dataclass(frozen=True, slots=True)
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
        check_fields(self, degrees=symmetric, center=optional(numbers(2)), interpolation=warp_filter, fill=colour)


@dataclass(frozen=True, slots=True)
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

    def __post_init__(self) -> None:
        for field, neutral in (("translate", (0.0, 0.0)), ("scale", (1.0, 1.0)), ("shear", (0.0, 0.0))):
            if getattr(self, field) is None:
                object.__setattr__(self, field, neutral)
        check_fields(self, degrees=symmetric, translate=_shares, scale=positive_span, shear=_shear)
        check_fields(self, center=optional(numbers(2)), interpolation=warp_filter, fill=colour)


@dataclass(frozen=True, slots=True)
class RandomPerspective:
    """With probability `p`, move each corner to a random place within `distortion_scale` of half the image.

    `fill` and `interpolation` as of `RandomRotation`.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: str = "bilinear"
    fill: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        check_fields(self, distortion_scale=between(0, 1), p=probability, interpolation=warp_filter, fill=colour)


Move = RandomHorizontalFlip | RandomVerticalFlip | RandomRotation | RandomAffine | RandomPerspective


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
