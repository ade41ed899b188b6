"""Frozen descriptions of pixel operations: what is done, never how. `pixels` and the kernel do it.

An operation's numbers speak of pixels in [0, 1] (8-bit level / 255), as torchvision's do after `ToTensor`. What is
random in one is drawn per sample by `transforms.drawing` and arrives as `work.Work`, a table of plain columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from iofast.ops.checks import MOST_FACTOR, MOST_REACH, span
from iofast.ops.choosing import Choosing, Level, RandomApply, RandomChoice, RandomOrder
from iofast.ops.colours import (
    ColorJitter,
    Colour,
    GaussianBlur,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
    Solarize,
)
from iofast.ops.finishing import (
    CutMix,
    Finishing,
    Mix,
    MixUp,
    Normalize,
    RandomErasing,
    affine,
    erase_fill,
    noise_amounts,
)

__all__ = [
    "MOST_FACTOR",
    "MOST_REACH",
    "Choosing",
    "ColorJitter",
    "Colour",
    "CutMix",
    "GaussianBlur",
    "Grayscale",
    "Level",
    "Mix",
    "MixUp",
    "Normalize",
    "Op",
    "RandomAdjustSharpness",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomInvert",
    "RandomOrder",
    "RandomPosterize",
    "RandomSolarize",
    "Solarize",
    "affine",
    "drawn",
    "erase_fill",
    "noise_amounts",
    "span",
]

Op = Level | Finishing


def drawn(ops: Sequence[Op]) -> bool:
    """Whether something of `ops` is not the same for every image, or not one multiplication and addition."""
    return any(not isinstance(op, Normalize) for op in ops)
