"""Which operations are done to an image, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iofast.errors import OptionError
from iofast.ops.arguments import probability
from iofast.ops.colours import Colour
from iofast.ops.finishing import CutMix, MixUp
from iofast.ops.moving import Move
from iofast.ops.policies import Policy


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """One of several operations on images, or lists of them, for each image; `p` are their probabilities, or weights.

    Without `p` each is as likely as the others. An empty list changes nothing. Of MixUp and CutMix, too, one may be
    chosen, at the end of a transform.
    """

    transforms: Sequence[ImageOp | Sequence[ImageOp]] | Sequence[MixUp | CutMix]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        choices = [tuple(each) if isinstance(each, Sequence) else (each,) for each in _list(self, self.transforms)]
        object.__setattr__(self, "transforms", tuple(choices))
        if not self.mixes:
            for each in choices:
                _checked(self, each)
        weights = np.ones(len(choices)) if self.p is None else np.array(self.p, np.float64)
        if weights.shape != (len(choices),) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
            raise OptionError(f"RandomChoice: p must be {len(choices)} numbers from 0 on, not all 0, found {self.p!r}")
        shares = weights / weights.max()  # first: the sum of large weights may be infinite
        object.__setattr__(self, "p", tuple((shares / shares.sum()).tolist()))

    @property
    def mixes(self) -> bool:
        """Whether what is chosen mixes images."""
        return all(len(each) == 1 and isinstance(each[0], MixUp | CutMix) for each in self.transforms)  # type: ignore[arg-type,index]


@dataclass(frozen=True, slots=True)
class RandomApply:
    """All of several operations on images, with probability `p`, else none of them."""

    transforms: Sequence[ImageOp]
    p: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", _checked(self, _list(self, self.transforms)))
        probability(self)


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """All of several operations on images, in an order that is drawn for each image."""

    transforms: Sequence[ImageOp]

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", _checked(self, _list(self, self.transforms)))


Choosing = RandomChoice | RandomApply | RandomOrder
ImageOp = Colour | Move | Policy | Choosing


def _list(op: Choosing, transforms: object) -> Sequence[ImageOp]:
    if not isinstance(transforms, Sequence) or not transforms:
        raise OptionError(f"{type(op).__name__}: transforms must be a list with something in it, found {transforms!r}")
    return transforms


def _checked(op: Choosing, transforms: Sequence[object]) -> tuple[object, ...]:
    if strange := [one for one in transforms if not isinstance(one, ImageOp)]:
        raise OptionError(
            f"{type(op).__name__}: transforms must be operations on images such as ColorJitter, or RandomChoice, "
            f"RandomApply or RandomOrder of them, found {strange[0]!r}"
        )
    return tuple(transforms)
