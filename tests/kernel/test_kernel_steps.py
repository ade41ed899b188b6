"""Steps on images: within a level of torchvision's definition, and the same bits on each instruction set, for ever."""

import numpy as np
import pytest
from numpy.typing import NDArray
from pixel_work import after_steps, noise, one_step

from iofast import kernel
from iofast.work import Step

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
