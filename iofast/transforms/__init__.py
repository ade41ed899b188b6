"""The user's vocabulary, with torchvision's names and parameters: a list of these is a transform."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from iofast.errors import did_you_mean as _did_you_mean
from iofast.transforms.buckets import ResizeToBucket
from iofast.transforms.choosing import RandomApply, RandomChoice, RandomOrder
from iofast.transforms.colours import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
    Solarize,
)
from iofast.transforms.compiling import compile
from iofast.transforms.crops import CenterCrop, CornerCrop, Pad, RandomCrop
from iofast.transforms.elsewhere import HINTS as _HINTS
from iofast.transforms.erasing import RandomErasing
from iofast.transforms.mixing import CutMix, MixUp
from iofast.transforms.moving import (
    RandomAffine,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomRotation,
    RandomVerticalFlip,
)
from iofast.transforms.normalize import Normalize
from iofast.transforms.pipeline import Pipeline
from iofast.transforms.policies import AutoAugment, RandAugment, TrivialAugmentWide
from iofast.transforms.presets import dino, evaluate, simclr, timm_train, train
from iofast.transforms.resized_crops import RandomResizedCrop, ResizedCenterCrop
from iofast.transforms.resizing import RandomResize, RandomShortestSize, Resize, ResizeKeepRatio, ScaleJitter
from iofast.transforms.timm_policy import timm_policy
from iofast.transforms.transform import Transform
from iofast.transforms.views import Views

if not TYPE_CHECKING:  # type checkers would otherwise accept any name

    def __getattr__(name: str) -> object:
        """Raise `AttributeError` with what to use instead, for another library's name or a mistyped one."""
        advice = f": {name} {_HINTS[name]}" if name in _HINTS else _did_you_mean(name, __all__)
        module = sys.modules[__name__]  # given without `name=`, or Python would guess again, in terminals only
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}", obj=module)


__all__ = [
    "AutoAugment", "CenterCrop", "ColorJitter", "CornerCrop", "CutMix", "GaussianBlur", "Grayscale", "MixUp",
    "Normalize", "Pad", "Pipeline", "RandAugment", "RandomAdjustSharpness", "RandomAffine", "RandomApply",
    "RandomAutocontrast", "RandomChannelPermutation", "RandomChoice", "RandomCrop", "RandomEqualize", "RandomErasing",
    "RandomGrayscale", "RandomHorizontalFlip", "RandomInvert", "RandomOrder", "RandomPerspective", "RandomPosterize",
    "RandomResize", "RandomResizedCrop", "RandomRotation", "RandomShortestSize", "RandomSolarize", "RandomVerticalFlip",
    "Resize", "ResizeKeepRatio", "ResizeToBucket", "ResizedCenterCrop", "ScaleJitter", "Solarize", "Transform",
    "TrivialAugmentWide", "Views", "compile", "dino", "evaluate", "simclr", "timm_policy", "timm_train", "train",
]  # fmt: skip
