"""Operations that move the pixels of an image, and leave its size as it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from iofast.errors import OptionError
from iofast.ops.arguments import Span, interpolation_name, per_channel, probability, span


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip:
    """Mirror left and right with probability `p`.

    `alternating`: a sample that is mirrored in one epoch is not in the next, so that two epochs show both; `p` is then
    the share that is mirrored in epochs 0, 2, ….
    """

    p: float = 0.5
    alternating: bool = False

    def __post_init__(self) -> None:
        probability(self)


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip:
    """Mirror top and bottom with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        probability(self)


@dataclass(frozen=True, slots=True)
class RandomRotation:
    """A turn by an angle drawn evenly from `degrees`, counter-clockwise (one number d: from -d to d).

    `center` (x, y) in pixels is the image's own where it is not given. The size stays: what is turned out of the image
    is lost, and what is turned into it has the colour `fill` (0 to 1, one number or one for each channel).
    `interpolation` is "nearest" or "bilinear".
    """

    degrees: float | Sequence[float]
    interpolation: str = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "degrees", _around("RandomRotation: degrees", self.degrees))
        if self.expand:
            raise OptionError("RandomRotation: expand must be False: all images of a batch have one size, found True")
        _center(self)
        sampling(self)


@dataclass(frozen=True, slots=True)
class RandomAffine:
    """A turn, a shift, a change of scale and a shear about the middle, each drawn evenly.

    `degrees` as of `RandomRotation`, but clockwise; `translate`: the largest shares of width and height to either side;
    `scale` (low, high); `shear` in degrees: s or (low, high) along x, or four numbers for x and y. `center`, `fill` and
    `interpolation` as there.
    """

    degrees: float | Sequence[float]
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: float | Sequence[float] | None = None
    interpolation: str = "nearest"
    fill: float | Sequence[float] = 0.0
    center: Sequence[float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "degrees", _around("RandomAffine: degrees", self.degrees))
        shares = (0.0, 0.0) if self.translate is None else _numbers("RandomAffine: translate", self.translate, (2,))
        if not all(0 <= share <= 1 for share in shares):
            raise OptionError(f"RandomAffine: translate must be two shares of 0 to 1, found {self.translate!r}")
        object.__setattr__(self, "translate", shares)
        object.__setattr__(self, "scale", (1.0, 1.0) if self.scale is None else span("RandomAffine: scale", self.scale))
        if self.scale[0] == 0:  # type: ignore[index]
            raise OptionError(f"RandomAffine: scale must be above 0, found {self.scale!r}")
        object.__setattr__(self, "shear", _shear(self.shear))
        _center(self)
        sampling(self)


@dataclass(frozen=True, slots=True)
class RandomPerspective:
    """With probability `p` each corner is drawn to an even place within `distortion_scale` of half the image.

    `fill` and `interpolation` as of `RandomRotation`.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: str = "bilinear"
    fill: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.distortion_scale, int | float) or not 0 <= self.distortion_scale <= 1:
            raise OptionError(f"RandomPerspective: distortion_scale must be 0 to 1, found {self.distortion_scale!r}")
        probability(self)
        sampling(self)


Move = RandomHorizontalFlip | RandomVerticalFlip | RandomRotation | RandomAffine | RandomPerspective


class _Resampled(Protocol):
    @property
    def interpolation(self) -> str: ...

    @property
    def fill(self) -> float | Sequence[float]: ...


class _Centred(Protocol):
    @property
    def center(self) -> Sequence[float] | None: ...


def colour(op: _Resampled) -> tuple[float, float, float]:
    """The colour that an operation fills with, levels of 0 to 255."""
    red, green, blue = op.fill  # type: ignore[misc]
    return 255 * red, 255 * green, 255 * blue


def sampling(op: _Resampled) -> None:
    """Check and normalise `interpolation` and `fill`."""
    name, given = type(op).__name__, op.interpolation
    kind = interpolation_name(given)
    if kind not in ("nearest", "bilinear"):
        raise OptionError(f"{name}: interpolation must be nearest or bilinear, found {given!r}")
    object.__setattr__(op, "interpolation", kind)
    object.__setattr__(op, "fill", filling(name, op.fill))


def filling(name: str, fill: float | Sequence[float] | None) -> tuple[float, float, float]:
    """Three numbers of 0 to 1, or `OptionError`; None is black."""
    values = [fill] if isinstance(fill, int | float) else [0.0] if fill is None else fill
    made = per_channel(f"{name}: fill", values)
    if not all(0 <= value <= 1 for value in made):
        raise OptionError(f"{name}: fill must be 0 to 1, as pixels are (128 of 8 bits is 128 / 255), found {fill!r}")
    return made


def _center(op: _Centred) -> None:
    if op.center is not None:
        object.__setattr__(op, "center", _numbers(f"{type(op).__name__}: center", op.center, (2,)))


def _around(name: str, value: float | Sequence[float]) -> Span:
    """(low, high); one number d stands for -d to d."""
    if isinstance(value, int | float):
        if not 0 <= value < math.inf:
            raise OptionError(f"{name} must be a number from 0 on, or (low, high), found {value!r}")
        return -float(value), float(value)
    low, high = _numbers(name, value, (2,))
    if low > high:
        raise OptionError(f"{name} must be low <= high, found {value!r}")
    return low, high


def _shear(value: float | Sequence[float] | None) -> tuple[float, ...]:
    """Low and high along x, then along y."""
    if value is None:
        return 0.0, 0.0, 0.0, 0.0
    if isinstance(value, int | float):
        return *_around("RandomAffine: shear", value), 0.0, 0.0
    numbers = (*_numbers("RandomAffine: shear", value, (2, 4)), 0.0, 0.0)
    return *_around("RandomAffine: shear", numbers[:2]), *_around("RandomAffine: shear", numbers[2:4])


def _numbers(name: str, values: Sequence[float], counts: Sequence[int]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) not in counts or not all(map(math.isfinite, numbers)):
        raise OptionError(f"{name} must be {' or '.join(map(str, counts))} finite numbers, found {values!r}")
    return numbers
