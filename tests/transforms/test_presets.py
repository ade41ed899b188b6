"""Presets against the code that they name, written out with Pillow: means and deviations over draws of an image."""

import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from places import ROOT
from test_crops import resized_crop_box
from torch.utils._pytree import tree_leaves
from transform_draws import write_smooth

from iofast import FastDataset, FastLoader
from iofast import transforms as T

DRAWS = 600
SIDE = 24
BILINEAR, BICUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


class Source:
    """What the sources call: torchvision's functions on PIL images, with Python's random numbers."""

    def __init__(self) -> None:
        self.random = random.Random(5)

    def crop(
        self, image: Image.Image, scale: tuple[float, float] = (0.08, 1.0), resample: Any = BILINEAR
    ) -> Image.Image:
        """RandomResizedCrop of torchvision."""
        box = resized_crop_box(*image.size, [self.random.random() for _ in range(22)], scale, (3 / 4, 4 / 3))
        return image.crop(box).resize((SIDE, SIDE), resample)

    def apply(self, p: float, function: Callable[[Image.Image], Image.Image], image: Image.Image) -> Image.Image:
        return function(image) if self.random.random() < p else image

    def jitter(self, image: Image.Image, *strengths: float) -> Image.Image:
        """ColorJitter of torchvision."""
        kinds = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color, None][: len(strengths)]
        for kind, strength in self.random.sample(list(zip(kinds, strengths, strict=True)), len(kinds)):
            if kind is None:
                hue, *others = image.convert("HSV").split()
                shift = round(self.random.uniform(-strength, strength) * 255)
                turned = Image.fromarray((np.asarray(hue).astype(int) + shift).astype(np.uint8))
                image = Image.merge("HSV", (turned, *others)).convert("RGB")
            else:
                image = kind(image).enhance(self.random.uniform(max(0, 1 - strength), 1 + strength))
        return image

    def grey(self, image: Image.Image) -> Image.Image:
        return ImageOps.grayscale(image).convert("RGB")

    def blur(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(self.random.uniform(0.1, 2.0)))

    def view(
        self, image: Image.Image, strengths: tuple[float, ...], blur: float, solarize: float = 0.0, **crop: Any
    ) -> Image.Image:
        """SimCLR's, MoCo's and DINO's."""
        image = self.apply(0.5, ImageOps.mirror, self.crop(image, **crop))
        image = self.apply(0.8, lambda own: self.jitter(own, *strengths), image)
        image = self.apply(0.2, self.grey, image)
        return self.apply(solarize, partial(ImageOps.solarize, threshold=128), self.apply(blur, self.blur, image))


def timm_train(source: Source, image: Image.Image) -> Image.Image:
    resample = source.random.choice((BILINEAR, BICUBIC))
    return source.jitter(source.apply(0.5, ImageOps.mirror, source.crop(image, resample=resample)), 0.4, 0.4, 0.4)


def timm_center(_: Source, image: Image.Image) -> Image.Image:
    width, height = image.size
    image = image.resize((28 * width // min(image.size), 28 * height // min(image.size)), BICUBIC)
    x, y = round((image.width - SIDE) / 2), round((image.height - SIDE) / 2)
    return image.crop((x, y, x + SIDE, y + SIDE))


def mae(source: Source, image: Image.Image) -> Image.Image:
    """main_pretrain.py."""
    return source.apply(0.5, ImageOps.mirror, source.crop(image, (0.2, 1.0), BICUBIC))


def deit3(source: Source, image: Image.Image) -> Image.Image:
    """augment.py of DeiT: `new_data_aug_generator`."""
    image = source.apply(0.5, ImageOps.mirror, source.crop(image, resample=BICUBIC))
    change = source.random.choice((source.grey, partial(ImageOps.solarize, threshold=128), source.blur))
    return source.jitter(change(image), 0.3, 0.3, 0.3)


def timm_squash(_: Source, image: Image.Image) -> Image.Image:
    return image.resize((28, 28), BICUBIC).crop((2, 2, 2 + SIDE, 2 + SIDE))


def lsj(source: Source, image: Image.Image) -> Image.Image:
    """references/detection, --data-augmentation lsj: ScaleJitter, FixedSizeCrop, RandomHorizontalFlip."""
    factor = source.random.uniform(0.1, 2.0) * min(SIDE / image.width, SIDE / image.height)
    image = image.resize((int(image.width * factor), int(image.height * factor)), BILINEAR)
    x, y = (source.random.uniform(0, max(side - SIDE, 0)) for side in image.size)
    padded = Image.new("RGB", (SIDE, SIDE), (123, 117, 104))
    padded.paste(image.crop((int(x), int(y), int(x) + min(SIDE, image.width), int(y) + min(SIDE, image.height))))
    return source.apply(0.5, ImageOps.mirror, padded)


def segmentation(source: Source, image: Image.Image) -> Image.Image:
    """references/segmentation: RandomResize, RandomHorizontalFlip, `pad_if_smaller(fill=0)`, RandomCrop."""
    short = source.random.randint(14, 56)
    image = image.resize((short * image.width // min(image.size), short * image.height // min(image.size)), BILINEAR)
    image = source.apply(0.5, ImageOps.mirror, image)
    padded = Image.new("RGB", (max(image.width, SIDE), max(image.height, SIDE)))
    padded.paste(image)
    x, y = source.random.randint(0, padded.width - SIDE), source.random.randint(0, padded.height - SIDE)
    return padded.crop((x, y, x + SIDE, y + SIDE))


def recipes(*changes: tuple[str, str]) -> dict[str, Any]:
    """The lists of transforms and the views of docs/transforms.md, as a reader copies them, with other numbers."""
    page = (ROOT / "docs" / "transforms.md").read_text()
    (program,) = re.findall(r"^```python\n(flip, imagenet = (?:.*\n)*?)^```", page, re.MULTILINE)
    for given, other in changes:
        program = program.replace(given, other)
    names: dict[str, Any] = {"T": T}
    exec(program, names)
    whole = T.RandomResizedCrop, T.Resize, T.RandomResize, T.RandomShortestSize, T.ScaleJitter, T.RandomCrop
    first = {name: own[0] if isinstance(own, list) else own for name, own in names.items()}
    return {name: names[name] for name, own in first.items() if isinstance(own, (T.Views, *whole))}


SMALL = recipes(  # for images of SIDE pixels, the short side before scaling being 28
    *(("260, 1040", "14, 56"), ("98, 8", "24, 1"), ("256", "28"), ("480, pad", "24, pad")),
    *(("1024", "24"), ("224,", "24,"), ("224)", "24)")),
)
MOCO_V3 = partial(Source.view, strengths=(0.4, 0.4, 0.2, 0.1))
DINO = partial(MOCO_V3, resample=BICUBIC)
PRESETS: dict[str, tuple[Any, Callable[[Source, Image.Image], Image.Image]]] = {
    "timm": (T.timm_train(SIDE), timm_train),
    "simclr": (T.simclr(SIDE), partial(Source.view, strengths=(0.8, 0.8, 0.8, 0.2), blur=0.5)),
    "dino first": (T.dino(SIDE, SIDE, 1), partial(DINO, blur=1.0, scale=(0.4, 1.0))),
    "dino second": (T.dino(SIDE, SIDE, 1), partial(DINO, blur=0.1, solarize=0.2, scale=(0.4, 1.0))),
    "dino local": (T.dino(SIDE, SIDE, 1), partial(DINO, blur=0.5, scale=(0.05, 0.4))),
    "segmentation": (SMALL["segmentation"], segmentation),
    "lsj": (SMALL["lsj"], lsj),
    "timm_center": (SMALL["timm_center"], timm_center),
    "timm_squash": (SMALL["timm_squash"], timm_squash),
    "deit3": (SMALL["deit3"], deit3),
    "mae": (SMALL["mae"], mae),
    "moco": (SMALL["moco"], partial(Source.view, strengths=(0.4, 0.4, 0.4, 0.1), blur=0.5, scale=(0.2, 1.0))),
    "moco_v3 first": (SMALL["moco_v3"], partial(MOCO_V3, blur=1.0)),
    "moco_v3 second": (SMALL["moco_v3"], partial(MOCO_V3, blur=0.1, solarize=0.2)),
    "dinov2 first": (SMALL["dinov2"], partial(DINO, blur=1.0, scale=(0.32, 1.0))),
    "dinov2 local": (SMALL["dinov2"], partial(DINO, blur=0.5, scale=(0.05, 0.32))),
}


def blocks(images: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation over N images (N, 3, SIDE, SIDE) of each square of 6 x 6 pixels."""
    squares = images.reshape(len(images), 3, SIDE // 6, 6, SIDE // 6, 6).mean((3, 5))
    return squares.mean(0), squares.std(0)


@pytest.mark.parametrize("name", PRESETS)
def test_as_the_source(tmp_path: Path, name: str) -> None:
    preset, function = PRESETS[name]
    dataset = FastDataset(write_smooth(tmp_path / "one.lmdb", [(44, 60)]), indices=[0] * DRAWS)
    image, source = dataset[0][0], Source()
    ours: list[torch.Tensor] = []
    for made, _ in FastLoader(dataset, 100, transform=preset, seed=3):
        made = made[name.split()[1]] if isinstance(made, dict) else made
        ours.append(made[0] if isinstance(made, list) else made)
    theirs = np.stack([np.asarray(function(source, image)) for _ in range(DRAWS)]) / 255
    mean, deviation = blocks(torch.cat(ours).flatten(0, -4).numpy().astype(np.float64))
    their_mean, their_deviation = blocks(((theirs - MEAN) / STD).transpose(0, 3, 1, 2))
    error = np.sqrt((deviation**2 + their_deviation**2) / DRAWS)  # of the difference of two means
    assert (abs(mean - their_mean) < 4.5 * error + 0.02).all(), abs(mean - their_mean) / error
    assert (abs(deviation - their_deviation) < 0.15 * their_deviation + 0.02).all()


def test_recipes_of_the_docs_compile() -> None:
    found = recipes()
    assert {"classification", "multiscale", "mae", "moco", "five_crop", "cifar"} <= set(found)
    assert all(T.compile(each).transforms for each in found.values())


N = 16
MIX: list[Any] = [T.RandomChoice([T.MixUp(alpha=0.8, num_classes=N), T.CutMix(num_classes=N)], p=[0.5, 0.5])]
OTHERS: dict[str, Any] = {
    "timm": [*T.timm_train(40, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.5, re_mode="pixel", re_count=3), *MIX],
    "plain": T.timm_train(40, vflip=0.5, grayscale_prob=0.3, gaussian_blur_prob=0.3, color_jitter_prob=0.5),
    "colour": T.timm_train(40, re_prob=1, re_mode="rand"),
    "rkrc": T.timm_train(40, train_crop_mode="rkrc"),
    "rkrr": T.timm_train((32, 48), train_crop_mode="rkrr", interpolation="bilinear"),
    "dino": T.dino(40, 24, 2),
    "pad": [T.Resize((34, 42)), T.Pad(3, padding_mode="reflect"), T.RandomChannelPermutation()],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_options_give_the_same_batches_on_any_ranks(tmp_path: Path, name: str) -> None:
    path = write_smooth(tmp_path / "set.lmdb", [(60 + number, 52) for number in range(N)])

    def batches(size: int, **options: Any) -> list[list[torch.Tensor]]:
        options |= {"transform": OTHERS[name], "shuffle": True, "seed": 5, "dtype": torch.float32}
        return [tree_leaves(batch) for batch in FastLoader(FastDataset(path), size, **options)]

    ranks = [batches(4, rank=rank, world_size=2, num_workers=rank) for rank in (0, 1)]
    for made, *parts in zip(batches(8), *ranks, strict=True):
        assert all(tensor.isfinite().all() for tensor in made)
        for tensor, *pair in zip(made, *parts, strict=True):
            assert torch.equal(tensor, torch.cat(pair))
