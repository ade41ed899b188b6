"""Memory stays flat over many decodes, successful and failed; torture's `life` does 100,000."""

import ctypes
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from kernel_images import KINDS, View, batch_of, decode_views, in_a_file, jpeg, photo, save, with_size
from PIL import Image

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel.contract import DecodeOptions, Kind, Status, TranscodeRecipe

LIMIT = 2 << 20  # bytes of growth; a leak of one small image per decode would be 50 times that
BATCH = 50

plain_allocator = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="the address sanitizer keeps what is freed for a while"
)


def resident() -> int:
    """Resident bytes after the allocator has returned free memory, which would hide a leak."""
    with suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def growth(step: Callable[[], None], steps: int) -> int:
    """Growth of resident memory over `steps` calls, after a tenth as many to warm up caches."""
    for _ in range(max(3, steps // 10)):
        step()
    before = resident()
    for _ in range(steps):
        step()
    return resident() - before


def decoding(payloads: list[bytes], good: bool, rows: list[tuple[int, int, int]] | None = None) -> Callable[[], None]:
    """A call decodes a batch of `BATCH` rows from a file; all succeed, or none does. `rows`: sizes of raw pixels."""
    source, _ = in_a_file(batch_of([payload for payload, _ in zip(cycle(payloads), range(BATCH), strict=False)]))
    if rows:
        source = source._replace(indexed=np.array(rows * (BATCH // len(rows)), np.int32))
    out, status = np.empty((BATCH, 24, 24, 3), np.uint8), np.empty(BATCH, np.int32)
    boxes, flips = np.array([(1, 1, 60, 44, 24, 24, 0, 0)] * BATCH, np.int32), np.zeros(BATCH, np.uint8)
    context = kernel.Context(DecodeOptions())

    def step() -> None:
        kernel.decode_batch(context, source, boxes, flips, out, status, 0, BATCH)
        assert ((status == Status.OK) == good).all()

    return step


def good_payloads() -> list[bytes]:
    kinds = [KINDS[kind](photo(64, 48)) for kind in sorted(KINDS)]
    return [*kinds, save(Image.fromarray(photo(64, 48)), "PNG")]


def bad_payloads() -> list[bytes]:
    """Failures in header, tables, pixels, boxes and limits."""
    whole, progressive = jpeg(photo(64, 48)), KINDS["progressive"](photo(64, 48))
    cuts = [whole[: len(whole) * part // 7] for part in range(1, 7)]
    return [*cuts, progressive[:-100], with_size(whole, 59, 48), with_size(whole, 65_000, 65_000), b"none", b""]


def raw_pixels(good: bool) -> Callable[[], None]:
    """Rows of two sizes in turn, or refused rows."""
    sizes = [(64, 48), (61, 45)]
    rows = [(Kind.RGB, width + (not good), height) for width, height in sizes]
    return decoding([photo(*size).tobytes() for size in sizes], good, rows)


def a_context() -> None:
    source, _alive = batch_of(good_payloads()[:1])
    assert decode_views(source, [View((1, 1, 60, 44, 24, 24, 0, 0), (24, 24))])[0] == [Status.OK]


def single_images() -> None:
    good, recipe = jpeg(photo(64, 48)), TranscodeRecipe(size=24, mode="short")
    kernel.decode(good)
    kernel.transcode(good, recipe)
    for function in (kernel.decode, kernel.read_header, lambda data: kernel.transcode(data, recipe)):
        with pytest.raises(DecodeError):
            function(good[:300])


@plain_allocator
@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda: decoding(good_payloads(), True), 60),
        (lambda: decoding(bad_payloads(), False), 100),
        (lambda: raw_pixels(True), 60),
        (lambda: raw_pixels(False), 60),
        (lambda: a_context, 40),
        (lambda: single_images, 400),
    ],
)
def test_memory_is_flat(make: Callable[[], Callable[[], None]], steps: int) -> None:
    assert growth(make(), steps) < LIMIT


@plain_allocator
def test_scratch_memory_goes_with_its_context() -> None:
    """48 MB of pixels and 16 MB of payload per context. The allocator may keep one of them for the next."""
    source, fd = in_a_file(batch_of([jpeg(np.zeros((3000, 4000, 3), np.uint8)) + bytes(16 << 20)]))
    view = View((0, 0, 4000, 3000, 24, 24, 0, 0), (24, 24))

    def step() -> None:
        assert decode_views(source, [view])[0] == [Status.OK]

    assert growth(step, 4) < 24 << 20
    os.close(fd)


def test_crc32c() -> None:
    """The check value of the CRC catalogue, and continued checksums."""
    assert kernel.crc32c(b"123456789") == 0xE3069283
    assert kernel.crc32c(b"") == 0
    data = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()
    for cut in (0, 1, 7, 8, 9, 63, 64, 65, 1000, 1023, 1024, 1025, 1279, 1280, 2303, 3975, 3976, 3977, 4999, 5000):
        assert kernel.crc32c(data[cut:], kernel.crc32c(data[:cut])) == kernel.crc32c(data)
        assert kernel.crc32c(memoryview(data)[cut:]) == kernel.crc32c(bytearray(data[cut:]))
    for length in (*range(300), *range(1000, 1400), 5000):  # every remainder of the vector loops
        assert kernel.crc32c(data[:length], 7) == google_crc32c.extend(7, data[:length])
