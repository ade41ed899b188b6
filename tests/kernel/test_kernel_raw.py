"""Raw pixels in `decode_batch`, and from packing (`--format rgb`) to the loader."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from kernel_images import (
    TURNS,
    View,
    batch_of,
    decode_views,
    in_a_file,
    jpeg,
    off_by,
    photo,
    save,
    upright,
    whole,
)
from lmdb_containers import build
from PIL import Image
from raw_images import cases, raw_batch

from iofast import FastDataset, FastLoader, open_reader, open_writer
from iofast.kernel.contract import DecodeOptions, Kind, Status
from iofast.record import ImageInfo


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


def test_kinds_can_be_mixed() -> None:
    image = photo(40, 30)
    payloads = [jpeg(image), image.tobytes(), save(Image.fromarray(image), "PNG")]
    batch = batch_of(payloads, checked=True)
    rows = np.array([(0, 0, 0), (1, 40, 30), (0, 40, 30)], np.int32)
    status, pixels = decode_views(batch.source._replace(indexed=rows), [whole(40, 30)] * 3)
    assert status == [Status.OK] * 3
    np.testing.assert_array_equal(pixels, np.stack([np.asarray(upright(payloads[0])), image, image]))


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


def test_every_image_field_in_one_container(tmp_path: Path) -> None:
    image = photo(40, 30)
    size = {"width": 40, "height": 30}
    with open_writer(tmp_path / "mixed.lmdb") as writer:
        writer.write({"rgb": image.tobytes(), "json": size, "cls": 0})
        writer.write({"jpg": jpeg(image), "rgb": bytes(3), "json": {"width": 1, "height": 1}, "cls": 1})
        writer.write({"png": save(Image.fromarray(image), "PNG"), "cls": 2})
    with open_reader(tmp_path / "mixed.lmdb") as reader:
        assert reader.locate(np.arange(3)).kind.tolist() == [1, 0, 0]
        assert reader.locate(np.arange(3), "cls").kind.tolist() == [0, 0, 0]
    images, labels = next(iter(FastLoader(FastDataset(tmp_path / "mixed.lmdb"), 3)))
    wanted = [image, np.asarray(upright(jpeg(image))), image]
    assert labels.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), np.stack(wanted))


def test_an_orientation_in_the_index_is_applied(tmp_path: Path) -> None:
    """iofast stores upright pixels, but the format permits other orientations."""
    image = photo(40, 30)
    fields = {"rgb": image.tobytes(), "json": b'{"height":40,"width":30}'}
    build(tmp_path / "turned.lmdb", [(0, fields, ImageInfo(-1, 30, 40, 6), "all")])
    found = np.asarray(FastDataset(tmp_path / "turned.lmdb")[0][0])
    np.testing.assert_array_equal(found, np.rot90(image, -1))
