"""Normalisation, and the values of pixels after it."""

from collections.abc import Sequence
from dataclasses import field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from iofast.arguments import checked, optional
from iofast.errors import OptionError
from iofast.transforms.arguments import above_zero, channels
from iofast.transforms.transform import Op, Stage


@checked(mean=channels, std=channels, max_value=optional(above_zero))
class Normalize(Op):
    """(pixel - mean) / std, with pixels in [0, 1] and one mean and std per channel (R, G, B), or one for all.

    `max_value` is the greatest pixel on the scale of mean and std: with 255 both are divided by 255. Without it both
    must be at most 1, because larger ones are almost always on a scale of 0 to 255.
    """

    stage = Stage.VALUE
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


def scale_and_bias(ops: Sequence[object]) -> NDArray[np.float64]:
    """Scale and bias of channels, float64 (2, 3): level * scale + bias is the pixel after the `Normalize` of `ops`."""
    scale, bias = np.full(3, 1 / 255), np.zeros(3)
    for op in ops:
        if isinstance(op, Normalize):
            mean, std = np.array(op.mean), np.array(op.std)
            scale, bias = scale / std, (bias - mean) / std
    return np.stack((scale, bias))
