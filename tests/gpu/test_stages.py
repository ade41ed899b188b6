"""The device's code, built for the host: decoder, steps, erasings, mixing and store give the CPU kernel's values."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jpeg_damage import damage
from kernel_images import batch_of
from numpy.typing import NDArray
from region_images import OWN, encode, texture

from benchmarks.gpu.any_work import any_work
from benchmarks.gpu.on_host import HostMemory, decode_on_host, run_on_host
from iofast import kernel
from iofast.gpu import jpegs
from iofast.gpu.stages import Output, prepare
from iofast.gpu.structs import DAMAGED, IMAGE
from iofast.kernel.contract import ALL_FILTERS, TYPES, DecodeOptions, Finish
from iofast.work import PillowStep, Step, no_work

SIZES = ((24, 24), (1, 1), (2, 5), (3, 3), (40, 31))
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
@example(seed=3, steps=70, erasings=0, type="float32", size=(40, 31), last=True)  # more than one pass takes; every kind
def test_values_are_the_kernels(
    seed: int, steps: int, erasings: int, type: str, size: tuple[int, int], last: bool
) -> None:
    rng, count = np.random.default_rng(seed), 5
    images = rng.integers(0, 256, (count, *size, 3), np.uint8)
    images[: count // 2] = images[: count // 2] // 64 + 100  # few levels
    work = any_work(rng, count, size, steps, erasings)
    assert steps < 70 or {*work.steps.ravel().tolist()} == {*Step}
    finish = Finish(work, SCALE, rng.random((erasings, 3)).astype(np.float32), type)
    shape = (count, *size, 3) if last else (count, 3, *size)
    whole = [np.zeros(shape, TYPES[type]) for _ in range(2)]
    expected, found = whole if last else (each.transpose(0, 2, 3, 1) for each in whole)
    kernel.finish_batch(kernel.Context(DecodeOptions()), images, finish, expected)
    finished(images, finish, found)
    assert expected.tobytes() == found.tobytes(), work.steps.tolist()


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


CUTS = ((24, 24), (7, 40), (64, 33), (1, 1), (100, 90))  # height, width


def drawn(rng: np.random.Generator) -> bytes:
    """A JPEG with restart markers."""
    width, height = (int(side) for side in rng.integers(5, 160, 2))
    restart, quality = int(rng.choice([1, 2, 3, 5, 8, 40])), int(rng.choice([30, 75, 90, 100]))
    pixels = texture(rng, width, height)
    return encode(pixels, OWN[rng.integers(4)], restart, quality, optimize=bool(rng.random() < 0.05)).data


def place(rng: np.random.Generator, data: bytes, exif: int, size: tuple[int, int]) -> tuple[int, ...]:
    """A crop of an image and a window of it."""
    try:
        sides = kernel.read_header(data)[1:3][:: -1 if exif >= 5 else 1]
    except kernel.DecodeError:
        sides = (20, 20)
    across, down = (sorted(rng.choice(max(1, min(side, 4000)) + 1, 2, replace=False).tolist()) for side in sides)
    more = rng.integers(0, 20, 2) * int(rng.integers(2))
    virtual = size[1] + more[0], size[0] + more[1]
    return across[0], down[0], across[1], down[1], *virtual, *rng.integers(0, more + 1)


def both(
    seed: int, files: list[bytes], size: tuple[int, int], type: str, filter: str, last: bool
) -> tuple[NDArray[np.int32], NDArray[np.int32], list[int]]:
    """The status by the host's build and by the kernel, and the images of which the former's pixels differ."""
    rng, count = np.random.default_rng(seed), len(files)
    turns = np.where(rng.random(count) < 0.5, 1, rng.integers(1, 9, count)).tolist()
    source, _alive = batch_of(files, turns)
    options, flips = DecodeOptions(filter=filter), rng.integers(0, 2, count).astype(np.uint8)
    places = np.array([place(rng, data, exif, size) for data, exif in zip(files, turns, strict=True)], np.int32)
    shape = (count, *size, 3) if last else (count, 3, *size)
    stored = np.dtype("uint16" if type == "bfloat16" else type)

    def batch() -> tuple[NDArray[Any], NDArray[Any]]:
        whole = np.zeros(shape, stored)
        return whole, whole if last else whole.transpose(0, 2, 3, 1)

    expected, as_rows = batch()
    status = np.zeros(count, np.int32)
    finish = Finish(no_work(count), SCALE, np.zeros((0, 3), np.float32), type)
    kernel.decode_batch(kernel.Context(options), source, places, flips, as_rows, status, 0, count, finish)
    found, as_rows = batch()
    wanted = Output(size, as_rows.strides, finish)
    mine = decode_on_host(source, jpegs.Crops(places, flips, source.orientations), options, wanted, found)
    return mine, status, [row for row in range(count) if not mine[row] and (found[row] != expected[row]).any()]


@pytest.mark.parametrize("seed", range(8))
def test_pixels_are_the_kernels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    type, last = ("uint8", "float32", "bfloat16", "float16")[seed % 4], bool(rng.integers(2))
    mine, status, differ = both(
        seed,
        [drawn(rng) for _ in range(60)],
        CUTS[seed % 5],
        type,
        ("bilinear", "bilinear-aliased")[seed // 4],
        last,
    )
    assert not differ
    assert not status.any()
    assert (mine == 0).mean() > 0.3  # the others are reduced too much, or have few bytes for many segments


def test_other_filters_are_left_to_the_kernel() -> None:
    rng = np.random.default_rng(1)
    files = [drawn(rng) for _ in range(4)]
    for filter in set(ALL_FILTERS) - {"bilinear", "bilinear-aliased"}:
        mine, _, _ = both(1, files, (24, 24), "uint8", filter, last=True)
        assert (mine == -1).all()


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_found_or_harmless(seed: int) -> None:
    """What the kernel refuses, the device does not pass; what it passes has the kernel's pixels."""
    rng = np.random.default_rng(seed)
    mine, status, differ = both(
        seed, [damage(drawn(rng), rng) for _ in range(150)], (24, 24), "uint8", "bilinear", last=True
    )
    assert not differ
    assert not (status[mine == 0]).any()
    assert (mine == DAMAGED).any()
