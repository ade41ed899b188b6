"""Chains of operations on colours and affine transforms of a lazy image give what Pillow alone gives."""

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from iofast.run import notes, patches
from iofast.run.noting import is_lazy, noting


def adjust_hue(image: Image.Image, factor: float) -> Image.Image:
    """What torchvision's function of this name does."""
    hue, saturation, value = image.convert("HSV").split()
    levels = np.array(hue, dtype=np.uint8) + np.int32(factor * 255).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(levels, "L"), saturation, value)).convert(image.mode)


def to_grayscale(image: Image.Image, channels: int) -> Image.Image:
    """What torchvision's function of this name does."""
    return Image.fromarray(np.dstack([np.array(image.convert("L"))] * channels), "RGB")


@pytest.fixture(scope="module")
def torchvision() -> Any:
    for name, module in (("PIL.ImageEnhance", ImageEnhance), ("PIL.ImageOps", ImageOps)):
        patches.patch(name, module)  # as a run does; ordinary images do not notice
    return SimpleNamespace(adjust_hue=noting(adjust_hue), to_grayscale=noting(to_grayscale))


AFFINE = (Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
COLOURS = (None, (1, 2, 3), "red", 0x7F0201)


def affine(image: Image.Image, matrix: tuple[float, ...], filter: int) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, filter, fillcolor=(120, 121, 122))


def operations(draw: random.Random, torchvision: Any) -> dict[str, Callable[[Image.Image], Image.Image]]:
    number, filter, colour = draw.uniform(0, 2), draw.choice(AFFINE), draw.choice(COLOURS)
    return {
        "brightness": lambda image: ImageEnhance.Brightness(image).enhance(number),
        "contrast": lambda image: ImageEnhance.Contrast(image).enhance(number),
        "color": lambda image: ImageEnhance.Color(image).enhance(number),
        "sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(number),
        "solarize": lambda image: ImageOps.solarize(image, int(100 * number)),
        "posterize": lambda image: ImageOps.posterize(image, 1 + int(3 * number)),
        "equalize": ImageOps.equalize,
        "autocontrast": ImageOps.autocontrast,
        "invert": ImageOps.invert,
        "blur": lambda image: image.filter(ImageFilter.GaussianBlur(number)),
        "blur of two": lambda image: image.filter(ImageFilter.GaussianBlur((number, 0.3))),
        "hue": lambda image: torchvision.adjust_hue(image, number / 4 - 0.25),
        "gray": lambda image: torchvision.to_grayscale(image, 3),
        "gray by convert": lambda image: image.convert("L").convert("RGB"),
        "rotation": lambda image: image.rotate(40 * number - 40, filter, fillcolor=colour),
        "rotation elsewhere": lambda image: image.rotate(7, center=(3, 9), translate=(2, -1)),
        "shear": lambda image: affine(image, (1, number - 1, 0.5, 0, 1, 0), filter),
        "translation": lambda image: affine(image, (1, 0, 40 * number - 40, 0, 1, -7), filter),
        "timm's solarize_add": lambda image: image.point(
            3 * [min(255, level + 1 + int(40 * number)) if level < 128 else level for level in range(256)]
        ),
        "mirror": ImageOps.mirror,
        "flip": ImageOps.flip,
    }


OTHERS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "autocontrast with a cutoff": lambda image: ImageOps.autocontrast(image, cutoff=3),
    "equalize with a mask": lambda image: ImageOps.equalize(image, mask=Image.new("1", image.size, 1)),
    "posterize to nothing": lambda image: ImageOps.posterize(image, 0),
    "crop": lambda image: image.crop((3, 4, 60, 50)),
    "resize": lambda image: image.resize((50, 70)),
    "rotation that expands": lambda image: image.rotate(10, expand=True),
    "rotation by an unknown filter": lambda image: image.rotate(10, 77),
    "transform to elsewhere": lambda image: affine(image, (1, 0, 1e6, 0.1, 1, 0), 0),
    "transform to another size": lambda image: image.transform((30, 40), Image.Transform.AFFINE, (1, 0, 0, 0, 1, 0)),
    "transform of nothing": lambda image: image.transform(image.size, Image.Transform.AFFINE),
    "perspective": lambda image: image.transform(image.size, Image.Transform.PERSPECTIVE, (1, 0, 0, 0, 1, 0, 0.01, 0)),
    "any table": lambda image: image.point(lambda level: level // 2),
    "a table of floats, which Pillow rounds": lambda image: image.point(
        3 * [min(255, level + 12.7) if level < 128 else level for level in range(256)]
    ),
    "gray": lambda image: image.convert("L"),
    "other filter": lambda image: image.filter(ImageFilter.BoxBlur(2)),
    "Pillow's own attribute": lambda image: ImageEnhance.Contrast(image).degenerate,
    "seen before": lambda image: ImageOps.posterize(_seen(image).rotate(3), 3),
    "copy of what was seen": lambda image: _seen(image).copy().convert("RGB").convert("L"),
    "changed between": lambda image: _changed_between(image),
}


def _seen(image: Image.Image) -> Image.Image:
    assert np.asarray(image).any()
    return image


def _changed_between(image: Image.Image) -> Image.Image:
    contrast = ImageEnhance.Contrast(image)  # of the mean gray value now
    image.paste((255, 0, 0), (0, 0, 30, 30))
    return contrast.enhance(0.5)


def facts(make: Callable[[], Image.Image]) -> Any:
    try:
        image = make()
    except Exception as error:
        return type(error), str(error)
    return image.mode, image.size, sorted(image.info), image.tobytes()


def begin(path: Path, draw: random.Random) -> Image.Image:
    image = Image.open(path).convert("RGB")
    if draw.random() < 0.7:
        x, y = draw.randrange(50), draw.randrange(50)
        image = image.crop((x, y, x + 120, y + 100)).resize((64, 56), draw.choice([1, 2, 3]))
    return image.transpose(0) if draw.random() < 0.5 else image


@pytest.mark.parametrize("kind", ["rgb", "exif", "gray", "progressive", "444"])
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 500), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_chains_are_equal(
    photos: dict[str, Path],
    kind: str,
    checked: bool,
    seeds: range,
    by_iofast: Callable[[bool], None],
    torchvision: Any,
) -> None:
    def chain(seed: int) -> Image.Image:
        draw = random.Random(seed)
        image = begin(photos[kind], draw)
        for _ in range(draw.randrange(1, 5)):
            name, operation = draw.choice(list(operations(draw, torchvision).items()))
            was_lazy, image = is_lazy(image), operation(image)
            # of a whole image Pillow's gray is as fast
            assert is_lazy(image) or name == "gray by convert" or not was_lazy
        return image

    for seed in seeds:
        by_iofast(False)
        expected = facts(lambda seed=seed: chain(seed))  # type: ignore[misc]
        by_iofast(True)
        notes.notes().counts["checked"] = 0 if checked else 1000
        assert facts(lambda seed=seed: chain(seed)) == expected, seed  # type: ignore[misc]
    assert notes.notes().counts["differences"] == 0


@pytest.mark.parametrize("name", OTHERS)
def test_what_follows_is_pillows(
    photos: dict[str, Path], name: str, by_iofast: Callable[[bool], None], torchvision: Any
) -> None:
    def make() -> Image.Image:
        image = begin(photos["rgb"], random.Random(3))
        return OTHERS[name](ImageEnhance.Brightness(image).enhance(1.3))

    by_iofast(False)
    expected = facts(make)
    by_iofast(True)
    assert facts(make) == expected
    assert notes.notes().counts["differences"] == 0


def test_every_operation_alone(photos: dict[str, Path], by_iofast: Callable[[bool], None], torchvision: Any) -> None:
    for name in operations(random.Random(0), torchvision):
        for seed in range(3):
            by_iofast(False)
            one = operations(random.Random(seed), torchvision)[name]
            expected = facts(lambda one=one: one(begin(photos["444"], random.Random(1))))  # type: ignore[misc]
            by_iofast(True)
            assert facts(lambda one=one: one(begin(photos["444"], random.Random(1)))) == expected, name  # type: ignore[misc]


def test_an_enhancer_that_the_script_changed(
    photos: dict[str, Path], by_iofast: Callable[[bool], None], torchvision: Any
) -> None:
    def changed(lazy: bool) -> bytes:
        by_iofast(lazy)
        image = Image.open(photos["rgb"]).convert("RGB").crop((0, 0, 60, 40))
        assert is_lazy(image) is lazy
        enhancer = ImageEnhance.Brightness(image)
        enhancer.degenerate.paste((200, 100, 50), (0, 0, 20, 20))
        return enhancer.enhance(0.5).tobytes()

    assert changed(True) == changed(False)
