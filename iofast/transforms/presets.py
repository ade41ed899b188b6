"""Transforms of well-known recipes: each function returns a plain list, or several views.

Sources: torchvision's references/classification, timm's create_transform, SimCLR (arXiv 2002.05709) and DINO
(2104.14294) with their authors' code. Other recipes are lists in docs/transforms.md.
"""

from collections.abc import Sequence

from iofast.errors import OptionError
from iofast.transforms.choosing import RandomApply
from iofast.transforms.colours import ColorJitter, GaussianBlur, RandomGrayscale, RandomSolarize
from iofast.transforms.crops import CenterCrop, RandomCrop
from iofast.transforms.erasing import RandomErasing
from iofast.transforms.moving import RandomHorizontalFlip, RandomVerticalFlip
from iofast.transforms.normalize import Normalize
from iofast.transforms.resized_crops import RandomResizedCrop
from iofast.transforms.resizing import Resize, ResizeKeepRatio
from iofast.transforms.timm_policy import timm_policy
from iofast.transforms.transform import ImageOp, Transform
from iofast.transforms.views import Views

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_BLUR = GaussianBlur(17, (0.1, 2.0))  # Pillow's of radius 0.1 to 2: four standard deviations to each side


def train(size: int = 224) -> list[Transform]:
    """Random resized crop to `size` x `size`, flip, ImageNet's normalisation."""
    return [RandomResizedCrop(size), RandomHorizontalFlip(), Normalize.imagenet()]


def evaluate(size: int = 224, resize: int | None = None, interpolation: str = "bilinear") -> list[Transform]:
    """Short side to `resize`, centre crop of `size` x `size`, ImageNet's normalisation.

    The default `resize` is 256 / 224 of `size`.
    """
    short = round(size * 256 / 224) if resize is None else resize
    return [Resize(short, interpolation), CenterCrop(size), Normalize.imagenet()]


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
    if color_jitter and (auto_augment is None or force_color_jitter):
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


def simclr(size: int = 224, strength: float = 1.0) -> list[Transform]:
    """One view of SimCLR."""
    jitter = ColorJitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    kernel = size // 10 // 2 * 2 + 1
    return _view(RandomResizedCrop(size), jitter, [RandomApply([GaussianBlur(kernel, (0.1, 2.0))], 0.5)])


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
    jitter = ColorJitter(0.4, 0.4, 0.2, 0.1)
    return Views(
        first=_view(crop, jitter, [_BLUR]),
        second=_view(crop, jitter, [RandomApply([_BLUR], 0.1), RandomSolarize(128 / 255, 0.2)]),
        local=(local, _view(small, jitter, [RandomApply([_BLUR], 0.5)])),
    )


def _view(crop: RandomResizedCrop, jitter: ColorJitter, after: list[ImageOp]) -> list[Transform]:
    colours: list[ImageOp] = [RandomApply([jitter], 0.8), RandomGrayscale(0.2), *after]
    return [crop, RandomHorizontalFlip(), *colours, Normalize.imagenet()]
