"""The torch geometry of ragged batches: against Pillow, against exact fractions, and of raw I420."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from pixel_work import EVERYTHING, drawn_work

from iofast import transforms as T
from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.pixels import RaggedBatch, apply, augment, resample
from iofast.pixels.torch_geometry import PRECISION, axis, taps
from iofast.work import window_pixels

SIZES = st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), min_size=1, max_size=4)


def pictures(sizes: list[tuple[int, int]], seed: int = 0) -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (height, width, 3), np.uint8) for height, width in sizes]


def ragged(images: list[NDArray[np.uint8]]) -> RaggedBatch:
    return RaggedBatch.of([torch.from_numpy(image) for image in images])


def plan(transforms: list[T.Transform], sizes: list[tuple[int, int]], seed: int = 0) -> tuple[NDArray, NDArray]:  # type: ignore[type-arg]
    heights, widths = np.array(sizes).T
    return T.compile(transforms).plan(Draw(seed, 0, np.arange(len(sizes))), widths, heights)


def by_pillow(image: NDArray[np.uint8], box: list[int], flip: int, size: tuple[int, int]) -> NDArray[np.int16]:
    x0, y0, x1, y1, width, height, x, y = box
    made = Image.fromarray(image).crop((x0, y0, x1, y1)).resize((width, height), Image.Resampling.BILINEAR)
    window = np.asarray(made.crop((x, y, x + size[1], y + size[0])), np.int16)
    return window[:, ::-1] if flip else window


def check(sizes: list[tuple[int, int]], transforms: list[T.Transform], size: tuple[int, int], seed: int) -> None:
    """Crops are within one level of Pillow's."""
    images = pictures(sizes, seed)
    boxes, flips = plan(transforms, sizes, seed)
    made = resample(ragged(images), boxes, flips, size)
    assert made.shape == (len(sizes), 3, *size)
    assert made.is_contiguous(memory_format=torch.channels_last)
    for row, image in enumerate(images):
        wanted = by_pillow(image, boxes[row].tolist(), flips[row], size)
        assert np.abs(made[row].permute(1, 2, 0).numpy().astype(np.int16) - wanted).max() <= 1


@given(sizes=SIZES, size=st.tuples(st.integers(1, 40), st.integers(1, 40)), seed=st.integers(0, 99))
def test_crops(sizes: list[tuple[int, int]], size: tuple[int, int], seed: int) -> None:
    check(sizes, [T.RandomResizedCrop(size), T.RandomHorizontalFlip()], size, seed)


@given(sizes=SIZES, resize=st.integers(8, 50), seed=st.integers(0, 99))
def test_windows_of_resized_images(sizes: list[tuple[int, int]], resize: int, seed: int) -> None:
    check(sizes, [T.Resize(resize), T.RandomCrop((7, 8))], (7, 8), seed)


@given(low=st.integers(0, 50), length=st.integers(1, 300), virtual=st.integers(1, 300))
def test_weights_are_the_triangles_to_the_last_bit(low: int, length: int, virtual: int) -> None:
    box = [[low, 0, low + length, 1, virtual, 1, 0, 0]]
    made = axis(torch.tensor(box), 0, virtual)
    assert (made.weights.sum(-1) == 1 << PRECISION).all()
    assert made.weights.shape[2] <= taps(np.array(box, np.int32), 0)[0]
    scale = Fraction(length, virtual)
    reach = max(scale, Fraction(1))
    for output in (0, virtual // 2, virtual - 1):
        centre = (output + Fraction(1, 2)) * scale
        triangle = {x: 1 - abs(x + Fraction(1, 2) - centre) / reach for x in range(length)}
        triangle = {x: weight for x, weight in triangle.items() if weight > 0}
        total = sum(triangle.values())
        for tap, weight in enumerate(made.weights[0, output].tolist()):
            x = int(made.start[0, output]) - low + tap
            assert abs(weight - float(triangle.get(x, 0) / total) * (1 << PRECISION)) <= 1


def test_augment_is_geometry_and_pixel_operations() -> None:
    sizes = [(30, 41), (9, 80), (64, 64)]
    batch = ragged(pictures(sizes))
    boxes, flips = plan([T.RandomResizedCrop((12, 10)), T.RandomHorizontalFlip()], sizes)
    work = drawn_work(EVERYTHING, 3, (12, 10))
    made = augment(batch, boxes, flips, (12, 10), EVERYTHING, work=work, dtype=torch.float16)
    wanted = apply(resample(batch, boxes, flips, (12, 10)), EVERYTHING, work=work, dtype=torch.float16)
    assert torch.equal(made, wanted)
    assert torch.equal(
        augment(batch, boxes, flips, (12, 10), dtype=torch.uint8), resample(batch, boxes, flips, (12, 10))
    )


@pytest.mark.parametrize(
    "box", [[0, 0, 6, 4, 2, 2, 0, 0], [-1, 0, 3, 3, 2, 2, 0, 0], [3, 0, 3, 3, 2, 2, 0, 0], [0, 0, 5, 4, 2, 2, 1, 0]]
)
def test_impossible_boxes_are_refused(box: list[int]) -> None:
    with pytest.raises(OptionError, match=r"of row 0 is not within its image of 5 x 4"):
        resample(ragged(pictures([(4, 5)])), np.array([box], np.int32), np.zeros(1, np.uint8), (2, 2))


def test_impossible_batches_are_refused() -> None:
    batch = ragged(pictures([(4, 5)]))
    with pytest.raises(OptionError, match="need boxes"):
        resample(batch, np.zeros((2, 8), np.int32), np.zeros(1, np.uint8), (2, 2))
    for change, reason in (
        ({"offsets": np.array([1])}, "lie within the 60 bytes"),
        ({"sizes": np.array([[0, 5]])}, "lie within"),
        ({"sizes": np.array([[4, 5, 3]])}, r"sizes \(N, 2\)"),
        ({"data": batch.data.float()}, "uint8"),
    ):
        with pytest.raises(OptionError, match=reason):
            replace(batch, **change)
    with pytest.raises(OptionError, match="uint8"):
        RaggedBatch.of([torch.zeros(3, 4, 3)])


@given(sizes=SIZES, size=st.tuples(st.integers(1, 30), st.integers(1, 30)), seed=st.integers(0, 99))
def test_a_part_of_an_image_is_enough(sizes: list[tuple[int, int]], size: tuple[int, int], seed: int) -> None:
    """The pixels that a window depends on suffice, with the box relative to them; one pixel less is refused."""
    images, rng = pictures(sizes, seed), np.random.default_rng(seed)
    virtual = rng.integers(max(size), 90, (len(images), 2))
    windows = [(rng.integers(0, w - size[1] + 1), rng.integers(0, h - size[0] + 1)) for w, h in virtual.tolist()]
    whole = [(0, 0, image.shape[1], image.shape[0]) for image in images]
    boxes = np.concatenate((whole, virtual, windows), axis=1).astype(np.int32)
    flips = rng.integers(0, 2, len(images)).astype(np.uint8)
    expected = resample(ragged(images), boxes, flips, size)
    (x0, x1), (y0, y1) = window_pixels(boxes, 0, size[1]), window_pixels(boxes, 1, size[0])
    parts = [image[y0[i] : y1[i], x0[i] : x1[i]] for i, image in enumerate(images)]
    near = boxes - np.stack((x0, y0, x0, y0, *[0 * x0] * 4), axis=1).astype(np.int32)
    assert torch.equal(resample(ragged(parts), near, flips, size), expected)
    assert torch.equal(augment(ragged(parts), near, flips, size, dtype=torch.uint8), expected)
    for axis_less in (0, 1):
        if min(part.shape[axis_less] for part in parts) > 1:
            cut = [part[1:] if axis_less == 0 else part[:, 1:] for part in parts]
            with pytest.raises(OptionError, match="row 0 is not within its image"):
                resample(ragged(cut), near, flips, size)
