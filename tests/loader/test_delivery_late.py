"""A loader on a device that does nothing at once: no batch is read early, and none is written over."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_model import Block, Device, HostMemory, _bytes, decode_there, lend_late
from loader_sets import with_markers, write_numbered

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.loader import filling

CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
COLOURS = [*CROP, T.ColorJitter(0.4, 0.4), T.Normalize.imagenet()]
KINDS: dict[str, dict[str, Any]] = {
    "crop": {"transform": CROP},
    "colours": {"transform": COLOURS, "dtype": torch.float32},
    "cached": {"transform": CROP, "cache": "device"},
    "cached colours": {"transform": COLOURS, "dtype": torch.float32, "cache": "device"},
}
DECODED: dict[str, dict[str, Any]] = {
    "decoded there": {"transform": CROP},
    "decoded there, colours": {"transform": COLOURS, "dtype": torch.float32},
    "cached JPEGs": {"transform": COLOURS, "dtype": torch.float32, "cache": "device"},
}


@pytest.fixture(scope="module")
def dataset(place: Path) -> FastDataset:
    return FastDataset(place / "set.lmdb", indices=range(24))


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> FastDataset:
    return FastDataset(write_numbered(tmp_path_factory.mktemp("late") / "marked.lmdb", with_markers(24)))


def loaded(
    dataset: FastDataset, monkeypatch: pytest.MonkeyPatch, device: Device, options: dict[str, Any], there: bool = False
) -> tuple[list[int], set[str | None]]:
    """Numbers of batches whose bytes differ from those of a loader on the CPU, and the streams that own the memory."""
    made = FastLoader(dataset, 4, num_workers=2, shuffle=True, **options)
    usual = FastLoader(dataset, 4, num_workers=2, shuffle=True, **options)
    expected = [(images.clone(), labels.clone()) for images, labels in usual]
    if there:  # pixels cut from JPEGs are not those cut from decoded images
        usual = FastLoader(dataset, 4, num_workers=2, shuffle=True, **{**options, "cache": None})
        expected = [(images.clone(), labels.clone()) for images, labels in usual]
    lend_late(made, device)
    if there and "cache" not in options:
        decode_there(made)
    monkeypatch.setattr(filling, "PART", 30_000)
    monkeypatch.setattr(filling, "GAIN", 0 if there else 1 << 20)
    monkeypatch.setattr(filling, "BatchMemory", lambda **_: HostMemory(device))
    wrong: list[int] = []

    def look(number: int, *memory: Block) -> None:
        if not all(map(np.array_equal, memory, map(_bytes, expected[number]))):
            wrong.append(number)

    pools: set[str | None] = set()
    for number, (images, labels) in enumerate(made):
        pools |= {device.pool(images), device.pool(labels)}
        device.put(partial(look, number, _bytes(images), _bytes(labels)))
        del images, labels
    assert not there or "cache" in options or made.stats.ways["device"] > 12
    if made._resident is not None:
        pools.add(device.pool(made._resident.data))
    device.go_on(to_the_end=True)
    return wrong, pools


@pytest.mark.parametrize("kind", KINDS | DECODED)
def test_batches_are_whole_and_their_memory_is_the_side_streams(
    dataset: FastDataset, marked: FastDataset, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for seed in range(2):
        there, device = kind in DECODED, Device(random.Random(seed))
        wrong, pools = loaded(marked if there else dataset, monkeypatch, device, (KINDS | DECODED)[kind], there)
        assert wrong == []
        assert pools == {"side"}


@pytest.mark.parametrize("fault", ["wait", "keep"])
def test_the_model_notices(dataset: FastDataset, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    devices = [Device(random.Random(seed), frozenset({fault})) for seed in range(6)]
    assert any(loaded(dataset, monkeypatch, device, KINDS["crop"])[0] for device in devices)
