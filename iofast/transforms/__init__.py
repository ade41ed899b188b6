"""The user's vocabulary, in torchvision's names and parameters: a list of these is a transform."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from iofast.ops import AugMix as AugMix
from iofast.ops import AutoAugment as AutoAugment
from iofast.ops import ColorJitter as ColorJitter
from iofast.ops import CutMix as CutMix
from iofast.ops import GaussianBlur as GaussianBlur
from iofast.ops import Grayscale as Grayscale
from iofast.ops import MixUp as MixUp
from iofast.ops import Normalize as Normalize
from iofast.ops import RandAugment as RandAugment
from iofast.ops import RandomAdjustSharpness as RandomAdjustSharpness
from iofast.ops import RandomAffine as RandomAffine
from iofast.ops import RandomApply as RandomApply
from iofast.ops import RandomAutocontrast as RandomAutocontrast
from iofast.ops import RandomChannelPermutation as RandomChannelPermutation
from iofast.ops import RandomChoice as RandomChoice
from iofast.ops import RandomEqualize as RandomEqualize
from iofast.ops import RandomErasing as RandomErasing
from iofast.ops import RandomGrayscale as RandomGrayscale
from iofast.ops import RandomHorizontalFlip as RandomHorizontalFlip
from iofast.ops import RandomInvert as RandomInvert
from iofast.ops import RandomOrder as RandomOrder
from iofast.ops import RandomPerspective as RandomPerspective
from iofast.ops import RandomPhotometricDistort as RandomPhotometricDistort
from iofast.ops import RandomPosterize as RandomPosterize
from iofast.ops import RandomRotation as RandomRotation
from iofast.ops import RandomSolarize as RandomSolarize
from iofast.ops import RandomVerticalFlip as RandomVerticalFlip
from iofast.ops import Solarize as Solarize
from iofast.ops import TrivialAugmentWide as TrivialAugmentWide
from iofast.ops import timm_policy as timm_policy
from iofast.transforms.buckets import ResizeToBucket as ResizeToBucket
from iofast.transforms.compiling import compile as compile
from iofast.transforms.elsewhere import hint as _hint
from iofast.transforms.geometry import CenterCrop as CenterCrop
from iofast.transforms.geometry import Pad as Pad
from iofast.transforms.geometry import RandomCrop as RandomCrop
from iofast.transforms.geometry import Resize as Resize
from iofast.transforms.pipeline import Pipeline as Pipeline
from iofast.transforms.pipeline import Transform as Transform
from iofast.transforms.presets import cifar as cifar
from iofast.transforms.presets import deit3 as deit3
from iofast.transforms.presets import detection_train as detection_train
from iofast.transforms.presets import evaluate as evaluate
from iofast.transforms.presets import five_crop as five_crop
from iofast.transforms.presets import segmentation_train as segmentation_train
from iofast.transforms.presets import ten_crop as ten_crop
from iofast.transforms.presets import three_augment as three_augment
from iofast.transforms.presets import timm_evaluate as timm_evaluate
from iofast.transforms.presets import timm_train as timm_train
from iofast.transforms.presets import torchvision_train as torchvision_train
from iofast.transforms.presets import train as train
from iofast.transforms.resized_crops import RandomResizedCrop as RandomResizedCrop
from iofast.transforms.resized_crops import ResizedCenterCrop as ResizedCenterCrop
from iofast.transforms.resizing import RandomResize as RandomResize
from iofast.transforms.resizing import RandomShortestSize as RandomShortestSize
from iofast.transforms.resizing import ResizeKeepRatio as ResizeKeepRatio
from iofast.transforms.resizing import ScaleJitter as ScaleJitter
from iofast.transforms.self_supervised import dino as dino
from iofast.transforms.self_supervised import dinov2 as dinov2
from iofast.transforms.self_supervised import mae as mae
from iofast.transforms.self_supervised import moco as moco
from iofast.transforms.self_supervised import moco_v3 as moco_v3
from iofast.transforms.self_supervised import simclr as simclr
from iofast.transforms.views import CornerCrop as CornerCrop
from iofast.transforms.views import Views as Views
from iofast.transforms.windows import RandomIoUCrop as RandomIoUCrop
from iofast.transforms.windows import RandomZoomOut as RandomZoomOut

if not TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> object:
        """Raise `AttributeError`; for a name of another library's transforms it says what takes its place here."""
        known = _hint(name)
        said = "" if known is None else f": {name} {known}"
        module = sys.modules[__name__]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{said}", name=name, obj=module)


__all__ = [
    "AugMix",
    "AutoAugment",
    "CenterCrop",
    "ColorJitter",
    "CornerCrop",
    "CutMix",
    "GaussianBlur",
    "Grayscale",
    "MixUp",
    "Normalize",
    "Pad",
    "Pipeline",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Resize",
    "ResizeKeepRatio",
    "ResizeToBucket",
    "ResizedCenterCrop",
    "ScaleJitter",
    "Solarize",
    "Transform",
    "TrivialAugmentWide",
    "Views",
    "cifar",
    "compile",
    "deit3",
    "detection_train",
    "dino",
    "dinov2",
    "evaluate",
    "five_crop",
    "mae",
    "moco",
    "moco_v3",
    "segmentation_train",
    "simclr",
    "ten_crop",
    "three_augment",
    "timm_evaluate",
    "timm_policy",
    "timm_train",
    "torchvision_train",
    "train",
]
