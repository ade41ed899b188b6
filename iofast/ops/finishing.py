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
from iofast.ops.checks import per_channel, probability, span


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
        probability(self)
        object.__setattr__(self, "scale", span("RandomErasing: scale", self.scale))
        object.__setattr__(self, "ratio", span("RandomErasing: ratio", self.ratio))
        if self.scale[1] > 1 or self.ratio[0] == 0:
            raise OptionError(f"RandomErasing: scale is up to 1 and ratio above 0, found {self.scale} and {self.ratio}")
        if isinstance(self.value, str) and self.value == "random":
            return
        value = [self.value] if isinstance(self.value, int | float) else self.value
        object.__setattr__(self, "value", per_channel("RandomErasing: value", value))

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


Mix = MixUp | CutMix
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
    """What `op` fills a rectangle of the finished image with, float64 (3,): normalised as `after` says."""
    scale, bias = affine(after)
    value = np.zeros(3) if op.random else np.asarray(op.value, np.float64)
    return np.asarray(value * 255 * scale + bias)


def noise_amounts(ops: Sequence[object]) -> NDArray[np.float64]:
    """How much noise each `RandomErasing` of `ops` adds to its fill, each channel, float64 (erasings, 3)."""
    after = [ops[place + 1 :] for place, op in enumerate(ops) if isinstance(op, RandomErasing)]
    erasings = [op for op in ops if isinstance(op, RandomErasing)]
    amounts = [255 * affine(rest)[0] * op.random for op, rest in zip(erasings, after, strict=True)]
    return np.array(amounts, np.float64).reshape(-1, 3)


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
