"""Steps on images: torchvision's within a level and the same bits for ever; Pillow's operations to the last bit."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from kernel_images import Pixels, photo
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from pixel_work import after_steps, noise, one_step

from iofast import kernel
from iofast.work import PillowStep, Step

SETS = ("avx512", "avx2", "scalar")
DRAWN = 12  # of the numbers of a step, for checksums: the others are 0


def by_native(image: NDArray[np.uint8], step: Step, numbers: list[float], name: str = SETS[0]) -> NDArray[np.uint8]:
    """An image (3, H, W) after a step, on the instruction set `name`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IOFAST_SIMD", name)  # read when a context is made
        return np.moveaxis(after_steps(np.moveaxis(image, 0, -1), (step, numbers)), -1, 0)


def image_of(height: int, width: int, seed: int) -> NDArray[np.uint8]:
    """Smooth and noisy areas, and sometimes flat channels."""
    rng = np.random.default_rng(seed)
    ramp = np.add.outer(np.arange(height), np.arange(width)) * rng.integers(0, 5)
    image = (ramp[None] + rng.integers(0, rng.integers(1, 256), (3, height, width))) % 256
    if seed % 5 == 0:
        image[seed % 3] = seed % 256
    return image.astype(np.uint8)


GOLDEN = {
    Step.NOTHING: 0xEED2DF92,
    Step.BRIGHTNESS: 0xC10F7269,
    Step.CONTRAST: 0x04A93872,
    Step.SATURATION: 0xCA946543,
    Step.HUE: 0x33CFA53D,
    Step.AUTOCONTRAST: 0x1BEC02A5,
    Step.EQUALIZE: 0xC48718F2,
    Step.SHARPNESS: 0xADA743E5,
    Step.BLUR: 0xC5041AE9,
    Step.WARP_NEAREST: 0x7BF753A1,
    Step.WARP_BILINEAR: 0x5339D14A,
    Step.FLIP: 0x46B76668,
    Step.PAD: 0x45FDB979,
    Step.PERMUTE: 0x42EA96F1,
    Step.LUMA: 0x27C6EA97,
}


@pytest.mark.parametrize("step", Step)
def test_pixels_never_change(step: Step) -> None:
    """Usual and impossible numbers, on each instruction set; whoever changes a step on purpose changes its checksum.

    Steps on single levels need none: all their levels are in `CASES`, or in `MADE` of tests/transforms/test_colours.py.
    """
    image, rng = image_of(37, 61, int(step)), np.random.default_rng(int(step))
    drawn = [rng.choice([0, 1, 2, 5, 8.5, 63, 128, 200.7, 256, -3, np.nan], DRAWN).tolist() for _ in range(20)]
    levels = np.stack([np.arange(256, dtype=np.uint8).reshape(16, 16)] * 3)
    for name in SETS:
        made = [by_native(image, step, numbers, name) for numbers in drawn]
        if step in GOLDEN:
            assert kernel.crc32c(b"".join(each.tobytes() for each in made)) == GOLDEN[step]
            continue
        for numbers, pixels in zip(drawn, made, strict=True):
            assert (pixels == by_native(levels, step, numbers, SETS[-1])[0].ravel()[image]).all()


STRAIGHT = (1, 0, 0, 0, 1, 0, 0, 0)
CASES: list[tuple[Step, list[float]]] = [
    *((Step.BRIGHTNESS, [f]) for f in (0, 0.3, 0.6, 1, 1.4, 1.99, 2, 5, 8, 63)),
    *((Step.CONTRAST, [f]) for f in (0, 0.3, 0.6, 1, 1.4, 1.99, 2, 5, 8, 20)),
    *((Step.SATURATION, [f]) for f in (0, 0.3, 0.6, 1, 1.4, 1.9)),
    *((Step.HUE, [f]) for f in (-0.5, -0.2, -0.01, 0, 0.1, 0.5)),
    *((Step.SOLARIZE, [f]) for f in (0, 99.5, 128, 255, 256)),
    *((Step.POSTERIZE, [f]) for f in (0, 1, 4, 7, 8)),
    *((Step.ADD_BELOW, [f, more]) for f, more in ((0, 50), (128, 110), (256, 255))),
    (Step.AUTOCONTRAST, []),
    (Step.EQUALIZE, []),
    *((Step.SHARPNESS, [f]) for f in (0, 0.5, 1, 1.9, 5)),
    *((Step.FLIP, [across, down]) for across, down in ((0, 0), (1, 0), (0, 1), (1, 1))),
    *((Step.PERMUTE, [number]) for number in range(6)),
    (Step.LUMA, []),
    *((Step.BLUR, [s, r, t, q]) for s, r, t, q in ((0.5, 1, 0.5, 1), (2, 4, 0.3, 2), (0.1, 6, 0.1, 6), (5, 7, 5, 8))),
]
ROTATED = (0.9013, -0.3017, 4.2031, 0.3011, 0.9007, -3.7029, 0, 0)
TILTED = (1.1013, 0.1007, -2.3011, -0.2003, 0.9017, 3.1013, 0.0041, -0.0063)
WARPS: list[tuple[Step, list[float]]] = [
    (code, [*matrix, 10, 20.7, 300])
    for code in (Step.WARP_NEAREST, Step.WARP_BILINEAR)
    for matrix in (STRAIGHT, ROTATED, TILTED, (1, 0, 5, 0, 1, -7, 0, 0), (0, 0, -9, 0, 0, -9, 0, 0))
]


ROUNDED = {Step.BRIGHTNESS, Step.CONTRAST, Step.SATURATION, Step.HUE, Step.AUTOCONTRAST, Step.SHARPNESS, Step.BLUR}
ROUNDED |= {Step.WARP_BILINEAR}


@pytest.mark.parametrize(("code", "numbers"), [*CASES, *WARPS], ids=lambda value: str(value))
def test_within_a_level_of_torchvision(code: Step, numbers: list[float]) -> None:
    for image in noise(2, 23, 19, seed=3).contiguous().numpy():
        outside = [min(value, 255) for value in numbers[8:]]
        wanted = np.floor(one_step(image, code, [*numbers[:8], *outside] or [0.0]))
        off = np.abs(by_native(image, code, numbers) - np.clip(wanted, 0, 255))
        assert off.max() <= (code in ROUNDED)


def test_neutral_parameters_change_nothing() -> None:
    image = noise(1, 30, 31)[0].contiguous().numpy()
    for code, numbers in (
        *((code, [1.0]) for code in (Step.BRIGHTNESS, Step.CONTRAST, Step.SATURATION, Step.SHARPNESS)),
        *((Step.HUE, [0.0]), (Step.SOLARIZE, [256.0]), (Step.POSTERIZE, [8.0]), (Step.ADD_BELOW, [256.0, 0.0])),
        *((Step.BLUR, [0.01, 9, 0.01, 9]), (Step.BLUR, [2.0, 0, 2.0, 0])),
        *((code, [*STRAIGHT]) for code in (Step.WARP_NEAREST, Step.WARP_BILINEAR)),
    ):
        np.testing.assert_array_equal(by_native(image, code, numbers), image)


def test_saturated_grays_of_large_factors() -> None:
    """An error of one gray level is multiplied by 1 - f, in four of a thousand pixels."""
    image = noise(1, 64, 64, seed=1)[0].contiguous().numpy()
    off = np.abs(by_native(image, Step.SATURATION, [8.0]) - np.floor(one_step(image, Step.SATURATION, [8.0])))
    assert off.max() <= 8
    assert (off > 1).mean() < 0.006


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
