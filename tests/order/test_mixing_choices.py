"""Which images are mixed, how, in which epochs; and what is erased of how many rectangles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from iofast import transforms as T
from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.loader.assemble import soft_labels
from iofast.ops import Op, noise_amounts
from iofast.work import Work

N = 8000


def work(op: Op, epoch: int = 0) -> Work:
    draw = Draw(4, epoch, np.arange(N))
    return T.compile([op]).work(draw, np.full(N, 64), np.full(N, 48))


def test_mixup_or_cutmix_for_each_image() -> None:
    both = T.RandomChoice([T.MixUp(alpha=0.8, num_classes=5), T.CutMix(num_classes=5)], p=[0.25, 0.75])
    made = work(both)
    cut = (made.patch[:, 2] > made.patch[:, 0]) & (made.patch[:, 3] > made.patch[:, 1])
    mixed = made.share < 1
    assert not (cut & mixed).any()
    assert mixed.mean() == pytest.approx(0.25, abs=0.02)
    assert cut.mean() == pytest.approx(0.75, abs=0.03)
    np.testing.assert_array_equal(made.own[mixed], made.share[mixed])
    np.testing.assert_allclose(made.own[cut].mean(), work(T.CutMix(num_classes=5)).own.mean(), atol=0.02)
    pipeline = T.compile([both])
    assert pipeline.mix is not None
    assert pipeline.mix.num_classes == 5


def test_with_a_probability_and_until_an_epoch() -> None:
    op = T.MixUp(num_classes=5, p=0.4, until=3)
    assert (work(op).share < 1).mean() == pytest.approx(0.4, abs=0.02)
    assert (work(op, 2).share < 1).any()
    off = work(op, 3)
    assert (off.share == 1).all()
    assert (off.own == 1).all()
    assert not off.patch.any()


def test_labels_are_smoothed() -> None:
    op = T.MixUp(num_classes=4, label_smoothing=0.1)
    made = work(op).paired(np.arange(N) ^ 1)
    labels = soft_labels(torch.arange(N) % 4, op, made)
    np.testing.assert_allclose(labels.sum(1), 1, atol=1e-5)
    assert labels.min() == pytest.approx(0.025)
    row = int(np.argmax(made.own))
    assert labels[row, row % 4] == pytest.approx(0.025 + 0.9 * made.own[row], abs=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: T.compile([T.RandomChoice([T.MixUp(num_classes=3), T.CutMix(num_classes=4)])]), "must be equal"),
        (lambda: T.RandomChoice([T.MixUp(num_classes=3), T.Grayscale()]), "operations on images"),
        (lambda: T.MixUp(num_classes=3, p=2), "p must be"),
        (lambda: T.MixUp(num_classes=3, label_smoothing=1), "label_smoothing"),
        (lambda: T.CutMix(num_classes=3, until=-1), "until"),
        (lambda: T.RandomErasing(count=0), "count"),
        (lambda: T.RandomErasing(count=(3, 1)), "count"),
        (lambda: T.RandomErasing(value="pink"), "value"),
    ],
)
def test_what_cannot_be(make: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make()


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
    assert noise_amounts([T.RandomErasing(value="random", count=(1, 3))]).shape == (3, 3)


def test_one_random_colour_for_each_rectangle() -> None:
    pipeline = T.compile([T.Normalize.imagenet(), T.RandomErasing(1, value="color", count=2)])
    made = pipeline.work(Draw(4, 0, np.arange(N)), np.full(N, 64), np.full(N, 48))
    fills = made.fills.reshape(N, -1)
    assert np.abs(fills.mean(axis=0)).max() < 0.05
    np.testing.assert_allclose(fills.std(axis=0), 1, atol=0.04)
    assert np.abs(np.corrcoef(fills.T) - np.eye(6)).max() < 0.05
    assert not made.noise.any()
    before = T.compile([T.RandomErasing(1, value="color"), T.Normalize((0.5,), (0.25,))])
    fills = before.work(Draw(4, 0, np.arange(N)), np.full(N, 64), np.full(N, 48)).fills
    assert fills.mean() == pytest.approx(-2, abs=0.1)
    assert fills.std() == pytest.approx(4, abs=0.15)
