"""The device's steps, erasings, mixing and store, built for the host, give the CPU kernel's values bit for bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.gpu.any_work import any_work
from benchmarks.gpu.on_host import HostMemory, run_on_host
from iofast import kernel
from iofast.gpu import jpegs
from iofast.gpu.stages import Output, prepare
from iofast.gpu.structs import IMAGE
from iofast.kernel.contract import TYPES, DecodeOptions, Finish
from iofast.work import PillowStep, Step

SIZES = ((24, 24), (1, 1), (2, 5), (3, 3), (40, 31))
STEPS = list(Step)
SCALE = np.array([[0.017, 0.018, 0.019], [-2.1, -2.0, -1.8]], np.float32)


def finished(images: NDArray[np.uint8], finish: Finish, out: NDArray[Any]) -> None:
    """By the device's code."""
    memory, count = HostMemory(), len(images)
    table = np.zeros(count, IMAGE)
    table["refused"] = 1 + np.arange(count)
    output = Output(images.shape[1:3], out.strides, finish)  # type: ignore[arg-type]
    prepared = prepare(memory, output, table, (0, 0, 0, 0, 0), (images.ctypes.data, images.strides))  # type: ignore[arg-type]
    run_on_host(memory, prepared, out)


@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(0, 6),
    erasings=st.integers(0, 2),
    type=st.sampled_from(list(TYPES)),
    size=st.sampled_from(SIZES),
    last=st.booleans(),
)
@example(seed=3, steps=70, erasings=0, type="float32", size=(24, 24), last=True)  # more than one pass takes
def test_values_are_the_kernels(
    seed: int, steps: int, erasings: int, type: str, size: tuple[int, int], last: bool
) -> None:
    rng, count = np.random.default_rng(seed), 5
    images = rng.integers(0, 256, (count, *size, 3), np.uint8)
    images[: count // 2] = images[: count // 2] // 64 + 100  # few levels
    work = any_work(rng, count, size, steps, erasings)
    finish = Finish(work, SCALE, rng.random((erasings, 3)).astype(np.float32), type)
    shape = (count, *size, 3) if last else (count, 3, *size)
    whole = [np.zeros(shape, TYPES[type]) for _ in range(2)]
    expected, found = whole if last else (each.transpose(0, 2, 3, 1) for each in whole)
    kernel.finish_batch(kernel.Context(DecodeOptions()), images, finish, expected)
    finished(images, finish, found)
    assert expected.tobytes() == found.tobytes(), work.steps.tolist()


@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
def test_each_step_has_the_kernels_pixels(step: Step) -> None:
    rng, count = np.random.default_rng(int(step)), 12
    images = rng.integers(0, 256, (count, 33, 47, 3), np.uint8)
    images[::2] //= 3
    work = any_work(rng, count, (33, 47), 1, 0)
    work.steps[:] = step
    finish = Finish(work, SCALE, np.zeros((0, 3), np.float32), "uint8")
    expected, found = np.zeros_like(images), np.zeros_like(images)
    kernel.finish_batch(kernel.Context(DecodeOptions()), images, finish, expected)
    finished(images, finish, found)
    np.testing.assert_array_equal(found, expected)


def test_codes_without_a_meaning_do_nothing() -> None:
    rng, images = np.random.default_rng(0), np.random.default_rng(1).integers(0, 256, (3, 9, 8, 3), np.uint8)
    work = any_work(rng, 3, (9, 8), 3, 0)
    finish, found = Finish(work, SCALE, np.zeros((0, 3), np.float32), "uint8"), np.zeros_like(images)
    work.steps[:] = -1
    finished(images, finish, found)
    np.testing.assert_array_equal(found, images)
    work.steps[1, 1] = PillowStep.HUE
    with pytest.raises(ValueError, match=r"the steps of iofast\.work\.Step, found PillowStep 23"):
        finished(images, finish, found)


@pytest.mark.parametrize("type", ["uint8", "bfloat16"])
def test_raw_pixels_in_device_memory_are_cut_like_the_kernels(type: str) -> None:
    """`cache="device"` of small images: cut from raw pixels, flipped, resampled, changed."""
    rng, count, size = np.random.default_rng(4), 16, (24, 20)
    block = rng.integers(0, 256, 3 * 40 * 40 * count, np.uint8)
    sizes = rng.integers(25, 40, (count, 2))
    places = np.cumsum([0, *(3 * sizes.prod(axis=1))])[:-1]
    boxes, flips = np.zeros((count, 8), np.int32), rng.integers(0, 2, count).astype(np.uint8)
    boxes[:, 2], boxes[:, 3], boxes[:, 4:6] = sizes[:, 1], sizes[:, 0], (30, 30)
    boxes[:, :2], boxes[:, 6:] = rng.integers(0, 9, (count, 2)), rng.integers(0, 6, (count, 2))
    finish = Finish(any_work(rng, count, size, 2, 1), SCALE, np.ones((1, 3), np.float32), type)
    memory, images, found = HostMemory(), np.zeros(count, IMAGE), np.zeros((count, *size, 3), TYPES[type])
    memory.arrays["jpegs"] = block
    crops = jpegs.Crops(boxes, flips, np.ones(count, np.uint8))
    taken = jpegs.place(jpegs.raw_files(places, sizes), crops, images, DecodeOptions(), size)
    assert not images["refused"].any()
    run_on_host(memory, prepare(memory, Output(size, found.strides, finish), images, taken), found)  # type: ignore[arg-type]
    indexed = np.column_stack([np.ones(count), sizes[:, ::-1]])
    source = kernel.Payloads.in_memory(block.ctypes.data + places, 3 * sizes.prod(axis=1), np.ones(count), indexed)
    cut, expected, status = np.zeros((count, *size, 3), np.uint8), np.zeros_like(found), np.zeros(count, np.int32)
    kernel.decode_batch(kernel.Context(DecodeOptions()), source, boxes, flips, cut, status, 0, count)
    assert not status.any()
    kernel.finish_batch(kernel.Context(DecodeOptions()), cut, finish, expected)
    assert found.tobytes() == expected.tobytes()
