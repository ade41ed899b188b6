"""Presets, and recipes of the docs: the same batches on any number of ranks and threads, and after a resume."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_lists import listed, text
from transform_draws import write_smooth

from iofast import FastDataset, FastLoader, pack
from iofast import transforms as T


def smaller(name: str) -> Any:
    """A recipe of docs/transforms.md, for 40 pixels a side."""
    return listed(re.sub(r"\b(224|480|1024|32)\b", "40", re.sub("260, 1040", "22, 88", text())))[name]


N = 16
RAND = "rand-m9-mstd0.5-inc1"
MIX: list[Any] = [T.RandomChoice([T.MixUp(alpha=0.8, num_classes=N), T.CutMix(num_classes=N)], p=[0.5, 0.5])]
PRESETS: dict[str, Callable[[], Any]] = {
    "train": lambda: T.train(40),
    "evaluate": lambda: T.evaluate(40, 48, "bicubic"),
    "timm": lambda: [*T.timm_train(40, auto_augment=RAND, re_prob=0.5, re_mode="pixel", re_count=3), *MIX],
    "timm plain": lambda: T.timm_train(
        40, vflip=0.5, grayscale_prob=0.3, gaussian_blur_prob=0.3, color_jitter_prob=0.5
    ),
    "timm colour": lambda: T.timm_train(40, re_prob=1, re_mode="rand"),
    "timm rkrc": lambda: T.timm_train(40, train_crop_mode="rkrc"),
    "timm rkrr": lambda: T.timm_train((32, 48), train_crop_mode="rkrr", interpolation="bilinear"),
    "simclr": lambda: T.simclr(40),
    "dino": lambda: T.dino(40, 24, 2),
    "pad": lambda: [T.Resize((34, 42)), T.Pad(3, padding_mode="reflect"), T.RandomChannelPermutation()],
    **{name: partial(smaller, name) for name in ("deit3", "moco_v3", "cifar", "segmentation", "lsj")},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_smooth(tmp_path_factory.mktemp("presets") / "set.lmdb", [(60 + number, 52) for number in range(N)])


def flat(batch: Any) -> list[torch.Tensor]:
    images, labels = batch
    own = images.values() if isinstance(images, dict) else [images]
    return [*(one for each in own for one in (each if isinstance(each, list) else [each])), labels]


def batches(path: Path, preset: Callable[[], Any], batch: int = 8, **options: Any) -> list[list[torch.Tensor]]:
    options = {"shuffle": True, "seed": 5, "dtype": torch.float32, **options}
    return [flat(made) for made in FastLoader(FastDataset(path), batch, transform=preset(), **options)]


def test_recipes_of_the_docs_compile() -> None:
    recipes = listed(text())
    assert {"classification", "multiscale", "timm_center", "timm_squash", "mae", "moco", "five_crop"} <= set(recipes)
    assert all(T.compile(recipe).transforms for recipe in recipes.values())


@pytest.mark.parametrize("name", PRESETS)
def test_are_the_same_on_any_ranks_from_another_container_and_after_a_resume(
    path: Path, name: str, tmp_path: Path
) -> None:
    whole = batches(path, PRESETS[name])
    assert all(tensor.isfinite().all() for made in whole for tensor in made)
    ranks = [batches(path, PRESETS[name], 4, rank=rank, world_size=2, num_workers=rank) for rank in (0, 1)]
    for made, *parts in zip(whole, *ranks, strict=True):
        for tensor, *pair in zip(made, *parts, strict=True):
            assert torch.equal(tensor, torch.cat(pair))
    pack(path, tmp_path / "set.tar", format="keep", check="end")
    for made, other in zip(whole, batches(tmp_path / "set.tar", PRESETS[name]), strict=True):
        assert all(map(torch.equal, made, other))
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "dtype": torch.float32}
    begun, again = (FastLoader(FastDataset(path), 8, transform=PRESETS[name](), **options) for _ in range(2))
    next(iter(begun))
    again.load_state_dict(begun.state_dict())
    (rest,) = map(flat, again)
    assert all(map(torch.equal, rest, whole[1]))
