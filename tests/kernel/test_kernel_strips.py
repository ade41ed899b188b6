"""Checksums by strips: only the strips in the way are read, every byte that is used is checked, no pixel changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_images import View, batch_of, each_backend, in_a_file, jpeg, native, photo, upright
from raw_images import (
    KINDS,
    SIZES,
    cases,
    payload,
    raw_batch,
    run,
    strip_of_bytes,
    strips_in_the_way,
    strips_of,
    whole,
)

from iofast.kernel import raw, twin
from iofast.kernel.contract import DecodeOptions, Kind, Source, Status
from iofast.strips import raw_length, spans, strip_bounds

Case = tuple[Kind, tuple[int, int], View, int, str]


def stored(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    return size[::-1] if orientation >= 5 else size


@contextmanager
def striped(
    kind: Kind, data: bytes, size: tuple[int, int], orientation: int, seen: bytes | None = None
) -> Iterator[Source]:
    """One image of the upright `size` in a file, with the checksums of `data`; what is read there is `seen`."""
    checked, _alive = raw_batch(kind, [data], [size], orientation, checked=True)
    source, fd = in_a_file(batch_of([data if seen is None else seen], [orientation]))
    strips = strips_of(kind, data, *stored(size, orientation))[None]
    try:
        yield (*source[:3], checked[3], source[4], checked[5], strips)
    finally:
        os.close(fd)


@each_backend
@settings(max_examples=300)
@given(case=cases(), in_memory=st.booleans())
def test_pixels_are_those_of_the_whole(kernel: ModuleType, case: Case, in_memory: bool) -> None:
    kind, size, view, orientation, name = case
    data = payload(kind, photo(*stored(size, orientation)))
    unchecked, _alive = raw_batch(kind, [data], [size], orientation)
    options = DecodeOptions(filter=name)
    wanted = run(kernel, unchecked, [view], options)
    with striped(kind, data, size, orientation) as source:
        found = run(kernel, (*unchecked[:3], *source[3:]) if in_memory else source, [view], options)
    assert found[0] == wanted[0] == [Status.OK]
    np.testing.assert_array_equal(found[1], wanted[1])


@settings(max_examples=400)
@given(case=cases(), place=st.floats(0, 1, exclude_max=True))
def test_damage_is_found_where_it_would_be_used(case: Case, place: float) -> None:
    """In a strip in the way it is a status; in any other it changes nothing; twin and kernel agree on which."""
    kind, size, view, orientation, name = case
    lying = stored(size, orientation)
    data = payload(kind, photo(*lying))
    damaged = bytearray(data)
    at = int(place * len(data))
    damaged[at] ^= 1
    first, last = strips_in_the_way(kind, size, view, orientation)
    found = first <= strip_of_bytes(kind, *lying)[at] <= last
    for kernel in filter(None, (native, twin)):
        with striped(kind, data, size, orientation, bytes(damaged)) as source:
            status, pixels = run(kernel, source, [view], DecodeOptions(filter=name))
            whole_status, _ = run(kernel, (*source[:6], None), [view], DecodeOptions(filter=name))
        assert whole_status == [Status.CHECKSUM]
        assert status == [Status.CHECKSUM if found else Status.OK]
        with striped(kind, data, size, orientation) as source:
            good = run(kernel, source, [view], DecodeOptions(filter=name))[1]
        np.testing.assert_array_equal(pixels, 0 * good if found else good)


@each_backend
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [*SIZES, (9, 31), (9, 32), (9, 33), (131, 260)])
def test_whatever_else_is_in_the_file(kernel: ModuleType, kind: Kind, size: tuple[int, int]) -> None:
    """All bytes of strips that are not in the way may be others: neither read wrongly, nor interpolated with.

    Of the largest image the planes are read one by one, of the others in one go, for their gaps are small.
    """
    data = payload(kind, photo(*size))
    for y in range(0, size[1], 1 + size[1] // 70):
        view = View((0, y, size[0], y + 1, size[0], 1, 0, 0), (size[0], 1))
        first, last = strips_in_the_way(kind, size, view, 1)
        strips = strip_of_bytes(kind, *size)
        seen = np.frombuffer(data, np.uint8) ^ np.where((strips < first) | (strips > last), 255, 0).astype(np.uint8)
        with striped(kind, data, size, 1, seen.tobytes()) as source:
            for checked in (source, (*source[:3], None, *source[4:])):
                status, pixels = run(kernel, checked, [view])
                assert status == [Status.OK]
                np.testing.assert_array_equal(pixels[0], raw.unpack(data, kind, *size)[y : y + 1])


@each_backend
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_may_end_behind_the_strips(kernel: ModuleType, kind: Kind) -> None:
    size, view = (40, 64), View((0, 9, 40, 22, 40, 13, 0, 0), (40, 13))
    data = payload(kind, photo(*size))
    first, last = strips_in_the_way(kind, size, view, 1)
    end = int(np.flatnonzero(strip_of_bytes(kind, *size) == last)[-1]) + 1
    assert (first, last, end) == (2, 5, 2880) if kind == Kind.RGB else (2, 5, 40 * 64 + 20 * 32 + 20 * 12)
    with striped(kind, data, size, 1) as source:
        wanted = run(kernel, source, [view])
        os.ftruncate(int(source[0][0]), end)
        found = run(kernel, source, [view])
        assert found[0] == wanted[0] == [Status.OK]
        np.testing.assert_array_equal(found[1], wanted[1])
        os.ftruncate(int(source[0][0]), end - 1)
        assert run(kernel, source, [view])[0] == [Status.SHORT]
        source[0][0] = 9999
        assert run(kernel, source, [view])[0] == [Status.READ]


@each_backend
def test_strips_are_of_raw_pixels_alone(kernel: ModuleType) -> None:
    """An encoded image is checked as a whole whatever stands beside it; without `crcs` nothing is checked."""
    image = photo(40, 30)
    payloads = [jpeg(image), payload(Kind.RGB, image), payload(Kind.YUV420, image)]
    batch = batch_of(payloads, checked=True)
    rows = np.array([(0, 0, 0), (1, 40, 30), (2, 40, 30)], np.int32)
    strips = np.zeros((3, 16), np.uint32)
    for kind in KINDS:
        strips[kind] = strips_of(kind, payloads[kind], 40, 30)
    status, pixels = run(kernel, (*batch.source[:5], rows, strips), [whole(40, 30)] * 3)
    assert status == [Status.OK] * 3
    np.testing.assert_array_equal(pixels[0], np.asarray(upright(payloads[0])))
    np.testing.assert_array_equal(pixels[1], image)
    views, wrong, bad, crcs = [whole(40, 30)] * 3, strips ^ 1, Status.CHECKSUM, batch.source[3]
    assert crcs is not None
    assert run(kernel, (*batch.source[:5], rows, wrong), views)[0] == [Status.OK, bad, bad]
    others = (*batch.source[:3], crcs ^ 1, batch.source[4], rows, strips)
    assert run(kernel, others, views)[0] == [bad, Status.OK, Status.OK]
    unchecked = (*batch.source[:3], None, batch.source[4], rows, wrong)
    assert run(kernel, unchecked, views)[0] == [Status.OK] * 3


@each_backend
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused_is_refused_before(kernel: ModuleType, kind: Kind) -> None:
    """Strips that cannot be those of the payload are not looked at: its size is wrong, and that is said."""
    length = raw.length(kind, 40, 30)
    for size, wanted in (((40, 31), Status.TRUNCATED), ((40, 29), Status.CORRUPT), ((0, 30), Status.CORRUPT)):
        source, _alive = raw_batch(kind, [bytes(length)], [size], checked=True)
        assert run(kernel, (*source[:6], np.ones((1, 16), np.uint32)), [whole(8, 8)])[0] == [wanted]


@given(st.sampled_from(("rgb", "yuv")), st.integers(1, 40), st.integers(1, 300))
def test_strips_cover_every_byte_once(field: str, width: int, height: int) -> None:
    bounds = strip_bounds(height)
    assert (len(bounds), bounds[0], bounds[-1]) == (17, 0, (height + 1) // 2)
    strips = np.full(raw_length(field, width, height), -1)
    for strip in range(16):
        for start, stop in spans(field, width, height, *bounds[strip : strip + 2]):
            assert (strips[start:stop] == -1).all()
            strips[start:stop] = strip
    np.testing.assert_array_equal(strips, strip_of_bytes(Kind.RGB if field == "rgb" else Kind.YUV420, width, height))
