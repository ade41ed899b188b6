"""The device's decoder, built for the host: its pixels are the kernel's, and damage stays within its memory."""

from typing import Any

import numpy as np
import pytest
from jpeg_damage import damage
from kernel_images import batch_of
from numpy.typing import NDArray
from region_images import OWN, encode, texture

from benchmarks.gpu.on_host import decode_on_host
from iofast import kernel
from iofast.gpu import jpegs
from iofast.gpu.stages import Output
from iofast.gpu.structs import DAMAGED
from iofast.kernel.contract import ALL_FILTERS, DecodeOptions, Finish
from iofast.work import no_work

SCALE = np.array([[0.017, 0.018, 0.019], [-2.1, -2.0, -1.8]], np.float32)
SIZES = ((24, 24), (7, 40), (64, 33), (1, 1), (100, 90))  # height, width


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
        seed, [drawn(rng) for _ in range(60)], SIZES[seed % 5], type, ("bilinear", "bilinear-aliased")[seed // 4], last
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
