"""Memory stays flat over many decodes, good and failed. `--slow` makes it 10^5 of each."""

from __future__ import annotations

import resource
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from kernel_images import KINDS, View, batch_of, each_backend, jpeg, native, photo, save, with_size
from PIL import Image

from iofast.errors import DecodeError
from iofast.kernel.contract import DecodeOptions, Status, TranscodeRecipe

LIMIT = 2 << 20  # bytes of growth; a leak of one small image per decode would be 50 times that
BATCH = 50


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def growth(step: Callable[[], None], steps: int) -> int:
    """By how much resident memory grows over `steps` calls, after a tenth as many that warm caches up."""
    for _ in range(max(3, steps // 10)):
        step()
    before = resident()
    for _ in range(steps):
        step()
    return resident() - before


def decoding(kernel: ModuleType, payloads: list[bytes], good: bool) -> Callable[[], None]:
    """A function that decodes a batch of `BATCH`; all of its rows are fine, or none is."""
    chosen = [payload for payload, _ in zip(cycle(payloads), range(BATCH), strict=False)]
    source, alive = batch_of(chosen)
    out, status = np.empty((BATCH, 24, 24, 3), np.uint8), np.empty(BATCH, np.int32)
    boxes, flips = np.array([(1, 1, 60, 44, 24, 24, 0, 0)] * BATCH, np.int32), np.zeros(BATCH, np.uint8)
    context = kernel.Context(DecodeOptions())

    def step() -> None:
        assert alive
        kernel.decode_batch(context, source, boxes, flips, out, status, 0, BATCH)
        assert ((status == Status.OK) == good).all()

    return step


def good_payloads() -> list[bytes]:
    kinds = [KINDS[kind](photo(64, 48)) for kind in sorted(KINDS)]
    return [*kinds, save(Image.fromarray(photo(64, 48)), "PNG")]


def bad_payloads() -> list[bytes]:
    """Failures in the header, in the tables, in the pixels, of the box and of the limits."""
    whole, progressive = jpeg(photo(64, 48)), KINDS["progressive"](photo(64, 48))
    cuts = [whole[: len(whole) * part // 7] for part in range(1, 7)]
    return [*cuts, progressive[:-100], with_size(whole, 59, 48), with_size(whole, 65_000, 65_000), b"none", b""]


def check(kernel: ModuleType, decodes: int, failures: int) -> None:
    assert growth(decoding(kernel, good_payloads(), True), decodes // BATCH) < LIMIT
    assert growth(decoding(kernel, bad_payloads(), False), failures // BATCH) < LIMIT


@each_backend
def test_memory_is_flat(kernel: ModuleType) -> None:
    check(kernel, 3000, 20_000 if kernel is native else 5000)


@pytest.mark.slow
@each_backend
def test_memory_is_flat_for_long(kernel: ModuleType) -> None:
    check(kernel, 100_000, 100_000)


@each_backend
def test_memory_is_flat_over_contexts(kernel: ModuleType) -> None:
    def step() -> None:
        decoding(kernel, good_payloads()[:1], True)()

    assert growth(step, 40) < LIMIT


@each_backend
def test_memory_is_flat_over_single_images(kernel: ModuleType) -> None:
    good, bad = jpeg(photo(64, 48)), jpeg(photo(64, 48))[:700]
    recipe = TranscodeRecipe(size=24, mode="short")

    def step() -> None:
        kernel.decode(good)
        kernel.transcode(good, recipe)
        for function in (kernel.decode, kernel.read_header, lambda data: kernel.transcode(data, recipe)):
            with pytest.raises(DecodeError):
                function(bad[:300])

    assert growth(step, 400) < LIMIT


@each_backend
def test_a_large_image_does_not_stay(kernel: ModuleType) -> None:
    """Scratch memory belongs to the context, and goes with it."""
    data = jpeg(np.zeros((3000, 4000, 3), np.uint8))
    view = View((0, 0, 4000, 3000, 24, 24, 0, 0), (24, 24))

    def step() -> None:
        source, _alive = batch_of([data])
        context = kernel.Context(DecodeOptions())
        out, status = np.empty((1, 24, 24, 3), np.uint8), np.empty(1, np.int32)
        boxes, flips = np.array([view.box], np.int32), np.zeros(1, np.uint8)
        kernel.decode_batch(context, source, boxes, flips, out, status, 0, 1)
        assert status[0] == Status.OK
        context.close()

    before = resident()
    step()
    assert resident() - before < 8 << 20


@each_backend
def test_crc32c(kernel: ModuleType) -> None:
    """The check value of the CRC catalogue, and continuation."""
    assert kernel.crc32c(b"123456789") == 0xE3069283
    assert kernel.crc32c(b"") == 0
    data = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()
    for cut in (0, 1, 7, 8, 9, 63, 64, 65, 1000, 4999, 5000):
        assert kernel.crc32c(data[cut:], kernel.crc32c(data[:cut])) == kernel.crc32c(data)
        assert kernel.crc32c(memoryview(data)[cut:]) == kernel.crc32c(bytearray(data[cut:]))
