"""Boxes and random sizes of transforms, against torchvision's algorithms written out for one image."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pixel_work import is_uniform
from transform_draws import MANY, N, plan, write_smooth

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.choices import Draw

SIDES = st.integers(1, 65_500)
IMAGES = st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=6)


def resized_crop_box(
    width: int, height: int, u: list[float], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params for one image; u = place (top, left), then area, ratio of attempts."""
    for area_u, ratio_u in zip(u[2::2], u[3::2], strict=True):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * area_u)
        aspect = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * ratio_u)
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            y, x = int(u[0] * (height - h + 1)), int(u[1] * (width - w + 1))
            return x, y, x + w, y + h
    w, h = width, height
    if width / height < ratio[0]:
        h = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w = max(1, round(height * ratio[1]))
    y, x = (height - h) // 2, (width - w) // 2
    return x, y, x + w, y + h


def resized(width: int, height: int, size: int, max_size: int | None) -> tuple[int, int]:
    """torchvision's size of an image after Resize(size, max_size=max_size)."""
    short, long = sorted((width, height))
    new_short, new_long = size, int(size * long / short)
    if max_size is not None and new_long > max_size:
        new_short, new_long = max(1, int(max_size * new_short / new_long)), max_size
    return (new_short, new_long) if width <= height else (new_long, new_short)


class TestRandomResizedCrop:
    @given(
        images=IMAGES,
        seed=st.integers(0, 1000),
        scale=st.sampled_from([(0.08, 1.0), (0.5, 0.5), (1.0, 1.0), (0.0, 1e-9), (0.9, 2.0)]),
        ratio=st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (0.01, 100.0), (5.0, 9.0)]),
    )
    def test_against_torchvision(
        self, images: list[tuple[int, int]], seed: int, scale: tuple[float, float], ratio: tuple[float, float]
    ) -> None:
        boxes, flips = plan([T.RandomResizedCrop((20, 30), scale, ratio)], images, seed)
        u = Draw(seed, 0, np.arange(len(images))).uniform("crop", 22).tolist()
        expected = [resized_crop_box(w, h, u[i], scale, ratio) for i, (w, h) in enumerate(images)]
        assert boxes[:, :4].tolist() == [list(box) for box in expected]
        assert boxes[:, 4:].tolist() == [[30, 20, 0, 0]] * len(images)
        assert not flips.any()
        for (width, height), (x0, y0, x1, y1) in zip(images, expected, strict=True):
            assert 0 <= x0 < x1 <= width
            assert 0 <= y0 < y1 <= height

    def test_a_thin_image_gets_a_pixel_where_torchvision_would_fail(self) -> None:
        boxes, _ = plan([T.RandomResizedCrop(8, ratio=(5.0, 9.0))], [(1, 3)] * 20)
        assert (boxes[:, 2:4] - boxes[:, :2] == 1).all()


class TestResize:
    @given(
        images=IMAGES,
        size=st.integers(1, 32_767),
        max_size=st.none() | st.integers(2, 32_767),
    )
    @example(images=[(1, 65_500), (65_535, 1)], size=32_767, max_size=None)
    def test_short_side_against_torchvision(
        self, images: list[tuple[int, int]], size: int, max_size: int | None
    ) -> None:
        assume(max_size is None or max_size > size)
        transform = T.Resize(size, max_size=max_size)
        boxes, _ = plan([transform], images)
        assert boxes[:, :4].tolist() == [[0, 0, w, h] for w, h in images]
        assert boxes[:, 4:6].tolist() == [list(resized(w, h, size, max_size)) for w, h in images]
        assert not boxes[:, 6:].any()
        assert T.compile([transform]).size is None
        exact = plan([T.Resize((20, 30))], images)[0]
        assert exact.tolist() == [[0, 0, w, h, 30, 20, 0, 0] for w, h in images]


class TestCrops:
    @given(images=IMAGES, crop=st.tuples(st.integers(1, 300), st.integers(1, 300)))
    def test_center_crop_rounds_as_torchvision(self, images: list[tuple[int, int]], crop: tuple[int, int]) -> None:
        boxes, _ = plan([T.CenterCrop(crop)], images)
        height, width = crop
        for (w, h), box in zip(images, boxes.tolist(), strict=True):
            x, y = int(round((w - width) / 2.0)), int(round((h - height) / 2.0))  # noqa: RUF046  as torchvision says it
            assert box == [x, y, x + width, y + height, width, height, 0, 0]

    @given(images=IMAGES, size=st.integers(1, 400), seed=st.integers(0, 99))
    def test_resize_then_center_crop(self, images: list[tuple[int, int]], size: int, seed: int) -> None:
        boxes, _ = plan([T.Resize(size), T.CenterCrop((max(1, size - 7), size))], images, seed)
        for (w, h), box in zip(images, boxes.tolist(), strict=True):
            width, height = resized(w, h, size, None)
            x, y = round((width - size) / 2), round((height - max(1, size - 7)) / 2)
            assert box == [0, 0, w, h, width, height, x, y]
            assert 0 <= x <= width - size
            assert 0 <= y <= height - max(1, size - 7)

    @given(images=st.lists(st.tuples(st.integers(9, 65_500), st.integers(5, 65_500)), min_size=1, max_size=6))
    def test_random_crop(self, images: list[tuple[int, int]]) -> None:
        boxes, _ = plan([T.RandomCrop((5, 9))], images)
        behind, _ = plan([T.Resize((20, 30)), T.RandomCrop((5, 9))], images)
        u = Draw(0, 0, np.arange(len(images))).uniform("crop", 2).tolist()
        for (w, h), (top, left), box, other in zip(images, u, boxes.tolist(), behind.tolist(), strict=True):
            x, y = int(left * (w - 9 + 1)), int(top * (h - 5 + 1))
            assert box == [x, y, x + 9, y + 5, 9, 5, 0, 0]
            assert other == [0, 0, w, h, 30, 20, int(left * (30 - 9 + 1)), int(top * (20 - 5 + 1))]
            assert x + 9 <= w
            assert y + 5 <= h

    @pytest.mark.parametrize("crop", [T.CenterCrop(10), T.RandomCrop(10)])
    @pytest.mark.parametrize("image", [(9, 20), (20, 9), (3, 3)])
    def test_a_crop_larger_than_its_image_is_visible_in_the_box(
        self, crop: T.Transform, image: tuple[int, int]
    ) -> None:
        for box in plan([crop], [image] * 20)[0].tolist():
            assert box[0] < 0 or box[1] < 0 or box[2] > image[0] or box[3] > image[1]

    def test_an_image_of_unknown_size_gets_a_box_of_zeros(self) -> None:
        for transforms in ([T.RandomResizedCrop(8)], [T.Resize(8), T.CenterCrop(8)], [T.RandomCrop(1)], []):
            boxes, _ = plan(transforms, [(0, 0), (10, 0), (10, 10)])
            assert not boxes[:2].any()
            assert boxes[2].any()


def test_flips_have_their_probability_and_are_independent_of_the_crop() -> None:
    boxes, flips = plan([T.RandomCrop(8), T.RandomHorizontalFlip(0.3)], [(64, 64)] * 20_000)
    assert abs(flips.mean() - 0.3) < 4 * np.sqrt(0.21 / 20_000)
    assert abs(np.corrcoef(flips, boxes[:, 0])[0, 1]) < 4 / np.sqrt(20_000)
    assert (plan([T.RandomCrop(8)], [(64, 64)] * 20_000)[0] == boxes).all()
    assert [int(plan([T.RandomHorizontalFlip(p)], [(4, 4)] * 500)[1].sum()) for p in (0, 1)] == [0, 500]


def test_the_plan_never_changes_between_versions() -> None:
    boxes, flips = plan(T.train(), [(341, 256), (256, 384), (500, 375)], seed=7, epoch=3)
    assert boxes.tolist() == [
        [22, 5, 222, 240, 224, 224, 0, 0],
        [59, 116, 243, 360, 224, 224, 0, 0],
        [317, 122, 477, 315, 224, 224, 0, 0],
    ]
    assert flips.tolist() == [1, 0, 0]


SIZES = ((32, 32), (24, 42), (42, 24))  # height, width


@given(IMAGES, st.booleans())
def test_boxes_of_buckets(images: list[tuple[int, int]], random: bool) -> None:
    widths, heights = np.array(images).T
    pipeline = T.compile([T.ResizeToBucket(SIZES, random=random)])
    boxes, flips = pipeline.plan(Draw(5, 1, np.arange(len(images))), widths, heights)
    assert (pipeline.size, pipeline.evaluation, flips.any()) == (None, not random, False)
    u = Draw(5, 1, np.arange(len(images))).uniform("crop", 2).tolist()
    for (width, height), (x0, y0, x1, y1, wide, high, x, y), place in zip(images, boxes.tolist(), u, strict=True):
        distance = [abs(np.log(width / height) - np.log(w / h)) for h, w in SIZES]
        assert distance[SIZES.index((high, wide))] <= min(distance) + 1e-12
        assert 0 <= x0 < x1 <= width
        assert 0 <= y0 < y1 <= height
        assert (x, y) == (0, 0)
        assert x1 - x0 == width or y1 - y0 == height  # as large as there is room
        # to the nearest pixel the aspect ratio of the size, at least 1
        assert x1 - x0 == width or abs((x1 - x0) - height * wide / high) <= max(0.5, 1 - height * wide / high)
        assert y1 - y0 == height or abs((y1 - y0) - width * high / wide) <= max(0.5, 1 - width * high / wide)
        top, left = place if random else (0.5, 0.5)
        assert abs(x0 - int(left * (width - x1 + x0 + 1))) <= (not random)
        assert abs(y0 - int(top * (height - y1 + y0 + 1))) <= (not random)


WIDE, HIGH = np.full(N, 300.0), np.full(N, 200.0)


class TestResizedSizes:
    def test_random_resize(self) -> None:
        w, h = T.RandomResize(100, 400).sizes(MANY, WIDE, HIGH)
        assert is_uniform(h + 0.5, 100, 400)
        assert (w == np.floor(h * 1.5 + 1e-6)).all()

    def test_random_shortest_size(self) -> None:
        w, h = T.RandomShortestSize([100, 150, 300], 400).sizes(MANY, WIDE, HIGH)
        found, counts = np.unique(np.stack((w, h), axis=1), axis=0, return_counts=True)
        assert found.tolist() == [[150, 100], [225, 150], [400, 266]]
        assert np.abs(counts / N - 1 / 3).max() < 0.03

    def test_scale_jitter(self) -> None:
        w, h = T.ScaleJitter((1000, 6000), (0.5, 1.5)).sizes(MANY, WIDE, HIGH)
        assert is_uniform((h + 0.5) / 1000, 0.5, 1.5)
        np.testing.assert_allclose(w / h, 1.5, rtol=0.02)

    def test_keep_ratio(self) -> None:
        for longest, size in ((0.0, (336, 224)), (1.0, (224, 149))):
            w, h = T.ResizeKeepRatio(224, longest).sizes(MANY, WIDE, HIGH)
            assert {tuple(each) for each in np.stack((w, h), axis=1).tolist()} == {size}
        drawn = T.ResizeKeepRatio(
            224, random_scale_prob=0.5, random_scale_range=(0.8, 1.0), random_scale_area=True, random_aspect_prob=0.25
        )
        w, h = drawn.sizes(MANY, WIDE, HIGH)
        assert ((w == 336) & (h == 224)).mean() == pytest.approx(0.375, abs=0.03)
        same = np.abs(w / h - 1.5) < 0.01
        assert w[same].max() in (375, 376)
        assert np.median(w[same & (w > 336)]) == pytest.approx(336 / 0.9**0.5, abs=2)
        assert np.abs(np.log(w / h / 1.5)).max() < np.log(1.11) + 0.02


class TestResizedCrops:
    def test_tensorflows(self) -> None:
        crop = T.RandomResizedCrop(32, scale=(0.08, 1.0), style="tensorflow")
        x, y, w, h = crop.boxes(MANY, WIDE, HIGH)
        assert min(x.min(), y.min()) >= 0
        assert ((x + w).max(), (y + h).max()) <= (300, 200)
        assert (w * h).min() >= 0.08 * 60_000
        aspect = w / h
        assert aspect.min() > 0.74
        assert aspect.max() < 1.51  # the whole image after ten attempts
        # a height is drawn, not an area: small crops are more frequent
        plain = T.RandomResizedCrop(32).boxes(MANY, WIDE, HIGH)
        assert np.median(h) < np.median(plain[3])
        square = (aspect > 0.98) & (aspect < 1.02)
        assert is_uniform(h[square] + 0.5, np.sqrt(0.08 * 60_000), 201)

    def test_the_middle(self) -> None:
        x, y, w, h = (each[0] for each in T.ResizedCenterCrop(224).boxes(MANY, WIDE, HIGH))
        assert (x, y, w, h) == (62, 12, 175, 175)
        assert T.compile([T.ResizedCenterCrop(224)]).evaluation
        whole = T.ResizedCenterCrop((100, 150), 1.0).boxes(MANY, WIDE, HIGH)
        assert [each[0] for each in whole] == [0, 0, 300, 200]


def test_random_interpolation_is_one_of_two_for_each_image(tmp_path: Path) -> None:
    dataset = FastDataset(write_smooth(tmp_path / "set.lmdb", [(97, 61)] * 12))

    def images(*transform: T.Transform) -> torch.Tensor:
        ((batch, _),) = FastLoader(dataset, 12, transform=transform)
        return batch

    made = [images(T.RandomResizedCrop(40, interpolation=name)) for name in ("random", "bilinear", "bicubic")]
    equal = [[torch.equal(one, other) for one, other in zip(made[0], own, strict=True)] for own in made[1:]]
    assert all(map(any, zip(*equal, strict=True)))
    assert 2 <= sum(equal[0]) <= 10
    both = [images(T.Resize((31, 30), name), T.RandomHorizontalFlip()) for name in ("random", "bilinear")]
    assert any(map(torch.equal, *both))
    assert not torch.equal(*both)
