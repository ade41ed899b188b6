"""The user's vocabulary, in torchvision's names and parameters: a list of these is a transform."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from iofast.ops import ColorJitter as ColorJitter
from iofast.ops import CutMix as CutMix
from iofast.ops import GaussianBlur as GaussianBlur
from iofast.ops import Grayscale as Grayscale
from iofast.ops import MixUp as MixUp
from iofast.ops import Normalize as Normalize
from iofast.ops import RandomAdjustSharpness as RandomAdjustSharpness
from iofast.ops import RandomApply as RandomApply
from iofast.ops import RandomAutocontrast as RandomAutocontrast
from iofast.ops import RandomChoice as RandomChoice
from iofast.ops import RandomEqualize as RandomEqualize
from iofast.ops import RandomErasing as RandomErasing
from iofast.ops import RandomGrayscale as RandomGrayscale
from iofast.ops import RandomInvert as RandomInvert
from iofast.ops import RandomOrder as RandomOrder
from iofast.ops import RandomPosterize as RandomPosterize
from iofast.ops import RandomSolarize as RandomSolarize
from iofast.ops import Solarize as Solarize
from iofast.transforms.buckets import ResizeToBucket as ResizeToBucket
from iofast.transforms.elsewhere import hint as _hint
from iofast.transforms.geometry import CenterCrop as CenterCrop
from iofast.transforms.geometry import RandomCrop as RandomCrop
from iofast.transforms.geometry import RandomHorizontalFlip as RandomHorizontalFlip
from iofast.transforms.geometry import RandomResizedCrop as RandomResizedCrop
from iofast.transforms.geometry import Resize as Resize
from iofast.transforms.pipeline import Pipeline as Pipeline
from iofast.transforms.pipeline import Transform as Transform
from iofast.transforms.pipeline import compile as compile
from iofast.transforms.presets import evaluate as evaluate
from iofast.transforms.presets import train as train

if not TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> object:
        """Raise `AttributeError`; for a name of another library's transforms it says what takes its place here."""
        known = _hint(name)
        said = "" if known is None else f": {name} {known}"
        module = sys.modules[__name__]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{said}", name=name, obj=module)


__all__ = [
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "GaussianBlur",
    "Grayscale",
    "MixUp",
    "Normalize",
    "Pipeline",
    "RandomAdjustSharpness",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomSolarize",
    "Resize",
    "ResizeToBucket",
    "Solarize",
    "Transform",
    "compile",
    "evaluate",
    "train",
]
