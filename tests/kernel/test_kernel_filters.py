"""A filter for each row, bilinear without antialiasing, and images that are smaller than their window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from kernel_images import View, batch_of, decode_view, decode_views, jpeg, photo, save
from numpy.typing import NDArray
from PIL import Image

from iofast.boxes import within
from iofast.kernel.contract import ALIASED, ALL_FILTERS, DecodeOptions, Status

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
