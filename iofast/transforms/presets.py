"""Transforms that most image classifiers are trained and evaluated with: each function returns a plain list."""

from __future__ import annotations

from iofast.ops import Normalize
from iofast.transforms.geometry import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from iofast.transforms.pipeline import Transform


def train(size: int = 224) -> list[Transform]:
    """Random resized crop to `size` x `size`, flip, ImageNet's normalisation."""
    return [RandomResizedCrop(size), RandomHorizontalFlip(), Normalize.imagenet()]


def evaluate(size: int = 224, resize: int | None = None) -> list[Transform]:
    """Short side to `resize`, centre crop of `size` x `size`, ImageNet's normalisation.

    `resize` is 256 for 224, and in the same proportion for other sizes, unless it is given.
    """
    return [Resize(round(size * 256 / 224) if resize is None else resize), CenterCrop(size), Normalize.imagenet()]
