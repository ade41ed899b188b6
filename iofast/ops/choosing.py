"""Which operations are done to an image, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iofast.errors import OptionError
from iofast.ops.arguments import operation, probability
from iofast.ops.colours import Colour
from iofast.ops.finishing import CutMix, MixUp
from iofast.ops.moving import Move
from iofast.ops.policies import Policy


def _not_empty(name: str, value: object) -> Sequence[object]:
    if not isinstance(value, Sequence) or not value:
        raise OptionError(f"{name} must be a non-empty list, found {value!r}")
    return value


def _image_ops(name: str, value: object) -> tuple[object, ...]:
    for op in _not_empty(name, value):
        if not isinstance(op, ImageOp):
            raise OptionError(
                f"{name} must be operations on images such as ColorJitter, or RandomChoice, RandomApply or RandomOrder "
                f"of them, found {op!r}"
            )
    return tuple(value)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """One of several operations on images, or lists of them, for each image; `p` are their probabilities, or weights.

    Without `p` all are equally likely. An empty list changes nothing. The last choice of a transform may be between
    MixUp and CutMix.
    """

    transforms: Sequence[ImageOp | Sequence[ImageOp]] | Sequence[MixUp | CutMix]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        lists = _not_empty("RandomChoice: transforms", self.transforms)
        choices = tuple(tuple(each) if isinstance(each, Sequence) else (each,) for each in lists)
        object.__setattr__(self, "transforms", choices)
        if (ops := [op for each in choices for op in each]) and not self.mixes:
            _image_ops("RandomChoice: transforms", ops)
        try:
            weights = np.ones(len(choices)) if self.p is None else np.array(self.p, np.float64)
        except (TypeError, ValueError):
            weights = np.zeros(0)
        if weights.shape != (len(choices),) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
            expected = f"1 entry per transform ({len(choices)}), each 0 or more and not all 0"
            raise OptionError(f"RandomChoice: p must have {expected}, found {self.p!r}")
        shares = weights / weights.max()  # first: the sum of large weights may be infinite
        object.__setattr__(self, "p", tuple((shares / shares.sum()).tolist()))

    @property
    def mixes(self) -> bool:
        """Whether the choices are `MixUp` and `CutMix`."""
        return all(len(each) == 1 and isinstance(each[0], MixUp | CutMix) for each in self.transforms)  # type: ignore[arg-type,index]


@operation(transforms=_image_ops, p=probability)
class RandomApply:
    """All of several operations on images, with probability `p`, else none of them."""

    transforms: Sequence[ImageOp]
    p: float = 0.5


@operation(transforms=_image_ops)
class RandomOrder:
    """All of several operations on images, in a random order for each image."""

    transforms: Sequence[ImageOp]


Choosing = RandomChoice | RandomApply | RandomOrder
ImageOp = Colour | Move | Policy | Choosing
