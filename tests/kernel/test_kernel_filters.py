"""Filters: one for each row, without antialiasing, beyond the image, and patterns of single pixels of any length."""

import platform
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from kernel_images import (
    Pixels,
    View,
    batch_of,
    decode_view,
    decode_views,
    expected,
    jpeg,
    photo,
    raw_batch,
    save,
    worst,
)
from numpy.typing import NDArray
from PIL import Image

from iofast import kernel
from iofast.boxes import within
from iofast.kernel.contract import ALIASED, ALL_FILTERS, FILTERS, DecodeOptions, Status, TranscodeRecipe

PLAN = View((37, 21, 390, 250, 224, 160, 10, 7), (200, 150))


def by_row(data: bytes, view: View, flips: Sequence[int], options: DecodeOptions) -> NDArray[np.uint8]:
    """One image, once for each of `flips`, all without an error."""
    source, _alive = batch_of([data] * len(flips))
    status, out = decode_views(source, [view._replace(flip=flip) for flip in flips], options)
    assert status == [Status.OK] * len(flips)
    return out


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_each_row_has_its_own_filter(kind: str) -> None:
    pixels = photo(500, 375)
    data = jpeg(pixels) if kind == "jpeg" else save(Image.fromarray(pixels), "PNG")
    flips = [1 + number << 1 | number & 1 for number in range(len(ALL_FILTERS))]
    made = by_row(data, PLAN, [*flips, 0], DecodeOptions(filter="lanczos"))
    for number, name in enumerate((*ALL_FILTERS, "lanczos")):
        own = PLAN._replace(flip=number < len(ALL_FILTERS) and bool(number & 1))
        _, wanted = decode_view(data, own, DecodeOptions(filter=name))
        np.testing.assert_array_equal(made[number], wanted)


@pytest.mark.parametrize("size", [(30, 20), (301, 17), (900, 700), (500, 375)])
def test_without_antialias_it_is_torchs(size: tuple[int, int]) -> None:
    pixels = photo(500, 375)
    data = save(Image.fromarray(pixels), "PNG")
    status, made = decode_view(data, View((0, 0, 500, 375, *size, 0, 0), size), DecodeOptions(filter=ALIASED))
    assert status == Status.OK
    planes = torch.from_numpy(pixels).permute(2, 0, 1).float().unsqueeze(0)
    wanted = torch.nn.functional.interpolate(planes, size[::-1], mode="bilinear")[0].permute(1, 2, 0).numpy()
    assert np.abs(made.astype(np.float64) - wanted).max() <= 1


@pytest.mark.parametrize("flip", [0, 1])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_smaller_image_goes_to_the_upper_left(flip: int, orientation: int) -> None:
    pixels = photo(40, 30)
    upright = pixels if orientation == 1 else np.rot90(pixels, -1)
    high, wide = upright.shape[:2]
    view = View((0, 0, wide, high, wide, high, 0, 0), (36, 35), flip)
    data, clip = save(Image.fromarray(pixels), "PNG"), DecodeOptions(clip=True)
    assert decode_view(data, view, orientation=orientation)[0] == Status.BOX
    status, out = decode_view(data, view, clip, orientation)
    assert status == Status.OK
    part = upright[:35, :36]
    np.testing.assert_array_equal(out[:high, :wide][:35, :36], part[:, ::-1] if flip else part)


@pytest.mark.parametrize("start", [(-7, 3), (50, -2), (2**31 - 1, -(2**31)), (3, 25)])
def test_a_window_that_reaches_beyond_is_moved_into_the_image(start: tuple[int, int]) -> None:
    data = jpeg(photo(60, 50))
    moved = within(np.array([5, 5, 55, 45, 50, 40, *start], np.int32), (20, 30)).tolist()
    assert moved[6:] == [min(max(start[0], 0), 20), min(max(start[1], 0), 20)]
    beyond = View((5, 5, 55, 45, 50, 40, *start), (30, 20))
    made = by_row(data, beyond, [0, 1], DecodeOptions(clip=True))
    np.testing.assert_array_equal(made, by_row(data, View(tuple(moved), (30, 20)), [0, 1], DecodeOptions()))


SIDES = range(1, 129)  # 16,384 pairs of lengths
# Without vector loops Pillow and the kernel add and multiply alike; Pillow for Arm may fuse the two.
same_arithmetic = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="ties depend on one bit")


def pattern(length: int) -> Pixels:
    """A row of pixels; by channel every second, every third or random pixels are white."""
    x = np.arange(length)
    chance = np.random.default_rng(length).integers(0, 2, length)
    return (np.stack((x % 2, x % 3 == 0, chance), axis=1)[None] * 255).astype(np.uint8)


def difference(rows: list[Pixels], views: list[View], name: str) -> int:
    """The largest difference from Pillow over some images, whose views have windows of one size."""
    sizes = [(row.shape[1], row.shape[0]) for row in rows]
    source, _alive = raw_batch([row.tobytes() for row in rows], sizes)
    status, pixels = decode_views(source, views, DecodeOptions(filter=name))
    assert not any(status)
    wanted = [expected(Image.fromarray(row), view, name) for row, view in zip(rows, views, strict=True)]
    return worst(pixels, np.stack(wanted))


@same_arithmetic
@pytest.mark.parametrize("name", ["nearest", "box"])
def test_every_pair_of_lengths(name: str) -> None:
    rows = [pattern(length) for length in SIDES]
    for size in SIDES:
        views = [View((0, 0, length, 1, size, 1, 0, 0), (size, 1)) for length in SIDES]
        assert difference(rows, views, name) <= 1, size


@same_arithmetic
@pytest.mark.parametrize("name", ["nearest", "box"])
@pytest.mark.parametrize(("length", "size"), [(227, 64), (415, 128), (127, 58), (234, 156), (96, 144)])
def test_ties_wherever_the_region_lies(name: str, length: int, size: int) -> None:
    """Across and down, in a crop, in a window of the whole, and mirrored."""
    row, middle = pattern(length + 50), size // 2
    across = [View((x, 0, x + length, 1, size, 1, 0, 0), (size, 1), x == 31) for x in (50, 31)]
    down = [View((0, x, 1, x + length, 1, size, 0, 0), (1, size)) for x in (50, 31)]
    assert difference([row] * 2, across, name) <= 1
    assert difference([row.transpose(1, 0, 2)] * 2, down, name) <= 1
    window = View((31, 0, 31 + length, 1, size, 1, middle, 0), (size - middle, 1))
    assert difference([row], [window], name) <= 1


@same_arithmetic
@pytest.mark.parametrize("name", FILTERS)
def test_windows_of_huge_virtual_images(name: str) -> None:
    """Of 67 million pixels and more, the rows equal the same enlargement of one row."""
    for length, size in ((9000, 13_500), (7000, 11_200), (3000, 13_500), (9000, 10_500), (9000, 70_000)):
        row, rows = pattern(length), (1 << 26) // size + 2
        whole = np.asarray(Image.fromarray(row).resize((size, 1), Image.Resampling[name.upper()]))
        source, _alive = raw_batch([row.tobytes()], [(length, 1)])
        for x in (0, size // 3, size - 700):
            view = View((0, 0, length, 1, size, rows, x, rows - 4), (600, 4))
            status, pixels = decode_views(source, [view], DecodeOptions(filter=name))
            assert status == [0]
            assert worst(pixels[0], whole[:, x : x + 600].repeat(4, axis=0)) <= 1


@same_arithmetic
def test_a_box_that_shrinks_one_way_and_enlarges_the_other() -> None:
    pixels = pattern(3000).repeat(9, axis=0)
    column = np.asarray(Image.fromarray(pixels).resize((700, 1), Image.Resampling.BOX))
    source, _alive = raw_batch([pixels.tobytes()], [(3000, 9)])
    view = View((0, 0, 3000, 9, 700, 100_000, 350, 50_000), (350, 2))
    status, made = decode_views(source, [view], DecodeOptions(filter="box"))
    assert status == [0]
    assert worst(made[0], column[:, 350:].repeat(2, axis=0)) <= 1


@pytest.mark.parametrize("name", FILTERS)
def test_long_reductions(name: str) -> None:
    """There are many tiny weights, whose rounding could follow the pattern and add up to many levels."""
    lengths = [993, 1986, 2137, 4608, 18_724, 26_214, 43_690, 65_535]
    rows = [pattern(length) for length in lengths]
    for turned in (False, True):
        images = [row.transpose(1, 0, 2) for row in rows] if turned else rows
        for size in (1, 2, 5):
            window = (1, size) if turned else (size, 1)
            views = [View((0, 0, *image.shape[1::-1], *window, 0, 0), window) for image in images]
            assert difference(images, views, name) <= 1


@pytest.mark.parametrize("name", ["box", "bilinear"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_long_reductions_while_packing(mode: str, name: str) -> None:
    """Packing reduces the planes of a JPEG with the same weights."""
    length = 10_923  # rounded to 14 bits, weights would be 1 and 2 in turn
    stripes = np.broadcast_to((np.arange(length) % 2 * 255).astype(np.uint8)[None, :, None], (8, length, 3))
    data = jpeg(stripes, mode, quality=100)
    recipe = TranscodeRecipe(size=1, mode="exact", filter=name, reducing_gap=0, quality=100)
    assert worst(kernel.decode(kernel.transcode(data, recipe).data), np.full((1, 1, 3), 127, np.uint8)) <= 2
