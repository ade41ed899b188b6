"""Steps on images: within a level of torchvision's definition, and the same bits on each instruction set, for ever."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pixel_work import noise, one_step
from places import ROOT

from iofast import kernel
from iofast.kernel.contract import DecodeOptions
from iofast.work import NUMBERS, PillowStep, Step

native = pytest.importorskip("iofast.kernel.native_batch")
_native = pytest.importorskip("iofast.kernel._native")

SETS = ("avx512", "avx2", "scalar")
HEADER = ROOT / "iofast" / "kernel" / "src" / "iofast.h"
LEVEL_STEPS = HEADER.with_name("level_steps.h")
DRAWN = 12  # of the numbers of a step, for checksums: the others are 0
Program = list[tuple[Step, list[float]]]


@contextmanager
def simd(name: str) -> Iterator[None]:
    before = os.environ.get("IOFAST_SIMD")
    os.environ["IOFAST_SIMD"] = name
    yield
    os.environ.pop("IOFAST_SIMD") if before is None else os.environ.update(IOFAST_SIMD=before)


def test_codes_of_steps_are_those_of_the_header() -> None:
    body = HEADER.read_text().partition("IOF_NOTHING")[2].partition("iof_step;")[0]
    coded = re.findall(r"IOF_(\w+) = (\d+)", f"IOF_NOTHING{body}")
    coded += re.findall(r"\bX\((\w+), (\d+),", LEVEL_STEPS.read_text())
    named = {step.name: int(step) for step in Step} | {f"PILLOW_{step.name}": int(step) for step in PillowStep}
    assert {name: int(code) for name, code in coded} == named
    assert len(set(named.values())) == len(coded)


def columns(program: Program) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    numbers = np.zeros((len(program), NUMBERS), np.float32)
    for row, (_, own) in enumerate(program):
        numbers[row, : len(own)] = own
    return np.array([code for code, _ in program], np.int8), numbers


def by_native(image: NDArray[np.uint8], program: Program, name: str) -> NDArray[np.uint8]:
    codes, numbers = columns(program)
    out = np.full((1, *image.shape[1:], 3), 7, np.uint8)
    empty = np.zeros(0, np.float32)
    work = (len(program), 0, codes, numbers, empty, empty, empty, empty, np.zeros(6, np.float32))
    with simd(name):
        context = native.Context(DecodeOptions())
    _native.finish_batch(context.handle, np.moveaxis(image, 0, -1)[None], work, None, out, 0, 0, 1)
    return np.moveaxis(out[0], -1, 0)


FACTORS = st.one_of(
    st.floats(0, 2.5, width=32), st.sampled_from([0.0, 1.0, 2.0, 7.99, 8.0, 63.0, 1e9, -1.0, float("nan")])
)
FRACTIONS = st.floats(-0.5, 0.5, width=32)
LEVELS = st.one_of(st.floats(-2, 260, width=32), st.integers(0, 256).map(float))
PLACES = st.one_of(st.floats(-300, 300, width=32), st.sampled_from([float("inf"), float("nan"), 1e30]))
NEAR_ONE = st.floats(-2, 2, width=32)
SMALL = st.sampled_from([0.0, 0.001, -0.004])


def one(code: Step, *own: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[Step, list[float]]]:
    return st.tuples(st.just(code), st.tuples(*own).map(list))


BITS = st.sampled_from([0.0, 1.0])
FAR = st.one_of(st.integers(-150, 150).map(float), PLACES)
BLURS = st.tuples(st.floats(0, 30, width=32), st.integers(0, 70).map(float))
WARPS = (NEAR_ONE, NEAR_ONE, PLACES, NEAR_ONE, NEAR_ONE, PLACES, SMALL, SMALL, LEVELS, LEVELS, LEVELS)
PROGRAMS = st.lists(
    st.one_of(
        one(Step.NOTHING),
        *(one(code, FACTORS) for code in (Step.BRIGHTNESS, Step.CONTRAST, Step.SATURATION, Step.SHARPNESS)),
        one(Step.HUE, FRACTIONS),
        one(Step.SOLARIZE, LEVELS),
        one(Step.POSTERIZE, st.integers(-1, 9).map(float)),
        one(Step.ADD_BELOW, LEVELS, LEVELS),
        one(Step.AUTOCONTRAST),
        one(Step.EQUALIZE),
        st.tuples(st.just(Step.BLUR), st.tuples(BLURS, BLURS).map(lambda pair: [*pair[0], *pair[1]])),
        one(Step.WARP_NEAREST, *WARPS),
        one(Step.WARP_BILINEAR, *WARPS),
        one(Step.FLIP, BITS, BITS),
        one(Step.PAD, FAR, FAR, FAR, FAR, st.integers(-1, 4).map(float), LEVELS, LEVELS, LEVELS),
        one(Step.PERMUTE, st.one_of(st.integers(-1, 6).map(float), PLACES)),
        one(Step.LUMA),
    ),
    max_size=12,
)


def image_of(height: int, width: int, seed: int) -> NDArray[np.uint8]:
    """Smooth and noisy areas, and sometimes flat channels."""
    rng = np.random.default_rng(seed)
    ramp = np.add.outer(np.arange(height), np.arange(width)) * rng.integers(0, 5)
    image = (ramp[None] + rng.integers(0, rng.integers(1, 256), (3, height, width))) % 256
    if seed % 5 == 0:
        image[seed % 3] = seed % 256
    return image.astype(np.uint8)


@given(program=PROGRAMS, height=st.integers(1, 70), width=st.integers(1, 90), seed=st.integers(0, 1 << 30))
def test_each_instruction_set_gives_the_same_pixels(program: Program, height: int, width: int, seed: int) -> None:
    found = [by_native(image_of(height, width, seed), program, name) for name in SETS]
    assert (found[0] == found[2]).all()
    assert (found[1] == found[2]).all()


GOLDEN = {
    Step.NOTHING: 0xEED2DF92,
    Step.BRIGHTNESS: 0xC10F7269,
    Step.CONTRAST: 0x04A93872,
    Step.SATURATION: 0xCA946543,
    Step.HUE: 0x33CFA53D,
    Step.SOLARIZE: 0xAB285F04,
    Step.POSTERIZE: 0xBE6C043C,
    Step.ADD_BELOW: 0x56FC6288,
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
    """Usual and impossible numbers, on each instruction set.

    Whoever changes a step on purpose changes its checksum.
    """
    image, rng = image_of(37, 61, int(step)), np.random.default_rng(int(step))
    drawn = [rng.choice([0, 1, 2, 5, 8.5, 63, 128, 200.7, 256, -3, np.nan], DRAWN).tolist() for _ in range(20)]
    for name in SETS:
        made = [by_native(image, [(step, numbers)], name).tobytes() for numbers in drawn]
        assert kernel.crc32c(b"".join(made)) == GOLDEN[step]


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


def taken(image: NDArray[np.uint8], code: Step, numbers: list[float]) -> NDArray[np.uint8]:
    return by_native(image, [(code, numbers)], SETS[0])


@pytest.mark.parametrize(("code", "numbers"), [*CASES, *WARPS], ids=lambda value: str(value))
def test_within_a_level_of_torchvision(code: Step, numbers: list[float]) -> None:
    for image in noise(2, 23, 19, seed=3).contiguous().numpy():
        outside = [min(value, 255) for value in numbers[8:]]
        wanted = np.floor(one_step(image, code, [*numbers[:8], *outside] or [0.0]))
        off = np.abs(taken(image, code, numbers) - np.clip(wanted, 0, 255))
        exact = code not in ROUNDED
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
