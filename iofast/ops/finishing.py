"""Operations that turn levels into the values of a batch: normalisation, erasing, mixing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError
from iofast.ops.arguments import (
    above_zero,
    channels,
    check_fields,
    check_whole,
    operation,
    optional,
    positive_span,
    probability,
    span,
    whole,
)

MOST_RECTANGLES = 64  # of one RandomErasing


def _value(name: str, value: float | Sequence[float] | str) -> str | tuple[float, float, float]:
    if isinstance(value, str) and value in ("random", "color"):
        return value
    try:
        return channels(name, [value] if isinstance(value, int | float) else value)  # type: ignore[arg-type]
    except OptionError:
        expected = 'must be 1 or 3 finite numbers, "random" or "color"'
        raise OptionError(f"{name} {expected}, found {value!r}") from None


def _counts(name: str, count: int | Sequence[int]) -> tuple[int, int]:
    try:
        counts = (count, count) if isinstance(count, int) else count
        low, high = (check_whole(name, each, 1, MOST_RECTANGLES) for each in counts)
    except (TypeError, ValueError):  # an `OptionError` is a ValueError
        low, high = 1, 0
    if low > high:
        raise OptionError(f"{name} must be 1 to {MOST_RECTANGLES}, or (low, high) within that, found {count!r}")
    return low, high


@operation(mean=channels, std=channels, max_value=optional(above_zero))
class Normalize:
    """(pixel - mean) / std, with pixels in [0, 1] and one mean and std per channel (R, G, B), or one for all.

    `max_value` is the greatest pixel on the scale of mean and std: with 255 both are divided by 255. Without it both
    must be at most 1, because larger ones are almost always on a scale of 0 to 255.
    """

    mean: Sequence[float]
    std: Sequence[float]
    max_value: float | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if min(self.std) <= 0:
            raise OptionError(f"Normalize: std must be above 0, found {self.std}")
        if self.max_value is None and max(*self.mean, *self.std) > 1:
            raise OptionError(
                f"Normalize: mean and std must be of pixels in [0, 1], found {self.mean} and {self.std}; if they are "
                "of pixels from 0 to 255, give max_value=255 (max_value=1 takes them as they are)"
            )
        greatest = 1.0 if self.max_value is None else self.max_value
        object.__setattr__(self, "mean", tuple(value / greatest for value in self.mean))
        object.__setattr__(self, "std", tuple(value / greatest for value in self.std))
        object.__setattr__(self, "max_value", 1.0)  # a copy must not divide again

    @classmethod
    def imagenet(cls) -> Self:
        """The mean and standard deviation of ImageNet's pixels, which pretrained models expect."""
        return cls((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@operation(p=probability, scale=span, ratio=positive_span, value=_value, count=_counts)
class RandomErasing:
    """With probability `p`, fill a rectangle with `value`.

    `value` is one number, or one per channel; "random": a normal number for each pixel and channel (a sum of eight
    uniform ones, at most 4.9); "color": one colour of such numbers per rectangle. (timm's modes const, pixel and rand.)

    The rectangle has `scale` (low, high) of the image's area, evenly, and an aspect ratio (height / width) of `ratio`,
    evenly in its logarithm. After 10 rectangles that do not fit, nothing is erased. `count` rectangles, or a number of
    them drawn from (low, high), share the area.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | Literal["random", "color"] = 0.0
    count: int | Sequence[int] = 1

    def __post_init__(self) -> None:
        if self.scale[1] > 1:
            raise OptionError(f"RandomErasing: scale must be 0 to 1, found {self.scale}")

    @property
    def noisy(self) -> bool:
        """Whether each pixel is filled with another number."""
        return isinstance(self.value, str) and self.value == "random"

    @property
    def most(self) -> int:
        """The greatest number of rectangles."""
        return self.count[1]  # type: ignore[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixing:
    alpha: float = 1.0
    num_classes: int
    p: float = 1.0
    label_smoothing: float = 0.0
    until: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, alpha=above_zero, num_classes=whole(1), p=probability, until=optional(whole(0)))
        if not isinstance(self.label_smoothing, int | float) or not 0 <= self.label_smoothing < 1:
            name, found = type(self).__name__, repr(self.label_smoothing)
            raise OptionError(f"{name}: label_smoothing must be from 0 to below 1, found {found}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixUp(_Mixing):
    """Each image becomes share * own + (1 - share) * partner's, with `share` from Beta(alpha, alpha); labels likewise.

    The partner of position p is p XOR 1. Labels become float32 (N, num_classes); `label_smoothing` of each is spread
    evenly over all classes. An image is mixed with probability `p`, and only in epochs below `until`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMix(_Mixing):
    """A rectangle of each image is the partner's: 1 - Beta(alpha, alpha) of the area before it is cut at the edges.

    Labels are mixed in proportion. Everything else as of `MixUp`.
    """


@dataclass(frozen=True, slots=True)
class Mixes:
    """One of several mixes for each image, with the probabilities `p`: the compiled `RandomChoice` of mixes."""

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
    """Scale and bias of channels, float64 (2, 3): level * scale + bias is the pixel after the `Normalize` of `ops`."""
    scale, bias = np.full(3, 1 / 255), np.zeros(3)
    for op in ops:
        if isinstance(op, Normalize):
            mean, std = np.array(op.mean), np.array(op.std)
            scale, bias = scale / std, (bias - mean) / std
    return np.stack((scale, bias))


def erase_fill(op: RandomErasing, after: Sequence[object]) -> NDArray[np.float64]:
    """The constant part of a rectangle's fill in the finished image, normalised as `after` says: float64 (3,)."""
    scale, bias = affine(after)
    value = np.zeros(3) if isinstance(op.value, str) else np.asarray(op.value, np.float64)
    return np.asarray(value * 255 * scale + bias)


def fill_deviation(after: Sequence[object]) -> NDArray[np.float64]:
    """The size of a standard normal number in the finished image, normalised as `after` says: float64 (3,)."""
    return np.asarray(255 * affine(after)[0])


def noise_amounts(ops: Sequence[object]) -> NDArray[np.float64]:
    """The amount of noise in the fill of each rectangle of each `RandomErasing` of `ops`: float64 (erasings, 3)."""
    erasings = [(op, ops[place + 1 :]) for place, op in enumerate(ops) if isinstance(op, RandomErasing)]
    amounts = [fill_deviation(after) * op.noisy for op, after in erasings for _ in range(op.most)]
    return np.array(amounts, np.float64).reshape(-1, 3)
