"""Raw pixels in `decode_batch`: crops and resampling as for any image, and validation of every row."""

from __future__ import annotations

import os
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from kernel_images import TURNS, View, batch_of, decode_views, in_a_file, jpeg, off_by, photo, save, upright, whole
from PIL import Image
from raw_images import SIZES, cases, raw_batch

from iofast import kernel
from iofast.kernel.contract import DecodeOptions, Kind, Status
from iofast.record import RAW_FIELDS


@given(case=cases())
def test_crops_are_those_of_the_image(case: tuple[tuple[int, int], View, int, str]) -> None:
    size, view, orientation, name = case
    lying = size[::-1] if orientation >= 5 else size
    source, _alive = raw_batch(Kind.RGB, [photo(*lying).tobytes()], [size], orientation, checked=True)
    status, pixels = decode_views(source, [view], DecodeOptions(filter=name))
    assert status == [Status.OK]
    image = Image.fromarray(photo(*lying))
    turn = TURNS[orientation]
    copies = name == "nearest" or view.box[4:6] == (view.box[2] - view.box[0], view.box[3] - view.box[1])
    assert off_by(pixels[0], image if turn is None else image.transpose(turn), view, name) <= (not copies)


@pytest.mark.parametrize("size", SIZES)
def test_rgb_is_the_pixels(size: tuple[int, int]) -> None:
    source, _alive = raw_batch(Kind.RGB, [photo(*size).tobytes()], [size])
    status, pixels = decode_views(source, [whole(*size)])
    assert status == [Status.OK]
    np.testing.assert_array_equal(pixels[0], photo(*size))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_any_strides(layout: str) -> None:
    sizes = [(71, 53), (30, 44), (53, 71)]
    payloads = [photo(*size).tobytes() for size in sizes]
    source, _alive = raw_batch(Kind.RGB, payloads, sizes)
    boxes = np.array([(2, 3, 29, 40, 24, 20, 0, 0)] * 3, np.int32)
    memory = np.full((3, 20, 24, 3) if layout == "NHWC" else (3, 3, 20, 24), 7, np.uint8)
    out = memory if layout == "NHWC" else memory.transpose(0, 2, 3, 1)
    status, flips = np.zeros(3, np.int32), np.array([0, 1, 0], np.uint8)
    kernel.decode_batch(kernel.Context(DecodeOptions()), source, boxes, flips, out, status, 0, 3)
    alone = decode_views(source, [View(tuple(boxes[0].tolist()), (24, 20), bool(flip)) for flip in flips])[1]
    assert status.tolist() == [Status.OK] * 3
    np.testing.assert_array_equal(out, alone)


def test_kinds_can_be_mixed() -> None:
    image = photo(40, 30)
    payloads = [jpeg(image), image.tobytes(), save(Image.fromarray(image), "PNG")]
    batch = batch_of(payloads, checked=True)
    rows = np.array([(0, 0, 0), (1, 40, 30), (0, 40, 30)], np.int32)
    boxes, flips, status = np.array([whole(40, 30).box] * 3, np.int32), np.zeros(3, np.uint8), np.full(3, -1, np.int32)
    pixels = np.empty((3, 30, 40, 3), np.uint8)
    with closing(kernel.Context(DecodeOptions())) as context:
        kernel.decode_batch(context, batch.source._replace(indexed=rows), boxes, flips, pixels, status, 0, 3)
        ways = context.counts().ways
    assert status.tolist() == [Status.OK] * 3
    assert (ways["raw"], sum(ways.values())) == (1, 3)
    for i in (1, 2):
        np.testing.assert_array_equal(pixels[i], image)
    np.testing.assert_array_equal(pixels[0], np.asarray(upright(payloads[0])))


REFUSED = {
    "a byte less": (Kind.RGB, 3 * 40 * 30 - 1, (40, 30), Status.TRUNCATED),
    "a byte more": (Kind.RGB, 3 * 40 * 30 + 1, (40, 30), Status.CORRUPT),
    "nothing": (Kind.RGB, 0, (40, 30), Status.TRUNCATED),
    "no width": (Kind.RGB, 0, (0, 30), Status.CORRUPT),
    "less than no height": (Kind.RGB, 3600, (40, -30), Status.CORRUPT),
    "a size that wraps round": (Kind.RGB, 3600, (2**31 - 1, 2**31 - 1), Status.LIMIT),
    "too many pixels": (Kind.RGB, 3600, (2**14 + 1, 2**14), Status.LIMIT),
    "no such kind": (3, 3600, (40, 30), Status.UNSUPPORTED),
    "less than no kind": (-1, 3600, (40, 30), Status.UNSUPPORTED),
    "a box outside": (Kind.RGB, 1200, (20, 20), Status.BOX),
}


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("name", REFUSED)
def test_invalid_rows_are_refused(name: str, checked: bool) -> None:
    kind, length, size, wanted = REFUSED[name]
    good = photo(40, 30).tobytes()
    source, _alive = raw_batch(kind, [bytes(length), good], [size, (40, 30)], checked=checked)
    source.indexed[1, 0] = Kind.RGB
    status, pixels = decode_views(source, [View((0, 0, 30, 28, 24, 20, 0, 0), (24, 20))] * 2)
    assert status == [wanted, Status.OK]
    assert not pixels[0].any()
    assert pixels[1].any()


def test_damage_is_found_wherever_it_is() -> None:
    data = bytearray(photo(40, 30).tobytes())
    source, alive = raw_batch(Kind.RGB, [bytes(data)], [(40, 30)], checked=True)
    data[-1] ^= 1
    damaged, _alive = raw_batch(Kind.RGB, [bytes(data)], [(40, 30)])
    view = View((0, 0, 8, 8, 8, 8, 0, 0), (8, 8))
    assert decode_views(damaged._replace(crcs=source.crcs), [view])[0] == [Status.CHECKSUM]
    assert decode_views(source, [view], DecodeOptions(max_bytes=len(data) - 1))[0] == [Status.LIMIT]
    assert decode_views(damaged, [view])[0] == [Status.OK]
    del alive


@pytest.mark.parametrize("checked", [True, False])
def test_payloads_in_a_file(checked: bool) -> None:
    sizes = [(71, 53), (64, 60), (53, 71)]
    batch = raw_batch(Kind.RGB, [photo(*size).tobytes() for size in sizes], sizes, checked=checked)
    view = [View((3, 20, 50, 47, 40, 30, 1, 2), (30, 24))] * 3
    source, fd = in_a_file(batch_of([bytes(data) for data in batch.alive], checked=checked))
    source = source._replace(indexed=batch.source.indexed)
    try:
        assert decode_views(source, view)[0] == [Status.OK] * 3
        np.testing.assert_array_equal(decode_views(source, view)[1], decode_views(batch.source, view)[1])
        end = int(source.offsets[2])
        os.ftruncate(fd, end + 10)
        assert decode_views(source, view)[0] == [Status.OK, Status.OK, Status.SHORT]
        source.offsets[0] = 2**64 - 5
        assert decode_views(source, view)[0][0] in (Status.SHORT, Status.READ)
        source.fds[1] = 9999
        assert decode_views(source, view)[0][1:] == [Status.READ, Status.SHORT]
    finally:
        os.close(fd)


def test_only_the_rows_of_the_crop_are_read() -> None:
    """Without a checksum, a file that ends behind these rows is long enough."""
    source, fd = in_a_file(batch_of([photo(40, 30).tobytes()]))
    source = source._replace(indexed=np.array([(Kind.RGB, 40, 30)], np.int32))
    view = View((0, 2, 40, 11, 40, 9, 0, 0), (40, 9))
    whole_file = decode_views(source, [view])
    used = 3 * 40 * 11
    try:
        os.ftruncate(fd, used)
        cut = decode_views(source, [view])
        assert cut[0] == whole_file[0] == [Status.OK]
        np.testing.assert_array_equal(cut[1], whole_file[1])
        os.ftruncate(fd, used - 1)
        assert decode_views(source, [view])[0] == [Status.SHORT]
    finally:
        os.close(fd)


def test_kinds_are_numbered_as_the_fields() -> None:
    assert [1 + RAW_FIELDS.index(field) for field in RAW_FIELDS] == [Kind.RGB]
