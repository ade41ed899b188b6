"""Each step against torchvision's definition in float64, and against the kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pixel_work import noise, one_step
from torch_steps import gaussian, take_step

from iofast.work import NUMBERS, Step

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
    *((Step.BLUR, [s, r, t, q]) for s, r, t, q in ((0.5, 1, 0.5, 1), (2, 4, 0.3, 2), (0.1, 6, 0.1, 6), (5, 7, 5, 8))),
]
ROTATED = (0.9013, -0.3017, 4.2031, 0.3011, 0.9007, -3.7029, 0, 0)
TILTED = (1.1013, 0.1007, -2.3011, -0.2003, 0.9017, 3.1013, 0.0041, -0.0063)
WARPS: list[tuple[Step, list[float]]] = [
    (code, [*matrix, 10, 20.7, 300])
    for code in (Step.WARP_NEAREST, Step.WARP_BILINEAR)
    for matrix in (STRAIGHT, ROTATED, TILTED, (1, 0, 5, 0, 1, -7, 0, 0), (0, 0, -9, 0, 0, -9, 0, 0))
]


def taken(image: NDArray[np.uint8], code: Step, numbers: list[float]) -> NDArray[np.uint8]:
    own = np.zeros((1, NUMBERS), np.float32)
    own[0, : len(numbers)] = numbers
    return take_step(torch.from_numpy(image)[None], code, own)[0].numpy()


@pytest.mark.parametrize(("code", "numbers"), [*CASES, *WARPS], ids=lambda value: str(value))
def test_within_a_level_of_torchvision(code: Step, numbers: list[float]) -> None:
    for image in noise(2, 23, 19, seed=3).contiguous().numpy():
        outside = [min(value, 255) for value in numbers[8:]]
        wanted = np.floor(one_step(image, code, [*numbers[:8], *outside] or [0.0]))
        off = np.abs(taken(image, code, numbers) - np.clip(wanted, 0, 255))
        exact = code in (Step.SOLARIZE, Step.POSTERIZE, Step.ADD_BELOW, Step.EQUALIZE, Step.WARP_NEAREST)
        assert off.max() <= (0 if exact else 1)


def test_neutral_parameters_change_nothing() -> None:
    image = noise(1, 30, 31)[0].contiguous().numpy()
    for code, numbers in (
        *((code, [1.0]) for code in (Step.BRIGHTNESS, Step.CONTRAST, Step.SATURATION, Step.SHARPNESS)),
        (Step.HUE, [0.0]),
        (Step.SOLARIZE, [256.0]),
        (Step.POSTERIZE, [8.0]),
        (Step.ADD_BELOW, [256.0, 0.0]),
        (Step.BLUR, [0.01, 9, 0.01, 9]),
        (Step.BLUR, [2.0, 0, 2.0, 0]),
        (Step.WARP_NEAREST, [*STRAIGHT]),
        (Step.WARP_BILINEAR, [*STRAIGHT]),
    ):
        np.testing.assert_array_equal(taken(image, code, numbers), image)


def test_saturated_grays_of_large_factors() -> None:
    """An error of one gray level is multiplied by 1 - f, in four of a thousand pixels."""
    image = noise(1, 64, 64, seed=1)[0].contiguous().numpy()
    off = np.abs(taken(image, Step.SATURATION, [8.0]) - np.floor(one_step(image, Step.SATURATION, [8.0])))
    assert off.max() <= 8
    assert (off > 1).mean() < 0.006


@given(sigma=st.floats(0.05, 50), radius=st.integers(0, 80))
def test_taps_of_a_blur(sigma: float, radius: int) -> None:
    taps = gaussian(sigma, radius)
    assert sum(taps) == 65536
    assert taps == taps[::-1]
    assert min(taps) >= 1
    assert len(taps) <= 127
    tail = taps[len(taps) // 2 + 1 :]
    assert tail == sorted(tail, reverse=True)
    assert taps[len(taps) // 2] >= max(tail, default=0) - len(taps)  # it absorbs the rounding of the others
