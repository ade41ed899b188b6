"""Steps on images: the native kernel equals torch, bit for bit, on each instruction set."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch_steps as steps
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from places import ROOT

from iofast.kernel.contract import DecodeOptions
from iofast.work import NUMBERS, PillowStep, Step

native = pytest.importorskip("iofast.kernel.native_batch")
_native = pytest.importorskip("iofast.kernel._native")

SETS = ("avx512", "avx2", "scalar")
HEADER = ROOT / "iofast" / "kernel" / "src" / "iofast.h"
LEVEL_STEPS = HEADER.with_name("level_steps.h")
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


@pytest.mark.parametrize("name", SETS)
@given(program=PROGRAMS, height=st.integers(1, 70), width=st.integers(1, 90), seed=st.integers(0, 1 << 30))
def test_native_is_torch(name: str, program: Program, height: int, width: int, seed: int) -> None:
    image = image_of(height, width, seed)
    codes, numbers = columns(program)
    wanted = steps.take_steps(torch.from_numpy(image)[None], codes[None], numbers[None])
    assert wanted.dtype == torch.uint8
    np.testing.assert_array_equal(by_native(image, program, name), wanted[0].numpy())


@pytest.mark.parametrize("step", Step)
def test_each_instruction_set_gives_the_same_pixels(step: Step) -> None:
    """Also of a step without a definition in torch."""
    image, rng = image_of(37, 61, int(step)), np.random.default_rng(int(step))
    for _ in range(20):
        program = [(step, rng.choice([0, 1, 2, 5, 8.5, 63, 128, 200.7, 256, -3, np.nan], NUMBERS).tolist())]
        found = [by_native(image, program, name) for name in SETS]
        assert (found[0] == found[2]).all()
        assert (found[1] == found[2]).all()
