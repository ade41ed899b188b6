"""Mixing: the images that are mixed, their shares and patches, the epochs, and the labels."""

from __future__ import annotations

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
from iofast.errors import OptionError
from iofast.loader.assemble import soft_labels


@pytest.mark.parametrize("alpha", [0.05, 0.2, 1.0, 3.0, 50.0])
def test_shares_are_beta_distributed(alpha: float) -> None:
    with pytest.raises(OptionError, match="alpha"):
        MANY.beta("mix", -1)
    drawn = MANY.beta("mix", alpha)
    assert 0 <= drawn.min() <= drawn.max() <= 1
    assert abs(drawn.mean() - 0.5) < 4 * drawn.std() / math.sqrt(N)
    assert drawn.var() == pytest.approx(0.25 / (2 * alpha + 1), rel=0.05)
    reference = np.sort(np.random.default_rng(0).beta(alpha, alpha, 10 * N))
    assert is_uniform(np.searchsorted(reference, drawn) / (10 * N)) or alpha < 0.1  # half of those are 0 or 1


def test_shares_of_mixup() -> None:
    made = work(T.MixUp(alpha=0.4, num_classes=5))
    assert (made.share == MANY.beta("mix", 0.4).astype(np.float32)).all()
    assert (made.own == made.share).all()
    assert not made.patch.any()
    assert not made.mixes  # the loader chooses partners


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


def test_a_row_without_a_partner_is_not_mixed() -> None:
    made = work(T.CutMix(num_classes=5), draw=Draw(0, 0, np.arange(5))).paired(np.array([1, 0, 2, 4, 3]))
    assert made.mixes
    assert made.own[2] == made.share[2] == 1
    assert not made.patch[2].any()
    assert made.patch[[0, 1, 3, 4]].any(axis=1).all()


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
    assert (work(op, draw=Draw(4, 2, np.arange(N))).share < 1).any()
    off = work(op, draw=Draw(4, 3, np.arange(N)))
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
