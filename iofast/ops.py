"""Frozen descriptions of pixel operations: what is done, never how. `pixels` carries them out on a device.

An operation's numbers speak of pixels in [0, 1] (8-bit level / 255), as torchvision's do after `ToTensor`. What is
random in one is drawn per sample by `transforms.drawing` and arrives as `work.Work`, a table of plain columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue changed by random factors, in random order.

    A number b stands for factors in [max(0, 1 - b), 1 + b], a pair for itself; of `hue` for shifts in [-h, h] of the
    whole circle, at most 0.5. 0 leaves it alone.
    """

    brightness: float | Sequence[float] = 0.0
    contrast: float | Sequence[float] = 0.0
    saturation: float | Sequence[float] = 0.0
    hue: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            object.__setattr__(self, name, _jitter(name, getattr(self, name), 1.0, (0.0, math.inf)))
        object.__setattr__(self, "hue", _jitter("hue", self.hue, 0.0, (-0.5, 0.5)))


@dataclass(frozen=True, slots=True)
class Grayscale:
    """Three equal channels of 0.2989 R + 0.587 G + 0.114 B. (Torchvision's default is one channel.)"""

    num_output_channels: int = 3

    def __post_init__(self) -> None:
        if self.num_output_channels != 3:
            raise OptionError(f"Grayscale: num_output_channels must be 3, found {self.num_output_channels!r}")


@dataclass(frozen=True, slots=True)
class RandomGrayscale:
    """`Grayscale` with probability `p`."""

    p: float = 0.1

    def __post_init__(self) -> None:
        _probability(self)


@dataclass(frozen=True, slots=True)
class Solarize:
    """Values at and above `threshold` (0 to 1; 128 of 8 bits is 128 / 255) are inverted, each channel by itself."""

    threshold: float

    def __post_init__(self) -> None:
        _threshold(self)


@dataclass(frozen=True, slots=True)
class RandomSolarize:
    """`Solarize(threshold)` with probability `p`."""

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        _threshold(self)
        _probability(self)


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """One of several operations on colours, or lists of them, for each image; `p` are their probabilities, or weights.

    Without `p` each is as likely as the others. An empty list changes nothing, as in torchvision's `RandomApply`.
    """

    transforms: Sequence[Colour | Sequence[Colour]]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.transforms, Sequence) or not self.transforms:
            raise OptionError(f"RandomChoice: transforms must be a list to choose from, found {self.transforms!r}")
        choices = [tuple(each) if isinstance(each, Sequence) else (each,) for each in self.transforms]
        if strange := [one for each in choices for one in each if not isinstance(one, Colour)]:
            raise OptionError(
                "RandomChoice: transforms must be ColorJitter, Grayscale, RandomGrayscale, Solarize or RandomSolarize,"
                f" or lists of them, found {strange[0]!r}"
            )
        weights = np.ones(len(choices)) if self.p is None else np.array(self.p, np.float64)
        if weights.shape != (len(choices),) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
            raise OptionError(f"RandomChoice: p must be {len(choices)} numbers from 0 on, not all 0, found {self.p!r}")
        object.__setattr__(self, "transforms", tuple(choices))
        shares = weights / weights.max()  # first: the sum of large weights may be infinite
        object.__setattr__(self, "p", tuple((shares / shares.sum()).tolist()))


@dataclass(frozen=True, slots=True)
class Normalize:
    """(pixel - mean) / std, with pixels in [0, 1] and one mean and std per channel (R, G, B), or one for all three.

    `max_value` is the largest pixel that mean and std speak of: with 255 both are divided by 255. Without it both must
    be at most 1, because larger ones are almost always those of pixels from 0 to 255.
    """

    mean: Sequence[float]
    std: Sequence[float]
    max_value: float | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        mean, std = _per_channel("Normalize: mean", self.mean), _per_channel("Normalize: std", self.std)
        if min(std) <= 0:
            raise OptionError(f"Normalize: std must be above 0, found {std}")
        largest = 1.0 if self.max_value is None else _largest(self.max_value)
        if self.max_value is None and max(*mean, *std) > 1:
            raise OptionError(
                f"Normalize: mean and std must be of pixels in [0, 1], found {mean} and {std}; if they are of pixels "
                "from 0 to 255, give max_value=255 (max_value=1 takes them as they are)"
            )
        object.__setattr__(self, "mean", tuple(value / largest for value in mean))
        object.__setattr__(self, "std", tuple(value / largest for value in std))
        object.__setattr__(self, "max_value", 1.0)  # from now on: a copy must not divide again

    @classmethod
    def imagenet(cls) -> Self:
        """The mean and standard deviation of ImageNet's pixels, which pretrained models expect."""
        return cls((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """With probability `p` a rectangle is filled with `value`: one number, or one per channel, or "random": normal
    numbers, others for each pixel and channel (the sum of eight even ones, so none beyond 4.9).

    It has `scale` (low, high) of the image's area, evenly, and an aspect ratio (height / width) of `ratio`, evenly in
    its logarithm. Where 10 of them do not fit in the image, nothing is erased.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | Literal["random"] = 0.0

    def __post_init__(self) -> None:
        _probability(self)
        object.__setattr__(self, "scale", span("RandomErasing: scale", self.scale))
        object.__setattr__(self, "ratio", span("RandomErasing: ratio", self.ratio))
        if self.scale[1] > 1 or self.ratio[0] == 0:
            raise OptionError(f"RandomErasing: scale is up to 1 and ratio above 0, found {self.scale} and {self.ratio}")
        if isinstance(self.value, str) and self.value == "random":
            return
        value = [self.value] if isinstance(self.value, int | float) else self.value
        object.__setattr__(self, "value", _per_channel("RandomErasing: value", value))

    @property
    def random(self) -> bool:
        """Whether it is filled with noise."""
        return isinstance(self.value, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixUp:
    """Each image share * own + (1 - share) * partner's, `share` from Beta(alpha, alpha); labels likewise.

    The partner of position p is p XOR 1. Labels become float32 (N, num_classes).
    """

    alpha: float = 1.0
    num_classes: int

    def __post_init__(self) -> None:
        _mix(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMix:
    """A rectangle of each image is the partner's, of 1 - Beta(alpha, alpha) of the area before it is cut at the edges;
    labels in proportion. Partner and labels as of `MixUp`."""

    alpha: float = 1.0
    num_classes: int

    def __post_init__(self) -> None:
        _mix(self)


Colour = ColorJitter | Grayscale | RandomGrayscale | Solarize | RandomSolarize
Mix = MixUp | CutMix
Op = Colour | RandomChoice | Normalize | RandomErasing | Mix


def affine(ops: Sequence[Op]) -> NDArray[np.float64]:
    """float64 (2, 3): scale and bias so that 8-bit level * scale + bias is what the `Normalize` of `ops` make; / 255
    without any."""
    scale, bias = np.full(3, 1 / 255), np.zeros(3)
    for op in ops:
        if isinstance(op, Normalize):
            scale, bias = scale / op.std, (bias - op.mean) / op.std
    return np.stack((scale, bias))


def erase_fill(op: RandomErasing, after: Sequence[Op]) -> NDArray[np.float64]:
    """What `op` fills a rectangle of the finished image with, float64 (3,): normalised as `after` says."""
    scale, bias = affine(after)
    value = np.zeros(3) if op.random else np.asarray(op.value, np.float64)
    return np.asarray(value * 255 * scale + bias)


def noise_amounts(ops: Sequence[Op]) -> NDArray[np.float64]:
    """How much noise each `RandomErasing` of `ops` adds to its fill, each channel, float64 (erasings, 3)."""
    after = [ops[place + 1 :] for place, op in enumerate(ops) if isinstance(op, RandomErasing)]
    erasings = [op for op in ops if isinstance(op, RandomErasing)]
    amounts = [255 * affine(rest)[0] * op.random for op, rest in zip(erasings, after, strict=True)]
    return np.array(amounts, np.float64).reshape(-1, 3)


def drawn(ops: Sequence[Op]) -> bool:
    """Whether something of `ops` is not the same for every image, or not one multiplication and addition."""
    return any(not isinstance(op, Normalize) for op in ops)


def span(name: str, values: Sequence[float]) -> Span:
    """(low, high) with 0 <= low <= high and 0 < high, finite, or `OptionError`."""
    try:
        low, high = (float(value) for value in values)
    except (TypeError, ValueError):
        raise OptionError(f"{name} must be (low, high), found {values!r}") from None
    if not 0 <= low <= high < math.inf or high == 0:
        raise OptionError(f"{name} must be 0 <= low <= high, found {values!r}")
    return low, high


def _jitter(name: str, value: float | Sequence[float], centre: float, limits: Span) -> Span:
    try:
        if isinstance(value, Sequence):
            low, high = (float(each) for each in value)
        else:
            width = float(value)
            low, high = max(centre - width, 0.0) if centre else -width, centre + width
    except (TypeError, ValueError):
        raise OptionError(f"ColorJitter: {name} must be a number or (low, high), found {value!r}") from None
    if not limits[0] <= low <= high <= limits[1] or high == math.inf:
        raise OptionError(f"ColorJitter: {name} must be within {limits[0]:g} and {limits[1]:g}, found {value!r}")
    return low, high


def _probability(op: RandomGrayscale | RandomSolarize | RandomErasing) -> None:
    if not isinstance(op.p, int | float) or not 0 <= op.p <= 1:
        raise OptionError(f"{type(op).__name__}: p must be 0 to 1, found {op.p!r}")


def _threshold(op: Solarize | RandomSolarize) -> None:
    if not isinstance(op.threshold, int | float) or not 0 <= op.threshold <= 1:
        raise OptionError(
            f"{type(op).__name__}: threshold must be 0 to 1, as pixels are (128 of 8 bits is 128 / 255), "
            f"found {op.threshold!r}"
        )


def _mix(op: Mix) -> None:
    name = type(op).__name__
    if not isinstance(op.alpha, int | float) or not 0 < op.alpha < math.inf:
        raise OptionError(f"{name}: alpha must be above 0, found {op.alpha!r}")
    try:
        object.__setattr__(op, "num_classes", index(op.num_classes))
    except TypeError:
        raise OptionError(f"{name}: num_classes must be a whole number, found {op.num_classes!r}") from None
    if op.num_classes < 1:
        raise OptionError(f"{name}: num_classes must be 1 or more, found {op.num_classes}")


def _largest(value: object) -> float:
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise OptionError(f"Normalize: max_value must be above 0, such as 255, found {value!r}")
    return float(value)


def _per_channel(name: str, values: Sequence[float]) -> tuple[float, float, float]:
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise OptionError(f"{name} must be 3 numbers (or 1 for all channels), found {values!r}") from None
    if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
        raise OptionError(f"{name} must be 3 finite numbers (or 1 for all channels), found {values!r}")
    red, green, blue = numbers * (3 // len(numbers))
    return red, green, blue
