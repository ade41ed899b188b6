"""Pixels of `decode` and `decode_batch`, of JPEGs and raw: Pillow's within a level, in any geometry and layout."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import (
    KINDS,
    TURNS,
    View,
    batch_of,
    decode_view,
    decode_views,
    expected,
    in_a_file,
    jpeg,
    off_by,
    photo,
    raw_batch,
    save,
    upright,
    views,
    worst,
)
from lmdb_containers import build
from PIL import Image

from iofast import FastDataset, FastLoader, kernel, open_reader, open_writer
from iofast.kernel.contract import FILTERS, DecodeOptions, Status
from iofast.record import ImageInfo

PLANS = {
    "crop and resize": View((37, 21, 390, 250, 224, 160, 0, 0), (224, 160), True),
    "resize and crop": View((0, 0, 500, 375, 341, 256, 58, 16), (224, 224)),
    "the same size": View((0, 0, 500, 375, 500, 375, 0, 0), (500, 375)),
    "enlarge 40x": View((100, 90, 108, 95, 320, 200, 0, 0), (320, 200)),
    "a window of an enlargement": View((60, 50, 200, 150, 2800, 2000, 1311, 777), (96, 64)),
    "shrink 40x": View((0, 0, 500, 375, 12, 9, 0, 0), (12, 9), True),
    "wide to tall": View((3, 200, 499, 203, 9, 300, 0, 0), (9, 300)),
    "one pixel": View((499, 374, 500, 375, 1, 1, 0, 0), (1, 1)),
    "a corner": View((460, 340, 500, 375, 64, 64, 0, 0), (64, 64)),
}


def check(data: bytes, image: Image.Image, view: View, name: str, orientation: int = 1) -> None:
    """The view of `data` is within one level of Pillow's of `image`."""
    status, pixels = decode_view(data, view, DecodeOptions(filter=name), orientation)
    assert status == Status.OK
    assert off_by(pixels, image, view, name) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_whole_images_equal_pillow(kind: str) -> None:
    for width, height in ((500, 375), (130, 3), (3, 130), (33, 17), (1, 1)):
        data = KINDS[kind](photo(width, height))
        np.testing.assert_array_equal(kernel.decode(data), np.asarray(upright(data)))


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_jpeg_with_every_filter(kind: str, filter: str) -> None:
    data = KINDS[kind](photo(500, 375))
    for plan in PLANS if kind == "420" else ("crop and resize", "resize and crop"):
        check(data, upright(data), PLANS[plan], filter)


_sides = st.one_of(st.integers(1, 20), st.integers(1, 400))


@given(st.data())
def test_any_geometry_of_any_image(data: st.DataObject) -> None:
    width, height = data.draw(_sides), data.draw(_sides)
    payload = KINDS[data.draw(st.sampled_from(sorted(KINDS)))](photo(width, height, data.draw(st.integers(0, 3))))
    orientation = data.draw(st.integers(1, 8))
    image = upright(payload, orientation)
    check(payload, image, data.draw(views(*image.size)), data.draw(st.sampled_from(FILTERS)), orientation)


@pytest.mark.parametrize("size", [(65_500, 1), (1, 65_500), (65_500, 3), (16, 30_000)], ids=str)
def test_extreme_shapes(size: tuple[int, int]) -> None:
    width, height = size
    data = jpeg(photo(width, height))
    image = upright(data)
    np.testing.assert_array_equal(kernel.decode(data), np.asarray(image))
    middle = (width // 3, height // 3, width // 3 + max(1, width // 50), height // 3 + max(1, height // 50))
    for view in (View((*middle, 50, 40, 0, 0), (50, 40)), View((0, 0, *size, 64, 64, 0, 0), (64, 64), True)):
        for name in FILTERS:
            check(data, image, view, name)


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("exact", [False, True])
def test_outputs_of_any_strides(filter: str, exact: bool) -> None:
    view = PLANS["crop and resize"]
    (width, height), data = view.size, KINDS["420"](photo(500, 375))
    options = DecodeOptions(filter=filter, exact=exact)
    _, wanted = decode_view(data, view, options)
    padded = np.full((3, height + 2, width + 5, 4), 7, np.uint8)
    layouts = {
        "planes": np.zeros((3, 3, height, width), np.uint8).transpose(0, 2, 3, 1),
        "upside down": np.zeros((3, height, width, 3), np.uint8)[:, ::-1],
        "blue first": np.zeros((3, height, width, 3), np.uint8)[..., ::-1],
        "every other": np.zeros((6, height, 2 * width, 3), np.uint8)[::2, :, ::2],
        "columns first": np.zeros((3, width, height, 3), np.uint8).transpose(0, 2, 1, 3),
        "padded": padded[:, 1:-1, 2:-3, :3],
    }
    source, _alive = batch_of([data] * 3)
    boxes, flips, status = np.array([view.box] * 3, np.int32), np.ones(3, np.uint8), np.full(3, -1, np.int32)
    context = kernel.Context(options)
    for name, out in layouts.items():
        kernel.decode_batch(context, source, boxes, flips, out, status, 0, 3)
        assert status.tolist() == [0, 0, 0], name
        np.testing.assert_array_equal(out, np.stack([wanted] * 3), err_msg=name)
    border = padded.copy()
    border[:, 1:-1, 2:-3, :3] = 7
    assert (border == 7).all(), "bytes outside of the view were written"


def test_fast_still_shows_the_same_picture() -> None:
    """DCT scaling is another antialiasing filter, so the bound is loose, but pixels must not move."""
    data = jpeg(photo(1200, 900), quality=95)
    for box in ((0, 0, 1200, 900), (117, 203, 1101, 877), (333, 100, 800, 850)):
        for orientation in (1, 6):
            upright_box = box if orientation == 1 else (box[1], box[0], box[3], box[2])
            view = View((*upright_box, 96, 80, 0, 0), (96, 80))
            status, pixels = decode_view(data, view, DecodeOptions(fast=True), orientation)
            assert status == Status.OK
            wanted = expected(upright(data, orientation), view, "bilinear").astype(int)
            error = np.abs(pixels - wanted)
            assert error.mean() < 2.5
            for moved in (np.roll(wanted, 1, axis=0), np.roll(wanted, 1, axis=1)):
                assert error.mean() < np.abs(pixels - moved).mean() / 2


def first_scans(data: bytes, count: int) -> bytes:
    """A progressive JPEG that ends after some of its scans, as if it had no others."""
    tables = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xc4"]
    scans = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    return data[: min(at for at in (*tables, *scans) if at > scans[count - 1])] + b"\xff\xd9"


@pytest.mark.parametrize("kind", ["progressive", "progressive gray"])
def test_a_progressive_file_that_lacks_scans_is_whole(kind: str) -> None:
    """Nothing in the file shows that scans are missing. Its blocks are smoothed, in a crop as in the whole."""
    data = KINDS[kind](photo(200, 150))
    for count in (1, 2, 5):
        lacking = first_scans(data, count)
        image = kernel.decode(lacking)
        assert worst(image, np.asarray(upright(lacking))) < 12  # versions of libjpeg-turbo smooth differently
        assert (image != kernel.decode(data)).any()
        for x0, y0, x1, y1 in ((90, 60, 150, 140), (0, 100, 40, 150), (170, 0, 200, 9)):
            view = View((x0, y0, x1, y1, x1 - x0, y1 - y0, 0, 0), (x1 - x0, y1 - y0))
            for strict in (True, False):
                status, pixels = decode_view(lacking, view, DecodeOptions(strict=strict))
                assert status == Status.OK
                np.testing.assert_array_equal(pixels, image[y0:y1, x0:x1])


def test_every_instruction_set_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    data, found = KINDS["420"](photo(150, 150)), []
    for simd in ("scalar", "avx2", "avx512bw", ""):
        monkeypatch.setenv("IOFAST_SIMD", simd)  # read when a context is made
        made = [
            decode_view(data, View((11, 7, 140, 131, *size, 0, 0), size, True), DecodeOptions(filter=name), orientation)
            for name in FILTERS
            for orientation in (1, 6)
            for size in ((77, 61), (301, 224), (9, 40), (64, 7))  # mild and strong reduction, enlargement, odd tails
        ]
        found.append([(status, pixels.tobytes()) for status, pixels in made])
    assert len(set(found[0])) > 30  # for enlargement, box is nearest
    assert found[0] == found[1] == found[2] == found[3]


@given(st.tuples(st.integers(1, 80), st.integers(1, 80)), st.integers(1, 8), st.sampled_from(FILTERS), st.data())
def test_crops_are_those_of_the_image(size: tuple[int, int], orientation: int, name: str, data: st.DataObject) -> None:
    view, lying = data.draw(views(*size)), size[::-1] if orientation >= 5 else size
    source, _alive = raw_batch([photo(*lying).tobytes()], [size], orientation, checked=True)
    status, pixels = decode_views(source, [view], DecodeOptions(filter=name))
    assert status == [Status.OK]
    image = Image.fromarray(photo(*lying))
    turn = TURNS[orientation]
    copies = name == "nearest" or view.box[4:6] == (view.box[2] - view.box[0], view.box[3] - view.box[1])
    assert off_by(pixels[0], image if turn is None else image.transpose(turn), view, name) <= (not copies)


@pytest.mark.parametrize("checked", [True, False])
def test_payloads_in_a_file(checked: bool) -> None:
    sizes = [(71, 53), (64, 60), (53, 71)]
    batch = raw_batch([photo(*size).tobytes() for size in sizes], sizes, checked=checked)
    view = [View((3, 20, 50, 47, 40, 30, 1, 2), (30, 24))] * 3
    source, fd = in_a_file(batch)
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
    source, fd = in_a_file(raw_batch([photo(40, 30).tobytes()], [(40, 30)]))
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
        writer.write({"jpg": jpeg(image), "rgb": bytes(3), "json": '{"width": 1, "height": 1}', "cls": 1})
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
