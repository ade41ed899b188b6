"""Frozen descriptions of pixel operations: what is done, never how. `pixels` carries them out on a device.

An operation's numbers speak of pixels in [0, 1] (8-bit level / 255), as torchvision's do after `ToTensor`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError


@dataclass(frozen=True, slots=True)
class Normalize:
    """(pixel - mean) / std, with pixels in [0, 1] and one mean and std per channel (R, G, B), or one for all three."""

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _per_channel("mean", self.mean))
        object.__setattr__(self, "std", _per_channel("std", self.std))
        if min(self.std) <= 0:
            raise OptionError(f"std must be above 0, found {self.std}")

    @classmethod
    def imagenet(cls) -> Self:
        """The mean and standard deviation of ImageNet's pixels, which pretrained models expect."""
        return cls((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


Op = Normalize  # becomes a union as operations are added


def affine(ops: Sequence[Op]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scale and bias (float64, (3,) each) so that 8-bit level * scale + bias is what `ops` make; / 255 without any."""
    scale, bias = np.full(3, 1 / 255), np.zeros(3)
    for op in ops:
        scale, bias = scale / op.std, (bias - op.mean) / op.std
    return scale, bias


def _per_channel(name: str, values: Sequence[float]) -> tuple[float, float, float]:
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise OptionError(f"{name} must be 3 numbers (or 1 for all channels), found {values!r}") from None
    if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
        raise OptionError(f"{name} must be 3 finite numbers (or 1 for all channels), found {values!r}")
    red, green, blue = numbers * (3 // len(numbers))
    return red, green, blue
