"""A loader on a device that does nothing at once: no batch is read early, and none is written over."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_decoding import Bench
from device_model import Block, Device, HostMemory, _bytes, lend, lend_late

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.gpu.decode import PartsCanvas
from iofast.loader import resident

CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
COLOURS = [*CROP, T.ColorJitter(0.4, 0.4), T.Normalize.imagenet()]
KINDS: dict[str, dict[str, Any]] = {
    "crop": {"transform": CROP},
    "colours": {"transform": COLOURS, "dtype": torch.float32},
    "cached": {"transform": CROP, "cache": "device"},
    "cached colours": {"transform": COLOURS, "dtype": torch.float32, "cache": "device"},
}
DECODED: dict[str, dict[str, Any]] = {
    "decoded there, colours": {"transform": COLOURS, "dtype": torch.float32, "decode": "gpu"},
    "decoded there": {"transform": CROP, "decode": "gpu"},
}


@pytest.fixture(scope="module")
def dataset(place: Path) -> FastDataset:
    return FastDataset(place / "set.lmdb", indices=range(24))


def loaded(
    dataset: FastDataset, monkeypatch: pytest.MonkeyPatch, device: Device, options: dict[str, Any]
) -> tuple[list[int], set[str | None]]:
    """Numbers of batches whose bytes differ from those of a loader on the CPU, and the streams that own the memory."""
    bench = Bench(monkeypatch)  # a library that decodes at once, whatever the streams do
    made = [FastLoader(dataset, 4, num_workers=2, shuffle=True, **options) for _ in range(2)]
    if "decode" in options:  # so that CPU and device do not differ by rounding
        lend(made[1])
    expected = [(images.clone(), labels.clone()) for images, labels in made[1]]
    assert (bench.backend.calls > 0) == ("decode" in options)
    lend_late(made[0], device)
    monkeypatch.setattr(resident, "PART", 30_000)
    monkeypatch.setattr(resident, "BatchMemory", lambda **_: HostMemory(device))
    wrong: list[int] = []

    def look(number: int, *memory: Block) -> None:
        if not all(map(np.array_equal, memory, map(_bytes, expected[number]))):
            wrong.append(number)

    pools: set[str | None] = set()
    for number, (images, labels) in enumerate(made[0]):
        pools |= {device.pool(images), device.pool(labels)}
        device.put(partial(look, number, _bytes(images), _bytes(labels)))
        del images, labels
    if made[0]._resident is not None:
        pools.add(device.pool(made[0]._resident.data))
    device.go_on(to_the_end=True)
    return wrong, pools


@pytest.mark.parametrize("kind", KINDS | DECODED)
def test_batches_are_whole_and_their_memory_is_the_side_streams(
    dataset: FastDataset, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for seed in range(4):
        wrong, pools = loaded(dataset, monkeypatch, Device(random.Random(seed)), (KINDS | DECODED)[kind])
        assert wrong == []
        assert pools == {"side"}


class OnAnotherStream:
    """A method of a canvas whose work goes to a stream that nothing waits for."""

    def __init__(self, device: Device, method: Any) -> None:
        self.device, self.method = device, method

    def __get__(self, canvas: Any, kind: type) -> Any:
        def called(*arguments: Any) -> Any:
            with self.device.on(self.device.queues["default"]):
                return self.method(canvas, *arguments)

        return called


@pytest.mark.parametrize("method", ["decode_there", "gather"])
@pytest.mark.parametrize("kind", ["decoded there"])
def test_work_on_the_wrong_stream_is_noticed(
    dataset: FastDataset, monkeypatch: pytest.MonkeyPatch, method: str, kind: str
) -> None:
    for seed in range(6):
        device = Device(random.Random(seed))
        device.speeds["default"] = 0.01  # training is late
        with monkeypatch.context() as patch:
            patch.setattr(PartsCanvas, method, OnAnotherStream(device, getattr(PartsCanvas, method)))
            wrong, pools = loaded(dataset, patch, device, DECODED[kind])
        if wrong or pools != {"side"}:
            return
    pytest.fail("not noticed")


@pytest.mark.parametrize("fault", ["wait", "keep"])
def test_the_model_notices(dataset: FastDataset, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    devices = [Device(random.Random(seed), frozenset({fault})) for seed in range(6)]
    assert any(loaded(dataset, monkeypatch, device, KINDS["crop"])[0] for device in devices)
