"""Images of different sizes in one batch: where they go, and that each is what a batch of its own gives."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_images import photo, save
from loader_sets import photographs, write_folder, write_lmdb
from PIL import Image

from iofast import kernel, open_reader
from iofast import transforms as T
from iofast.boxes import output_sizes
from iofast.choices import Draw
from iofast.containers.joined import JoinedReader
from iofast.errors import OptionError
from iofast.kernel import DecodeOptions, Status

IMAGES = photographs(9)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> JoinedReader:
    """JPEGs with and without checksums, and a PNG, which has no header of a JPEG."""
    root = tmp_path_factory.mktemp("sizes")
    write_lmdb(root / "a.lmdb", IMAGES[:5])
    write_lmdb(root / "b.lmdb", [save(Image.fromarray(photo(31, 17, 1)), "PNG")] * 3, "png")
    write_folder(root / "c", IMAGES[5:8])
    names = ["a.lmdb", "b.lmdb", "c"]
    return JoinedReader([open_reader(root / name) for name in names], names)


ROWS = np.array([0, 8, 9, 5, 1, 6, 10, 4])
EACH = [T.Resize(20)], [T.RandomHorizontalFlip(0.5)], [T.Resize(33, max_size=40)]


@pytest.mark.parametrize("transform", EACH)
@pytest.mark.parametrize("channels", ["last", "first"])
def test_each_is_what_it_is_alone(reader: JoinedReader, transform: list[T.Transform], channels: str) -> None:
    located = reader.locate(ROWS)
    pipeline = T.compile(transform)
    boxes, flips = pipeline.plan(Draw(1, 2, ROWS.astype(np.int64)), located.width, located.height)
    sizes = output_sizes(boxes)
    height, width = sizes.max(axis=0).tolist()
    batch = np.full((len(ROWS), height, width, 3), 7, np.uint8)
    if channels == "first":
        batch = np.full((len(ROWS), 3, height, width), 7, np.uint8).transpose(0, 2, 3, 1)
    corners = [image[:high, :wide] for image, (high, wide) in zip(batch, sizes.tolist(), strict=True)]
    apart = [np.full((high, wide, 3), 7, np.uint8) for high, wide in sizes.tolist()]
    context = kernel.Context(DecodeOptions(filter=pipeline.filter))
    with reader.payloads(located, 0, len(ROWS)) as payloads:
        for outs in (corners, apart):
            status = np.full(len(ROWS), -1, np.int32)
            kernel.decode_each(context, payloads, boxes, flips, outs, status)
            assert not status.any()
            for row, out in enumerate(outs):
                alone = np.zeros((len(ROWS), *sizes[row], 3), np.uint8)
                kernel.decode_batch(context, payloads, boxes, flips, alone, status, row, row + 1)
                assert out.shape[:2] == tuple(sizes[row])
                assert (out == alone[row]).all()
    assert sum(context.counts().ways.values()) == 4 * len(ROWS)
    for image, (high, wide) in zip(batch, sizes.tolist(), strict=True):
        assert (image[high:] == 7).all()
        assert (image[:, wide:] == 7).all()
    assert len({tuple(size) for size in sizes.tolist()}) > 3


def test_a_row_that_fails(reader: JoinedReader) -> None:
    located = reader.locate(ROWS)
    width, height = located.width.copy(), located.height.copy()
    width[2] = 0
    assert located.crc is not None
    located.crc[[0, 3]] ^= 1  # a JPEG and a PNG; rows 1, 2 and 6 have none
    boxes, flips = T.compile(None).plan(Draw(0, 0, ROWS.astype(np.int64)), width, height)
    sizes = output_sizes(boxes)
    assert sizes[2].tolist() == [1, 1]
    outs = [np.full((high, wide, 3), 7, np.uint8) for high, wide in sizes.tolist()]
    status = np.zeros(len(ROWS), np.int32)
    with reader.payloads(located, 0, len(ROWS)) as payloads:
        kernel.decode_each(kernel.Context(DecodeOptions()), payloads, boxes, flips, outs, status)
    assert status.tolist() == [Status.CHECKSUM, 0, Status.BOX, Status.CHECKSUM, 0, 0, 0, 0]
    assert not outs[0].any()
    assert not outs[2].any()


def test_arrays_that_do_not_fit(reader: JoinedReader) -> None:
    located = reader.locate(ROWS[:2])
    boxes, flips = np.zeros((2, 8), np.int32), np.zeros(2, np.uint8)
    context, status = kernel.Context(DecodeOptions()), np.zeros(2, np.int32)
    good = np.zeros((2, 2, 3), np.uint8)
    wrong = [[good], [good, good, good], [good, good[:, :, :2]], [good, good[:0]], [good, good.astype(np.int8)]]
    with reader.payloads(located, 0, 2) as payloads:
        for outs in wrong:
            with pytest.raises(OptionError, match="outs"):
                kernel.decode_each(context, payloads, boxes, flips, outs, status)
        with pytest.raises(OptionError, match="rows"):
            kernel.decode_each(context, payloads, boxes[:1], flips, [good, good], status)


def test_no_rows(reader: JoinedReader) -> None:
    none = np.zeros((0, 2), np.int64)
    boxes, flips, status = np.zeros((0, 8), np.int32), np.zeros(0, np.uint8), np.zeros(0, np.int32)
    with reader.payloads(reader.locate(none[:, 0]), 0, 0) as payloads:
        kernel.decode_each(kernel.Context(DecodeOptions()), payloads, boxes, flips, [], status)
