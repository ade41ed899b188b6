"""Pillow's colour operations and blur as steps of the kernel: equal to Pillow, on noise, photographs and extremes."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from kernel_images import Pixels, photo
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from pixel_work import after_steps

from iofast.work import PillowStep, Step

Operation = Callable[[Image.Image], Image.Image]


def every_level() -> Pixels:
    """All levels in one channel, with their neighbours far away."""
    ramp = np.arange(256, dtype=np.uint8)
    return np.stack([ramp, ramp[::-1], (ramp.astype(int) * 37 % 256).astype(np.uint8)], 1).reshape(16, 16, 3)


def many_colours() -> Pixels:
    """Every fifth level of two channels with every level of the third, in each order of the channels."""
    levels = np.arange(256, dtype=np.uint8)
    grid = np.stack(np.meshgrid(levels, levels[::5], levels[::5], indexing="ij"), -1).reshape(256, -1, 3)
    return np.concatenate([grid[:, :, order] for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0))], axis=1)


RNG = np.random.default_rng(4)
IMAGES = {
    "photograph": photo(224, 160),
    "noise": RNG.integers(0, 256, (97, 131, 3), np.uint8),
    "odd": RNG.integers(0, 256, (33, 1, 3), np.uint8),
    "row": RNG.integers(0, 256, (2, 301, 3), np.uint8),
    "extremes": (RNG.integers(0, 2, (64, 70, 3)) * 255).astype(np.uint8),
    "dark": RNG.integers(3, 9, (40, 50, 3), np.uint8),
    "bright": RNG.integers(246, 256, (90, 120, 3)).astype(np.uint8),
    "flat": np.full((30, 40, 3), 77, np.uint8),
    "gray": np.repeat(RNG.integers(0, 256, (50, 60, 1), np.uint8), 3, 2),
    "levels": every_level(),
}
FACTORS = (0.0, 0.05, 0.1, 0.3333, 0.6, 0.9, 1.0, 1.1, 1.4, 1.9, 2.5, 7.3, 63.0, 300.0, -0.7)


def turned(shift: int, image: Image.Image) -> Image.Image:
    """What torchvision's adjust_hue does to a PIL image."""
    hue, saturation, value = image.convert("HSV").split()
    levels: NDArray[np.uint8] = np.asarray(hue) + np.array(shift).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(levels), saturation, value)).convert("RGB")


def operations() -> Iterator[tuple[int, tuple[float, ...], Operation]]:
    """Steps, their numbers, and what Pillow calls them."""
    for code, kind in (
        (PillowStep.BRIGHTNESS, ImageEnhance.Brightness),
        (PillowStep.CONTRAST, ImageEnhance.Contrast),
        (PillowStep.COLOR, ImageEnhance.Color),
        (PillowStep.SHARPNESS, ImageEnhance.Sharpness),
    ):
        for factor in FACTORS:
            yield code, (factor,), lambda image, kind=kind, factor=factor: kind(image).enhance(factor)  # type: ignore[misc]
    yield PillowStep.AUTOCONTRAST, (), ImageOps.autocontrast
    yield Step.EQUALIZE, (), ImageOps.equalize
    yield Step.SOLARIZE, (0,), ImageOps.invert
    yield Step.LUMA, (), lambda image: image.convert("L").convert("RGB")
    for threshold in (0, 1, 77, 128, 255, 256):
        yield Step.SOLARIZE, (threshold,), partial(ImageOps.solarize, threshold=threshold)
    for bits in range(1, 9):
        yield Step.POSTERIZE, (bits,), partial(ImageOps.posterize, bits=bits)
    for shift in (-127, -25, -1, 0, 1, 12, 51, 127, 255):
        yield PillowStep.HUE, (shift,), partial(turned, shift)
    for sigma in (0.0, 0.1, 0.29, 0.5, 1.0, 1.37, 2.0, 2.5, 6.6, 40.0):
        for sigmas in ((sigma, sigma), (sigma, 0.7), (0.0, sigma)):
            yield PillowStep.BLUR, sigmas, lambda image, sigmas=sigmas: image.filter(ImageFilter.GaussianBlur(sigmas))  # type: ignore[misc]


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("simd", ["", "scalar", "avx2"])
def test_operations_are_pillows(name: str, simd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOFAST_SIMD", simd)  # read when a context is made
    image = Image.fromarray(IMAGES[name])
    for code, numbers, operation in operations():
        made = after_steps(IMAGES[name], (code, numbers))
        np.testing.assert_array_equal(made, np.asarray(operation(image)), err_msg=f"{code} {numbers}")


@pytest.mark.parametrize("shift", [0, 21])
def test_hue_of_many_colours_is_pillows(shift: int) -> None:
    wanted = np.asarray(turned(shift, Image.fromarray(many_colours())))
    np.testing.assert_array_equal(after_steps(many_colours(), (PillowStep.HUE, (shift,))), wanted)


def affine(matrix: tuple[float, ...], fill: tuple[int, int, int]) -> tuple[float, ...]:
    """The numbers of a step."""
    red, green, blue = fill
    return (*np.array(matrix, np.float64).view(np.float32).tolist(), red << 16 | green << 8 | blue)


FILTERS = {
    PillowStep.AFFINE_NEAREST: Image.Resampling.NEAREST,
    PillowStep.AFFINE_BILINEAR: Image.Resampling.BILINEAR,
    PillowStep.AFFINE_BICUBIC: Image.Resampling.BICUBIC,
}


def turn_about(angle: float, size: tuple[int, int]) -> tuple[float, ...]:
    """The matrix of a rotation about the middle."""
    (x, y), cos, sin = (side / 2 for side in size), np.cos(np.radians(angle)), np.sin(np.radians(angle))
    return cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("code", FILTERS)
@pytest.mark.parametrize("simd", ["", "scalar"])
def test_affine_transforms_are_pillows(name: str, code: PillowStep, simd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOFAST_SIMD", simd)
    image, rng = Image.fromarray(IMAGES[name]), np.random.default_rng(len(name))
    width, height = image.size
    matrices = [
        *(turn_about(angle, image.size) for angle in (0, 10, -30, 45, 90, 180, 271.3)),
        *((1, shear, -shear * height / 2, 0, 1, 0) for shear in (0.3, -0.99)),
        *((1, 0, x, 0, 1, y) for x, y in ((3, -2), (0.5, 0.49), (-7.25, height), (1e-17, -1e-17))),
        *((0.7, 0, 1.3, 0, -1, height), (-2, 0, width - 0.5, 0, 0.1, 0), (0, 0, 0.5, 0, 0, 0.5)),
        *(tuple(rng.normal(0, 1, 6) * (1, 1, width, 1, 1, height)) for _ in range(5)),
    ]
    for matrix in matrices:
        wanted = image.transform(image.size, Image.Transform.AFFINE, matrix, FILTERS[code], fillcolor=(9, 130, 251))
        np.testing.assert_array_equal(
            after_steps(IMAGES[name], (code, affine(matrix, (9, 130, 251)))), np.asarray(wanted)
        )


def test_affine_transforms_from_nowhere() -> None:
    """Any numbers are safe: coordinates that are none are outside."""
    for matrix in ((np.nan,) * 6, (np.inf,) * 6, (1e300, -1e300, 1e300, 1e-300, 0, -1e300), (4e4, 3e4, 0, 1, 9e9, 5)):
        for code in FILTERS:
            assert after_steps(IMAGES["odd"], (code, affine(matrix, (1, 2, 3)))).shape == IMAGES["odd"].shape


def test_steps_follow_each_other_and_codes_beyond_the_last_do_nothing() -> None:
    image = Image.fromarray(IMAGES["photograph"])
    wanted = ImageEnhance.Contrast(ImageOps.solarize(ImageEnhance.Brightness(image).enhance(1.3), 100)).enhance(0.6)
    wanted = turned(9, ImageOps.equalize(ImageOps.posterize(wanted, 5))).filter(ImageFilter.GaussianBlur(1.5))
    made = after_steps(
        IMAGES["photograph"],
        (PillowStep.BRIGHTNESS, (1.3,)),
        (Step.SOLARIZE, (100,)),
        (max(*Step, *PillowStep) + 1, (9.0,)),
        (PillowStep.CONTRAST, (0.6,)),
        (Step.POSTERIZE, (5,)),
        (127, (9.0,)),
        (Step.EQUALIZE, ()),
        (PillowStep.HUE, (9,)),
        (PillowStep.BLUR, (1.5, 1.5)),
    )
    np.testing.assert_array_equal(made, np.asarray(wanted))
