"""Which operations on levels are done to an image, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iofast.errors import OptionError
from iofast.ops.checks import probability
from iofast.ops.colours import Colour


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """One of several operations on colours, or lists of them, for each image; `p` are their probabilities, or weights.

    Without `p` each is as likely as the others. An empty list changes nothing.
    """

    transforms: Sequence[Level | Sequence[Level]]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        choices = [tuple(each) if isinstance(each, Sequence) else (each,) for each in _list(self, self.transforms)]
        for each in choices:
            _levels(self, each)
        weights = np.ones(len(choices)) if self.p is None else np.array(self.p, np.float64)
        if weights.shape != (len(choices),) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
            raise OptionError(f"RandomChoice: p must be {len(choices)} numbers from 0 on, not all 0, found {self.p!r}")
        object.__setattr__(self, "transforms", tuple(choices))
        shares = weights / weights.max()  # first: the sum of large weights may be infinite
        object.__setattr__(self, "p", tuple((shares / shares.sum()).tolist()))


@dataclass(frozen=True, slots=True)
class RandomApply:
    """All of several operations on colours, with probability `p`, else none of them."""

    transforms: Sequence[Level]
    p: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", _levels(self, _list(self, self.transforms)))
        probability(self)


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """All of several operations on colours, in an order that is drawn for each image."""

    transforms: Sequence[Level]

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", _levels(self, _list(self, self.transforms)))


Choosing = RandomChoice | RandomApply | RandomOrder
Level = Colour | Choosing


def _list(op: Choosing, transforms: object) -> Sequence[Level]:
    if not isinstance(transforms, Sequence) or not transforms:
        raise OptionError(f"{type(op).__name__}: transforms must be a list with something in it, found {transforms!r}")
    return transforms


def _levels(op: Choosing, transforms: Sequence[object]) -> tuple[object, ...]:
    if strange := [one for one in transforms if not isinstance(one, Level)]:
        raise OptionError(
            f"{type(op).__name__}: transforms must be operations on colours such as ColorJitter, or RandomChoice, "
            f"RandomApply or RandomOrder of them, found {strange[0]!r}"
        )
    return tuple(transforms)
