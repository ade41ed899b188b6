"""Batches of one channel: gray values of 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import jpeg, save
from loader_sets import write_numbered
from PIL import Image

from iofast import FastDataset, FastLoader
from iofast import transforms as T

N = 10
CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]


def pictures(place: Path, *, gray: bool = False) -> FastDataset:
    rng, images = np.random.default_rng(3), []
    for _ in range(N):
        image = rng.integers(0, 256, (6, 7, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        images.append(save(Image.fromarray(image[..., 0]), "JPEG", quality=95) if gray else jpeg(image, quality=95))
    return FastDataset(write_numbered(place / "set.lmdb", images))


def batch(dataset: FastDataset, **options: Any) -> Any:
    return next(iter(FastLoader(dataset, options.pop("batch_size", N), seed=2, **options)))[0]


class TestGray:
    def test_gray_pictures_keep_their_levels(self, tmp_path: Path) -> None:
        dataset = pictures(tmp_path, gray=True)
        made = batch(dataset, image_mode="L")
        assert (made.shape, made.dtype, made.is_contiguous()) == ((N, 1, 48, 56), torch.uint8, True)
        assert np.array_equal(made[:, 0], np.stack([image.convert("L") for image, _ in dataset]))

    @pytest.mark.parametrize("transform", [None, CROP, [*CROP, T.ColorJitter(0.4, 0.4, 0.4), T.RandomRotation(30)]])
    def test_colours_become_what_pillow_makes_of_them(self, tmp_path: Path, transform: Any) -> None:
        dataset = pictures(tmp_path)
        colours, made = (batch(dataset, transform=transform, image_mode=mode) for mode in ("RGB", "L"))
        wanted = [Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L") for image in colours]
        assert np.array_equal(made[:, 0], np.stack([np.asarray(image) for image in wanted]))

    @pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
    def test_floats_are_normalised_levels(self, tmp_path: Path, dtype: torch.dtype, close: float) -> None:
        dataset = pictures(tmp_path)
        plain = batch(dataset, transform=CROP, image_mode="L").float() / 255
        for more, wanted in (([], plain), ([T.Normalize([0.4], [0.2])], (plain - 0.4) / 0.2)):
            made = batch(dataset, transform=[*CROP, *more], image_mode="L", dtype=dtype)
            assert made.shape == (N, 1, 24, 24)
            assert torch.allclose(made.float(), wanted, atol=close)

    def test_views_lists_caches_and_mixing(self, tmp_path: Path) -> None:
        dataset = pictures(tmp_path)
        views = batch(dataset, transform=T.Views(a=(2, CROP), b=[T.CenterCrop(16)]), image_mode="L")
        assert [each.shape for each in views["a"]] == [(N, 1, 24, 24)] * 2
        assert views["b"].shape == (N, 1, 16, 16)
        listed = batch(dataset, transform=[T.RandomResize(20, 40)], image_mode="L", ragged="list")
        assert {each.shape[0] for each in listed} == {1}
        assert len({each.shape for each in listed}) > 1
        padded = batch(dataset, transform=[T.RandomResize(20, 40)], image_mode="L", ragged="pad")
        assert padded.shape[:2] == (N, 1)
        kept, anew = (batch(dataset, transform=CROP, image_mode="L", cache=cache) for cache in ("device", None))
        assert kept.shape == anew.shape
        assert (kept.int() - anew.int()).abs().max() <= 1
        mixed = batch(dataset, transform=[*CROP, T.MixUp(num_classes=N)], image_mode="L", dtype=torch.float32)
        assert mixed.shape == (N, 1, 24, 24)
