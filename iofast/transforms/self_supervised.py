"""Transforms of recipes for learning without labels: MAE, SimCLR, MoCo, DINO.

Sources: arXiv 2111.06377, 2002.05709, 2003.04297, 2104.02057 and 2104.14294, with their authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence

from iofast.ops import ImageOp, Normalize
from iofast.ops.choosing import RandomApply
from iofast.ops.colours import ColorJitter, GaussianBlur, RandomGrayscale, RandomSolarize
from iofast.ops.moving import RandomHorizontalFlip
from iofast.transforms.pipeline import Transform
from iofast.transforms.resized_crops import RandomResizedCrop
from iofast.transforms.views import Views

_BLUR = GaussianBlur(17, (0.1, 2.0))  # Pillow's of radius 0.1 to 2: four standard deviations to each side
_JITTER = ColorJitter(0.4, 0.4, 0.2, 0.1)  # of MoCo v3 and DINO


def mae(size: int = 224) -> list[Transform]:
    """The pretraining of masked autoencoders."""
    crop = RandomResizedCrop(size, scale=(0.2, 1.0), interpolation="bicubic")
    return [crop, RandomHorizontalFlip(), Normalize.imagenet()]


def simclr(size: int = 224, strength: float = 1.0) -> list[Transform]:
    """One view of SimCLR."""
    jitter = ColorJitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    kernel = size // 10 // 2 * 2 + 1
    return _view(RandomResizedCrop(size), jitter, [RandomApply([GaussianBlur(kernel, (0.1, 2.0))], 0.5)])


def moco(size: int = 224) -> list[Transform]:
    """One view of MoCo v2."""
    crop, jitter = RandomResizedCrop(size, scale=(0.2, 1.0)), ColorJitter(0.4, 0.4, 0.4, 0.1)
    return _view(crop, jitter, [RandomApply([_BLUR], 0.5)])


def moco_v3(size: int = 224, scale: Sequence[float] = (0.08, 1.0)) -> Views:
    """MoCo v3's two views, "first" and "second"."""
    return Views(**_two_views(RandomResizedCrop(size, scale)))


def dino(
    size: int = 224,
    local_size: int = 96,
    local: int = 8,
    scale: Sequence[float] = (0.4, 1.0),
    local_scale: Sequence[float] = (0.05, 0.4),
) -> Views:
    """DINO's two global views, "first" and "second", and `local` smaller ones."""
    crop, small = (
        RandomResizedCrop(side, shares, interpolation="bicubic")
        for side, shares in ((size, scale), (local_size, local_scale))
    )
    return Views(**_two_views(crop), local=(local, _view(small, _JITTER, [RandomApply([_BLUR], 0.5)])))


def dinov2(size: int = 224, local_size: int = 98, local: int = 8) -> Views:
    """DINOv2's views: `dino` with other scales."""
    return dino(size, local_size, local, (0.32, 1.0), (0.05, 0.32))


def _two_views(crop: RandomResizedCrop) -> dict[str, list[Transform]]:
    second: list[ImageOp] = [RandomApply([_BLUR], 0.1), RandomSolarize(128 / 255, 0.2)]
    return {"first": _view(crop, _JITTER, [_BLUR]), "second": _view(crop, _JITTER, second)}


def _view(crop: RandomResizedCrop, jitter: ColorJitter, after: list[ImageOp]) -> list[Transform]:
    colours: list[ImageOp] = [RandomApply([jitter], 0.8), RandomGrayscale(0.2), *after]
    return [crop, RandomHorizontalFlip(), *colours, Normalize.imagenet()]
