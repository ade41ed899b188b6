"""Several loaders at once, on one device or on two; and a loader on a device without streams of ours (MPS, ROCm)."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_model import Block, Device, _bytes, lend_late
from loader_sets import check_equal

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.gpu import Direct

BATCHES, PER_BATCH = 10, 4
CROP = [T.RandomResizedCrop(24)]
COLOURS = [*CROP, T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.Normalize.imagenet(), T.RandomErasing(0.5)]
KINDS: dict[str, dict[str, Any]] = {
    "colours": {"transform": COLOURS, "dtype": torch.float32},
    "cached": {"transform": CROP, "cache": "device"},
    "list": {"ragged": "list"},
    "pad": {"ragged": "pad", "dtype": torch.float32},
}


@pytest.fixture(scope="module")
def dataset(place: Path) -> FastDataset:
    return FastDataset(place / "set.lmdb")


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_two_loaders_in_turns_that_chance_chooses(dataset: FastDataset, devices: int) -> None:
    """Each gets its own batches, although one device does the work of both in any order."""

    def made(seed: int) -> FastLoader:
        return FastLoader(dataset, PER_BATCH, num_workers=2, shuffle=True, seed=seed, transform=CROP)

    expected = [[(images.clone(), labels) for images, labels in made(seed)] for seed in range(2)]
    for seed in range(2):
        chance = random.Random(seed)
        models = [Device(random.Random(seed + number)) for number in range(devices)]
        loaders = [made(0), made(1)]
        wrong: list[tuple[int, int]] = []

        def look(loader: int, number: int, *memory: Block, wrong: list[tuple[int, int]] = wrong) -> None:
            if not all(map(np.array_equal, memory, map(_bytes, expected[loader][number]))):
                wrong.append((loader, number))

        for number, loader in enumerate(loaders):
            lend_late(loader, models[number % devices])
        turns = [0, 1] * BATCHES
        chance.shuffle(turns)
        coming, taken = [iter(loader) for loader in loaders], [0, 0]
        for turn in turns:
            images, labels = next(coming[turn])
            models[turn % devices].put(partial(look, turn, taken[turn], _bytes(images), _bytes(labels)))
            taken[turn] += 1
            del images, labels
        assert [next(each, None) for each in coming] == [None, None]
        for model in models:
            model.go_on(to_the_end=True)
        assert wrong == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_without_streams_of_ours_gets_the_same(dataset: FastDataset, kind: str) -> None:
    own, plain = (FastLoader(dataset, 8, num_workers=2, shuffle=True, **KINDS[kind]) for _ in range(2))
    own._spec.device = torch.device("mps")
    own._resources.transfer = Direct(torch.device("cpu"), own._stages.transfer)  # which has the same calls
    check_equal(own, plain)
    assert own.stats.stages["transfer"].items > 0
