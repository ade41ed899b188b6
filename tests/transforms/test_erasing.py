"""RandomErasing and mixing, against torchvision's documented algorithms written out for one image."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pixel_work import is_uniform
from transform_draws import MANY, N, work

from iofast import transforms as T
from iofast.choices import Draw
from iofast.loader.assemble import soft_labels
from iofast.transforms.erasing import noise_amounts


class TestRandomErasing:
    @given(
        seed=st.integers(0, 1000),
        size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
        scale=st.sampled_from([(0.02, 0.33), (0.5, 1.0), (0.9, 1.0), (0.0, 0.01)]),
        ratio=st.sampled_from([(0.3, 3.3), (1.0, 1.0), (0.01, 100.0)]),
    )
    def test_against_torchvision(
        self, seed: int, size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
    ) -> None:
        width, height = size
        draw = Draw(seed, 0, np.arange(5))
        made = work(T.RandomErasing(0.7, scale, ratio), draw=draw, width=width, height=height)
        for u, box in zip(draw.uniform("erasing", 23).tolist(), made.erased[:, 0].tolist(), strict=True):
            wanted = rectangle(width, height, u[1:], scale, ratio) if u[0] < 0.7 else None
            assert box == wanted if wanted else (box[2] - box[0]) * (box[3] - box[1]) == 0


def rectangle(
    width: int, height: int, u: list[float], scale: tuple[float, float], ratio: tuple[float, float]
) -> list[int] | None:
    """torchvision's RandomErasing.get_params; u = place (top, left), then area and ratio of ten attempts."""
    for area_u, ratio_u in zip(u[2::2], u[3::2], strict=True):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * area_u)
        aspect = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * ratio_u)
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < height and w < width:
            y, x = int(u[0] * (height - h + 1)), int(u[1] * (width - w + 1))
            return [y, x, y + h, x + w]
    return None


def test_rectangles_share_the_area() -> None:
    made = work(T.RandomErasing(0.7, scale=(0.3, 0.3), ratio=(1, 1), count=(1, 3)))
    y0, x0, y1, x1 = np.moveaxis(made.erased, -1, 0).astype(np.float64)
    areas = (y1 - y0) * (x1 - x0)
    counts = (areas > 0).sum(axis=1)
    assert (counts > 0).mean() == pytest.approx(0.7, abs=0.02)
    for count in (1, 2, 3):
        assert (counts == count).mean() == pytest.approx(0.7 / 3, abs=0.02)
        each = areas[counts == count]
        np.testing.assert_allclose(each[each > 0], 0.3 * 64 * 48 / count, rtol=0.08)
    assert made.fills.shape == (N, 3, 3)


def test_each_erasing_has_its_value_and_its_noise() -> None:
    normalize = T.Normalize((0.5,), (0.25,))
    made = work(T.RandomErasing(1, value=1.0), normalize, T.RandomErasing(1, value=[1, 2, 3]))
    np.testing.assert_allclose(made.fills[7], [[2, 2, 2], [1, 2, 3]])
    assert (made.erased[:, 0] != made.erased[:, 1]).any(axis=1).mean() > 0.9
    assert noise_amounts([T.RandomErasing(value=1.0)]).tolist() == [[0, 0, 0]]
    assert noise_amounts([T.RandomErasing(value="random", count=2), normalize]).tolist() == [[4, 4, 4]] * 2


def test_each_rectangle_has_one_random_colour() -> None:
    made = work(T.Normalize.imagenet(), T.RandomErasing(1, value="color", count=2))
    fills = made.fills.reshape(N, -1)
    assert np.abs(fills.mean(axis=0)).max() < 0.05
    np.testing.assert_allclose(fills.std(axis=0), 1, atol=0.04)
    assert np.abs(np.corrcoef(fills.T) - np.eye(6)).max() < 0.05
    assert not made.noise.any()
    fills = work(T.RandomErasing(1, value="color"), T.Normalize((0.5,), (0.25,))).fills
    assert fills.mean() == pytest.approx(-2, abs=0.1)
    assert fills.std() == pytest.approx(4, abs=0.15)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 1.0, 3.0, 50.0])
def test_shares_are_beta_distributed(alpha: float) -> None:
    drawn = MANY.beta("mix", alpha)
    assert 0 <= drawn.min() <= drawn.max() <= 1
    assert abs(drawn.mean() - 0.5) < 4 * drawn.std() / math.sqrt(N)
    assert drawn.var() == pytest.approx(0.25 / (2 * alpha + 1), rel=0.05)
    reference = np.sort(np.random.default_rng(0).beta(alpha, alpha, 10 * N))
    assert is_uniform(np.searchsorted(reference, drawn) / (10 * N)) or alpha < 0.1  # half of those are 0 or 1


@given(seed=st.integers(0, 1000), width=st.integers(1, 99), height=st.integers(1, 99))
def test_cutmix_against_torchvision(seed: int, width: int, height: int) -> None:
    draw = Draw(seed, 0, np.arange(4))
    made = work(T.CutMix(num_classes=5), draw=draw, width=width, height=height)
    places = draw.uniform("mix place", 2).tolist()
    for row, (share, (left, top)) in enumerate(zip(draw.beta("mix", 1).tolist(), places, strict=True)):
        half = 0.5 * math.sqrt(1 - share)
        x, y, w, h = int(left * width), int(top * height), int(half * width), int(half * height)
        x0, y0, x1, y1 = max(x - w, 0), max(y - h, 0), min(x + w, width), min(y + h, height)
        assert made.patch[row].tolist() == [y0, x0, y1, x1]
        assert made.own[row] == pytest.approx(1 - (x1 - x0) * (y1 - y0) / (width * height))
        assert made.share[row] == 1


def test_mixup_or_cutmix_for_each_image() -> None:
    both = T.RandomChoice([T.MixUp(alpha=0.8, num_classes=5), T.CutMix(num_classes=5)], p=[0.25, 0.75])
    made = work(both)
    cut = (made.patch[:, 2] > made.patch[:, 0]) & (made.patch[:, 3] > made.patch[:, 1])
    mixed = made.share < 1
    assert not (cut & mixed).any()
    assert mixed.mean() == pytest.approx(0.25, abs=0.02)
    assert cut.mean() == pytest.approx(0.75, abs=0.03)
    np.testing.assert_array_equal(made.own[mixed], made.share[mixed])
    assert (work(T.MixUp(alpha=0.4, num_classes=5)).share == MANY.beta("mix", 0.4).astype(np.float32)).all()
    np.testing.assert_allclose(made.own[cut].mean(), work(T.CutMix(num_classes=5)).own.mean(), atol=0.02)


def test_with_a_probability_and_until_an_epoch() -> None:
    op = T.MixUp(num_classes=5, p=0.4, until=3)
    assert (work(op).share < 1).mean() == pytest.approx(0.4, abs=0.02)
    assert (work(op, draw=Draw(4, 2, np.arange(N))).share < 1).any()
    off = work(op, draw=Draw(4, 3, np.arange(N)))
    assert (off.share == 1).all()
    assert (off.own == 1).all()
    assert not off.patch.any()
    alone = work(T.CutMix(num_classes=5), draw=Draw(0, 0, np.arange(5))).paired(np.array([1, 0, 2, 4, 3]))
    assert alone.own[2] == alone.share[2] == 1, "a row without a partner"
    assert alone.patch.any(axis=1).tolist() == [True, True, False, True, True]


def test_labels_are_smoothed() -> None:
    op = T.MixUp(num_classes=4, label_smoothing=0.1)
    made = work(op).paired(np.arange(N) ^ 1)
    labels = soft_labels(torch.arange(N) % 4, op, made)
    np.testing.assert_allclose(labels.sum(1), 1, atol=1e-5)
    assert labels.min() == pytest.approx(0.025)
    row = int(np.argmax(made.own))
    assert labels[row, row % 4] == pytest.approx(0.025 + 0.9 * made.own[row], abs=1e-5)
