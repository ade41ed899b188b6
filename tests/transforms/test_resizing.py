"""Random sizes, resampled crops, and their filters."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pixel_work import is_uniform
from transform_draws import MANY, N, write_smooth

from iofast import FastDataset, FastLoader
from iofast import transforms as T

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
