"""A filter for each row, bilinear without antialiasing, and images that are smaller than what is wanted of them."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import torch
from kernel_images import View, batch_of, decode_view, each_backend, jpeg, native, photo, save, twin
from numpy.typing import NDArray
from PIL import Image

from iofast.kernel.contract import ALIASED, ALL_FILTERS, DecodeOptions, Status
from iofast.work import within

PLAN = View((37, 21, 390, 250, 224, 160, 10, 7), (200, 150))


def each_row(
    kernel: ModuleType, data: bytes, how: list[int], box: list[int], size: tuple[int, int], options: DecodeOptions
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """One image, once for each of `how`; what is not written stays 7."""
    batch = batch_of([data] * len(how))
    out = np.full((len(how), size[1], size[0], 3), 7, np.uint8)
    status = np.full(len(how), -1, np.int32)
    boxes = np.array([box] * len(how), np.int32)
    context = kernel.Context(options)
    kernel.decode_batch(context, batch.source, boxes, np.array(how, np.uint8), out, status, 0, len(how))
    context.close()
    return status, out


@each_backend
@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_each_row_has_its_own_filter(kernel: ModuleType, kind: str) -> None:
    pixels = photo(500, 375)
    data = jpeg(pixels) if kind == "jpeg" else save(Image.fromarray(pixels), "PNG")
    how = [1 + number << 1 | number & 1 for number in range(len(ALL_FILTERS))]
    status, made = each_row(kernel, data, [*how, 0], list(PLAN.box), PLAN.size, DecodeOptions(filter="lanczos"))
    assert (status == Status.OK).all()
    for number, name in enumerate((*ALL_FILTERS, "lanczos")):
        own = View(PLAN.box, PLAN.size, number < len(ALL_FILTERS) and bool(number & 1))
        _, wanted = decode_view(kernel, data, own, DecodeOptions(filter=name))
        np.testing.assert_array_equal(made[number], wanted)


@each_backend
@pytest.mark.parametrize("size", [(30, 20), (301, 17), (900, 700), (500, 375)])
def test_without_antialias_it_is_torchs(kernel: ModuleType, size: tuple[int, int]) -> None:
    pixels = photo(500, 375)
    data = save(Image.fromarray(pixels), "PNG")
    status, made = decode_view(kernel, data, View((0, 0, 500, 375, *size, 0, 0), size), DecodeOptions(filter=ALIASED))
    assert status == Status.OK
    planes = torch.from_numpy(pixels).permute(2, 0, 1).float().unsqueeze(0)
    wanted = torch.nn.functional.interpolate(planes, size[::-1], mode="bilinear")[0].permute(1, 2, 0).numpy()
    assert np.abs(made.astype(np.float64) - wanted).max() <= 1


@each_backend
@pytest.mark.parametrize("flip", [0, 1])
@pytest.mark.parametrize("orientation", [1, 6])
def test_what_there_is_goes_to_the_upper_left(kernel: ModuleType, flip: int, orientation: int) -> None:
    pixels = photo(40, 30)
    data, shown = save(Image.fromarray(pixels), "PNG"), pixels if orientation == 1 else np.rot90(pixels, -1)
    high, wide = shown.shape[:2]
    batch = batch_of([data], [orientation])
    out, status = np.full((1, 35, 36, 3), 7, np.uint8), np.zeros(1, np.int32)
    boxes = np.array([[0, 0, wide, high, wide, high, 0, 0]], np.int32)
    context = kernel.Context(DecodeOptions(clip=True))
    kernel.decode_batch(context, batch.source, boxes, np.array([flip], np.uint8), out, status, 0, 1)
    context.close()
    assert status[0] == Status.OK
    rows, columns = min(high, 35), min(wide, 36)
    part = shown[:rows, :columns]
    np.testing.assert_array_equal(out[0, :rows, :columns], part[:, ::-1] if flip else part)


@each_backend
def test_without_clip_it_is_an_error(kernel: ModuleType) -> None:
    data, box = jpeg(photo(40, 30)), [0, 0, 40, 30, 40, 30, 0, 0]
    assert each_row(kernel, data, [0], box, (48, 32), DecodeOptions())[0][0] == Status.BOX
    assert each_row(kernel, data, [0], box, (48, 32), DecodeOptions(clip=True))[0][0] == Status.OK


@each_backend
@pytest.mark.parametrize("start", [(-7, 3), (50, -2), (2**31 - 1, -(2**31)), (3, 25)])
def test_a_window_that_reaches_beyond_is_moved_into_the_image(kernel: ModuleType, start: tuple[int, int]) -> None:
    data, clip = jpeg(photo(60, 50)), DecodeOptions(clip=True)
    box = np.array([5, 5, 55, 45, 50, 40, *start], np.int32)
    moved = within(box, (20, 30))
    assert moved[6:].tolist() == [min(max(start[0], 0), 20), min(max(start[1], 0), 20)]
    status, made = each_row(kernel, data, [0, 1], box.tolist(), (30, 20), clip)
    wanted = each_row(kernel, data, [0, 1], moved.tolist(), (30, 20), DecodeOptions())[1]
    assert (status == Status.OK).all()
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.skipif(native is None, reason="the native kernel is not there")
def test_both_clip_alike() -> None:
    data = jpeg(photo(60, 50))
    for box, size in (([5, 5, 55, 45, 30, 20, 0, 0], (40, 40)), ([5, 5, 55, 45, 90, 80, 70, 75], (40, 40))):
        for filter in ALL_FILTERS:
            options = DecodeOptions(filter, clip=True)
            made = [each_row(kernel, data, [0, 1], box, size, options) for kernel in (native, twin)]
            assert (made[0][0] == made[1][0]).all()
            wide, high = min(40, box[4]), min(40, box[5])
            ours, theirs = (each[1][:, :high, :wide].astype(int) for each in made)
            assert np.abs(ours - theirs).max() <= 1
