"""What makes levels the values of a batch: normalisation, erasing, mixing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError
from iofast.ops.arguments import per_channel, probability, span

MOST_RECTANGLES = 64  # that one RandomErasing erases


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
        mean, std = per_channel("Normalize: mean", self.mean), per_channel("Normalize: std", self.std)
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
    """With probability `p` a rectangle is filled with `value`: one number, or one per channel; "random": normal
    numbers, others for each pixel and channel (the sum of eight even ones, so none beyond 4.9); "color": one colour of
    such numbers for each rectangle. (timm's modes const, pixel and rand.)

    It has `scale` (low, high) of the image's area, evenly, and an aspect ratio (height / width) of `ratio`, evenly in
    its logarithm. Where 10 of them do not fit in the image, nothing is erased. `count` rectangles, or a number of them
    that is drawn from (low, high), share the area.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | Literal["random", "color"] = 0.0
    count: int | Sequence[int] = 1

    def __post_init__(self) -> None:
        probability(self)
        object.__setattr__(self, "scale", span("RandomErasing: scale", self.scale))
        object.__setattr__(self, "ratio", span("RandomErasing: ratio", self.ratio))
        if self.scale[1] > 1 or self.ratio[0] == 0:
            raise OptionError(f"RandomErasing: scale is up to 1 and ratio above 0, found {self.scale} and {self.ratio}")
        object.__setattr__(self, "count", _counts(self.count))
        if isinstance(self.value, str) and self.value in ("random", "color"):
            return
        value: Sequence[float] = [self.value] if isinstance(self.value, int | float) else self.value  # type: ignore[assignment]
        object.__setattr__(self, "value", per_channel("RandomErasing: value", value))

    @property
    def noisy(self) -> bool:
        """Whether each pixel is filled with another number."""
        return isinstance(self.value, str) and self.value == "random"

    @property
    def most(self) -> int:
        """Rectangles at most."""
        return self.count[1]  # type: ignore[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixing:
    alpha: float = 1.0
    num_classes: int
    p: float = 1.0
    label_smoothing: float = 0.0
    until: int | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.alpha, int | float) or not 0 < self.alpha < math.inf:
            raise OptionError(f"{name}: alpha must be above 0, found {self.alpha!r}")
        try:
            object.__setattr__(self, "num_classes", index(self.num_classes))
        except TypeError:
            raise OptionError(f"{name}: num_classes must be a whole number, found {self.num_classes!r}") from None
        if self.num_classes < 1:
            raise OptionError(f"{name}: num_classes must be 1 or more, found {self.num_classes}")
        probability(self)
        if not isinstance(self.label_smoothing, int | float) or not 0 <= self.label_smoothing < 1:
            raise OptionError(f"{name}: label_smoothing must be from 0 to below 1, found {self.label_smoothing!r}")
        if self.until is not None and (not isinstance(self.until, int) or self.until < 0):
            raise OptionError(f"{name}: until must be an epoch, 0 or later, found {self.until!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixUp(_Mixing):
    """Each image share * own + (1 - share) * partner's, `share` from Beta(alpha, alpha); labels likewise.

    The partner of position p is p XOR 1. Labels become float32 (N, num_classes); `label_smoothing` of each goes to all
    classes evenly. An image is mixed with probability `p`, and only in the epochs below `until` where that is given.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMix(_Mixing):
    """A rectangle of each image is the partner's, of 1 - Beta(alpha, alpha) of the area before it is cut at the edges;
    labels in proportion. Everything else as of `MixUp`."""


@dataclass(frozen=True, slots=True)
class Mixes:
    """One of several for each image, with the probabilities `p`: what `RandomChoice` of them is in a transform."""

    choices: tuple[MixUp | CutMix, ...]
    p: tuple[float, ...]

    def __post_init__(self) -> None:
        if len({(each.num_classes, each.label_smoothing) for each in self.choices}) > 1:
            raise OptionError(f"RandomChoice: num_classes and label_smoothing must be equal, found {self.choices}")

    @property
    def num_classes(self) -> int:
        return self.choices[0].num_classes

    @property
    def label_smoothing(self) -> float:
        return self.choices[0].label_smoothing


Mix = MixUp | CutMix | Mixes
Finishing = Normalize | RandomErasing | Mix


def affine(ops: Sequence[object]) -> NDArray[np.float64]:
    """float64 (2, 3): scale and bias so that 8-bit level * scale + bias is what the `Normalize` of `ops` make; / 255
    without any."""
    scale, bias = np.full(3, 1 / 255), np.zeros(3)
    for op in ops:
        if isinstance(op, Normalize):
            scale, bias = scale / op.std, (bias - op.mean) / op.std
    return np.stack((scale, bias))


def erase_fill(op: RandomErasing, after: Sequence[object]) -> NDArray[np.float64]:
    """What `op` fills a rectangle of the finished image with, float64 (3,): normalised as `after` says. Random numbers
    are added to that: see `fill_deviation`."""
    scale, bias = affine(after)
    value = np.zeros(3) if isinstance(op.value, str) else np.asarray(op.value, np.float64)
    return np.asarray(value * 255 * scale + bias)


def fill_deviation(after: Sequence[object]) -> NDArray[np.float64]:
    """What a standard normal number comes to in the finished image, float64 (3,), where `after` normalises it."""
    return np.asarray(255 * affine(after)[0])


def noise_amounts(ops: Sequence[object]) -> NDArray[np.float64]:
    """How much noise each rectangle of each `RandomErasing` of `ops` adds to its fill, each channel, float64
    (erasings, 3)."""
    erasings = [(op, ops[place + 1 :]) for place, op in enumerate(ops) if isinstance(op, RandomErasing)]
    amounts = [fill_deviation(after) * op.noisy for op, after in erasings for _ in range(op.most)]
    return np.array(amounts, np.float64).reshape(-1, 3)


def _counts(count: int | Sequence[int]) -> tuple[int, int]:
    try:
        low, high = (index(count),) * 2 if isinstance(count, int) else map(index, count)
    except (TypeError, ValueError):
        low = high = 0
    if not 1 <= low <= high <= MOST_RECTANGLES:
        found = f"found {count!r}"
        raise OptionError(f"RandomErasing: count must be 1 to {MOST_RECTANGLES}, or (low, high) of that, {found}")
    return low, high


def _largest(value: object) -> float:
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise OptionError(f"Normalize: max_value must be above 0, such as 255, found {value!r}")
    return float(value)
