"""Transforms of well-known training and evaluation recipes: each function returns a plain list.

Sources: torchvision's references/classification and references/segmentation, timm's create_transform, DeiT III
(arXiv 2204.07118), and airbench for CIFAR. Recipes for learning without labels are in self_supervised.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from iofast.errors import OptionError
from iofast.ops import ImageOp, Normalize, RandomErasing
from iofast.ops.choosing import RandomApply, RandomChoice
from iofast.ops.colours import ColorJitter, GaussianBlur, Grayscale, RandomGrayscale, RandomPhotometricDistort, Solarize
from iofast.ops.moving import RandomHorizontalFlip, RandomVerticalFlip
from iofast.ops.policies import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from iofast.ops.timm_policy import timm_policy
from iofast.transforms.geometry import CenterCrop, RandomCrop, Resize
from iofast.transforms.pipeline import Transform
from iofast.transforms.resized_crops import RandomResizedCrop
from iofast.transforms.resizing import RandomResize, RandomShortestSize, ResizeKeepRatio, ScaleJitter
from iofast.transforms.views import PLACES, CornerCrop, Views
from iofast.transforms.windows import RandomIoUCrop, RandomZoomOut

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def train(size: int = 224) -> list[Transform]:
    """Random resized crop to `size` x `size`, flip, ImageNet's normalisation."""
    return [RandomResizedCrop(size), RandomHorizontalFlip(), Normalize.imagenet()]


def evaluate(size: int = 224, resize: int | None = None, interpolation: str = "bilinear") -> list[Transform]:
    """Short side to `resize`, centre crop of `size` x `size`, ImageNet's normalisation.

    The default `resize` is 256 / 224 of `size`.
    """
    short = round(size * 256 / 224) if resize is None else resize
    return [Resize(short, interpolation), CenterCrop(size), Normalize.imagenet()]


def torchvision_train(
    size: int = 224,
    *,
    auto_augment: str | None = None,
    random_erase: float = 0.0,
    interpolation: str = "bilinear",
    ra_magnitude: int = 9,
    augmix_severity: int = 3,
) -> list[Transform]:
    """The transform of torchvision's references/classification/train.py with its options of these names.

    `auto_augment`: "ra", "ta_wide", "augmix", or a policy of AutoAugment ("imagenet", "cifar10", "svhn").
    """
    crop: list[Transform] = [RandomResizedCrop(size, interpolation=interpolation), RandomHorizontalFlip()]
    warp = interpolation if interpolation in ("nearest", "bilinear") else "bilinear"
    policy: list[Transform] = []
    if auto_augment == "ra":
        policy = [RandAugment(magnitude=ra_magnitude, interpolation=warp)]
    elif auto_augment == "ta_wide":
        policy = [TrivialAugmentWide(interpolation=warp)]
    elif auto_augment == "augmix":
        policy = [AugMix(severity=augmix_severity, interpolation=warp)]
    elif auto_augment is not None:
        policy = [AutoAugment(auto_augment, interpolation=warp)]
    erasing = [RandomErasing(random_erase)] if random_erase else []
    return [*crop, *policy, Normalize.imagenet(), *erasing]


def timm_train(  # noqa: PLR0913  timm's own options
    size: int | Sequence[int] = 224,
    *,
    train_crop_mode: str = "rrc",
    scale: Sequence[float] | None = None,
    ratio: Sequence[float] | None = None,
    hflip: float = 0.5,
    vflip: float = 0.0,
    color_jitter: float | Sequence[float] | None = 0.4,
    color_jitter_prob: float | None = None,
    force_color_jitter: bool = False,
    grayscale_prob: float = 0.0,
    gaussian_blur_prob: float = 0.0,
    auto_augment: str | None = None,
    interpolation: str = "random",
    mean: Sequence[float] = _MEAN,
    std: Sequence[float] = _STD,
    re_prob: float = 0.0,
    re_mode: str = "const",
    re_count: int = 1,
) -> list[Transform]:
    """The transform of `timm.data.create_transform(size, is_training=True, …)` with its options of these names.

    `auto_augment` is one of the strings of `timm_policy`.
    """
    listed = _timm_crop(size, train_crop_mode, scale, ratio, interpolation)
    if hflip:
        listed.append(RandomHorizontalFlip(hflip))
    if vflip:
        listed.append(RandomVerticalFlip(vflip))
    if auto_augment is not None:
        listed.append(timm_policy(auto_augment, fill=mean))
    if color_jitter and (auto_augment is None or force_color_jitter or "3a" in auto_augment):
        factors = (color_jitter,) * 3 if isinstance(color_jitter, int | float) else color_jitter
        jitter = ColorJitter(*factors)
        listed.append(jitter if color_jitter_prob is None else RandomApply([jitter], color_jitter_prob))
    if grayscale_prob:
        listed.append(RandomGrayscale(grayscale_prob))
    if gaussian_blur_prob:
        listed.append(RandomApply([GaussianBlur(23)], gaussian_blur_prob))
    listed.append(Normalize(mean, std))
    if re_prob:
        listed.append(_timm_erasing(re_prob, re_mode, re_count))
    return listed


def _timm_crop(
    size: int | Sequence[int],
    mode: str,
    scale: Sequence[float] | None,
    ratio: Sequence[float] | None,
    interpolation: str,
) -> list[Transform]:
    if mode == "rrc":
        return [RandomResizedCrop(size, scale or (0.08, 1.0), ratio or (3 / 4, 4 / 3), interpolation)]
    if mode not in ("rkrc", "rkrr"):
        raise OptionError(f"timm_train: train_crop_mode must be rrc, rkrc or rkrr, found {mode!r}")
    resize = ResizeKeepRatio(
        size,
        interpolation=interpolation,
        random_scale_prob=0.5,
        random_scale_range=scale or (0.8, 1.0),
        random_scale_area=True,
        random_aspect_prob=0.5,
        random_aspect_range=ratio or (0.9, 1 / 0.9),
    )
    crop = CenterCrop if mode == "rkrc" else RandomCrop
    return [resize, crop(size, pad_if_needed=True, padding_mode="reflect")]


def _timm_erasing(p: float, mode: str, count: int) -> RandomErasing:
    values: dict[str, float | str] = {"const": 0.0, "rand": "color", "pixel": "random"}
    if not isinstance(mode, str) or mode not in values:
        raise OptionError(f"timm_train: re_mode must be const, rand or pixel, found {mode!r}")
    return RandomErasing(p, (0.02, 1 / 3), (0.3, 1 / 0.3), values[mode], (1, count))  # type: ignore[arg-type]


def timm_evaluate(
    size: int = 224,
    *,
    crop_pct: float = 0.875,
    crop_mode: str = "center",
    interpolation: str = "bilinear",
    mean: Sequence[float] = _MEAN,
    std: Sequence[float] = _STD,
) -> list[Transform]:
    """The transform of `timm.data.create_transform(size, is_training=False, …)` with its options of these names."""
    short, normalize = math.floor(size / crop_pct), Normalize(mean, std)
    if crop_mode == "squash":
        return [Resize((short, short), interpolation), CenterCrop(size), normalize]
    if crop_mode == "border":
        fitted = ResizeKeepRatio(short, longest=1.0, interpolation=interpolation)
        return [fitted, CenterCrop(size, pad_if_needed=True, fill=mean), normalize]
    if crop_mode != "center":
        raise OptionError(f"timm_evaluate: crop_mode must be center, squash or border, found {crop_mode!r}")
    return [Resize(short, interpolation), CenterCrop(size), normalize]


def three_augment() -> RandomChoice:
    """DeiT III's 3-Augment: gray, inverted bright levels, or blurred."""
    choices: list[ImageOp] = [Grayscale(), Solarize(128 / 255), GaussianBlur(17, (0.1, 2.0))]
    return RandomChoice(choices)


def deit3(size: int = 224, *, color_jitter: float = 0.3, simple: bool = False) -> list[Transform]:
    """DeiT III's training; `simple` is its simple random crop, for ImageNet-21k."""
    crop: list[Transform] = [RandomResizedCrop(size, interpolation="bicubic")]
    if simple:
        crop = [Resize(size, "bicubic"), RandomCrop(size, padding=4, padding_mode="reflect")]
    jitter = [ColorJitter(color_jitter, color_jitter, color_jitter)] if color_jitter else []
    return [*crop, RandomHorizontalFlip(), three_augment(), *jitter, Normalize.imagenet()]


def cifar(size: int = 32, padding: int = 2) -> list[Transform]:
    """airbench's: shift by up to `padding`, mirrored at the edges, with flips that alternate from epoch to epoch."""
    return [
        RandomCrop(size, padding=padding, padding_mode="reflect"),
        RandomHorizontalFlip(alternating=True),
        Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ]


def segmentation_train(size: int = 480, base: int = 520) -> list[Transform]:
    """torchvision's references/segmentation: short side 0.5 to 2 times `base`, padded right and below with black."""
    return [
        RandomResize(base // 2, 2 * base),
        RandomHorizontalFlip(),
        RandomCrop(size, pad_if_needed="end"),
        Normalize.imagenet(),
    ]


def detection_train(name: str = "hflip", size: int | None = None) -> list[Transform]:
    """torchvision's references/detection, by `name`.

    "hflip"; "multiscale" (short sides of 480 to 800); "lsj" (a scale of 0.1 to 2, cropped or padded to `size`, 1024);
    "ssd" and "ssdlite" (resampled to `size`, 300 or 320). Boxes follow as `targets`. "hflip" and "multiscale" give
    images of different sizes, so that batches are `ragged`.
    """
    fill = (123 / 255, 117 / 255, 104 / 255)
    size = {"ssd": 300, "ssdlite": 320}.get(str(name), 1024) if size is None else size
    recipes: dict[str, list[Transform]] = {
        "hflip": [],
        "ssd": [RandomZoomOut(fill), RandomIoUCrop(), Resize((size, size)), RandomPhotometricDistort()],
        "ssdlite": [RandomIoUCrop(), Resize((size, size))],
        "multiscale": [RandomShortestSize(range(480, 801, 32), 1333)],
        "lsj": [ScaleJitter(size), RandomCrop(size, pad_if_needed="end", fill=fill)],
    }
    if not isinstance(name, str) or name not in recipes:
        raise OptionError(f"detection_train: expected {', '.join(recipes)}, found {name!r}")
    return [*recipes[name], RandomHorizontalFlip()]


def five_crop(size: int | Sequence[int] = 224, resize: int = 256) -> Views:
    """Five views of an image whose short side is `resize`: the corners ("upper left" and so on) and the centre."""
    return Views(**_corners(size, resize, []))


def ten_crop(size: int | Sequence[int] = 224, resize: int = 256) -> Views:
    """The views of `five_crop`, and the same mirrored: "upper left mirrored" and so on."""
    mirrored = _corners(size, resize, [RandomHorizontalFlip(1.0)])
    return Views(**_corners(size, resize, []), **{f"{name} mirrored": own for name, own in mirrored.items()})


def _corners(size: int | Sequence[int], resize: int, flips: list[Transform]) -> dict[str, list[Transform]]:
    return {place: [Resize(resize), CornerCrop(size, place), *flips, Normalize.imagenet()] for place in PLACES}
