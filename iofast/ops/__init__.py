"""Frozen descriptions of pixel operations: what is done, never how. `pixels` and the kernel do it.

An operation's numbers speak of pixels in [0, 1] (8-bit level / 255), as torchvision's do after `ToTensor`. What is
random in one is drawn per sample by `transforms.drawing` and arrives as `work.Work`, a table of plain columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from iofast.ops.arguments import MOST_FACTOR, MOST_REACH, probability, span
from iofast.ops.choosing import Choosing, ImageOp, RandomApply, RandomChoice, RandomOrder
from iofast.ops.colours import (
    ColorJitter,
    Colour,
    GaussianBlur,
    Grayscale,
    Luma,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomSolarize,
    Solarize,
)
from iofast.ops.finishing import (
    CutMix,
    Finishing,
    Mix,
    Mixes,
    MixUp,
    Normalize,
    RandomErasing,
    affine,
    erase_fill,
    fill_deviation,
    noise_amounts,
)
from iofast.ops.moving import (
    Move,
    RandomAffine,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomRotation,
    RandomVerticalFlip,
)
from iofast.ops.policies import (
    AugMix,
    AutoAugment,
    Policy,
    RandAugment,
    TimmAugment,
    TrivialAugmentWide,
)
from iofast.ops.timm_policy import timm_policy

__all__ = [
    "AugMix",
    "AutoAugment",
    "Choosing",
    "ColorJitter",
    "Colour",
    "CutMix",
    "GaussianBlur",
    "Grayscale",
    "ImageOp",
    "Luma",
    "MOST_FACTOR",
    "MOST_REACH",
    "Mix",
    "MixUp",
    "Mixes",
    "Move",
    "Normalize",
    "Op",
    "Policy",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomChoice",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Solarize",
    "TimmAugment",
    "TrivialAugmentWide",
    "affine",
    "drawn",
    "erase_fill",
    "fill_deviation",
    "noise_amounts",
    "probability",
    "span",
    "timm_policy",
]

Op = ImageOp | Finishing


def drawn(ops: Sequence[Op]) -> bool:
    """Whether something of `ops` is not the same for every image, or not one multiplication and addition."""
    return any(not isinstance(op, Normalize) for op in ops)
