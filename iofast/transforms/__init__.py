"""The user's vocabulary, in torchvision's names and parameters: a list of these is a transform."""

from iofast.ops import Normalize as Normalize
from iofast.transforms.buckets import ResizeToBucket as ResizeToBucket
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

__all__ = [
    "CenterCrop",
    "Normalize",
    "Pipeline",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "ResizeToBucket",
    "Transform",
    "compile",
    "evaluate",
    "train",
]
