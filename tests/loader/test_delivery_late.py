"""Loaders on devices that do nothing at once: no batch is read early or written over, and nothing waits for ever."""

import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from device_model import Block, Device, HostMemory, _bytes, decode_there, lend, lend_late
from loader_sets import check_equal, eventually, with_markers, workers, write_numbered

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.gpu import Direct
from iofast.loader import filling
from iofast.loader.delivery import AHEAD
from iofast.loader.loader_stats import Contexts
from iofast.meter import Stages
from iofast.prefetch import jobs

CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
COLOURS = [*CROP, T.ColorJitter(0.4, 0.4), T.Normalize.imagenet()]
KINDS: dict[str, dict[str, Any]] = {
    "crop": {"transform": CROP},
    "colours": {"transform": COLOURS, "dtype": torch.float32},
    "cached": {"transform": COLOURS, "dtype": torch.float32, "cache": "device"},
}
DECODED: dict[str, dict[str, Any]] = {
    "decoded there": {"transform": COLOURS, "dtype": torch.float32},
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
    same = {**options, "cache": None} if there else options  # pixels cut from JPEGs, not from decoded images
    usual = FastLoader(dataset, 4, num_workers=2, shuffle=True, **same)
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


def test_two_loaders_on_one_device(dataset: FastDataset) -> None:
    """Each gets its own batches, in turns that chance chooses, although one device does the work of both."""
    loaders, others = ([FastLoader(dataset, 4, num_workers=2, transform=CROP, seed=s) for s in range(2)] for _ in "ab")
    expected = [[[column.clone() for column in batch] for batch in other] for other in others]
    chance, device, wrong = random.Random(0), Device(random.Random(0)), list[tuple[int, int]]()

    def look(which: int, number: int, *memory: Block) -> None:
        if not all(map(np.array_equal, memory, map(_bytes, expected[which][number]))):
            wrong.append((which, number))

    for loader in loaders:
        lend_late(loader, device)
    coming, turns = [enumerate(loader) for loader in loaders], [0, 1] * len(loaders[0])
    chance.shuffle(turns)
    for turn in turns:
        number, (images, labels) = next(coming[turn])
        device.put(partial(look, turn, number, _bytes(images), _bytes(labels)))
        del images, labels
    device.go_on(to_the_end=True)
    assert wrong == []


@pytest.mark.parametrize("kind", KINDS | DECODED)
def test_batches_are_whole_and_their_memory_is_the_side_streams(
    dataset: FastDataset, marked: FastDataset, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for seed in range(2):
        there, device = kind in DECODED, Device(random.Random(seed))
        wrong, pools = loaded(marked if there else dataset, monkeypatch, device, (KINDS | DECODED)[kind], there)
        assert wrong == []
        assert pools == {"side"}


@pytest.mark.parametrize("options", [KINDS["cached"], {"ragged": "pad", "dtype": torch.float32}], ids=["cached", "pad"])
def test_a_device_without_streams_of_ours_gets_the_same(dataset: FastDataset, options: dict[str, Any]) -> None:
    own, plain = (FastLoader(dataset, 8, num_workers=2, shuffle=True, **options) for _ in range(2))
    own._spec.device = torch.device("mps")
    own._resources.transfer = Direct(torch.device("cpu"), own._stages.transfer)  # which has the same calls
    check_equal(own, plain)
    assert own.stats.stages["transfer"].items > 0


SHUFFLED: dict[str, Any] = {"transform": [T.RandomResizedCrop(24), T.RandomHorizontalFlip()], "shuffle": True}


def slow(sample: Any, rng: Any) -> Any:
    time.sleep(0.02)
    return sample


def many_slices(place: Path) -> FastLoader:
    """A batch takes its thread 400 ms, in five slices."""
    loader = FastLoader(FastDataset(place / "set.lmdb"), 20, num_workers=1, map_sample=slow, **SHUFFLED)
    loader._resources.slice = 4
    lend(loader)
    return loader


class TestASlowBatch:
    """The thread of the device waits for a batch that comes late, or never."""

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs, "JOIN_S", 0.5)  # a slice takes less, a batch nearly as long

    def test_is_not_waited_for(self, place: Path) -> None:
        batches = iter(many_slices(place))
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert eventually(lambda: workers() == 0), "a thread waits for a batch that no thread makes"

    def test_not_by_one_of_its_own_threads_either(self, place: Path) -> None:
        """A cycle may be collected anywhere, also in the thread that makes the batch."""
        held, begin = list[Any](), threading.Event()

        def collecting(sample: Any, rng: Any) -> Any:
            begin.wait()
            while held:
                held.pop().close()  # as the collector would
            return sample

        loader = many_slices(place)
        object.__setattr__(loader._spec.options, "map_sample", collecting)
        delivery_ = loader._delivery(Contexts(loader._spec.decode, Stages()), (0, 0, 2), None)
        held.append(delivery_)
        begin.set()
        assert eventually(lambda: workers() == 0), "two threads wait for each other"

    def test_is_closed_where_a_ctrl_c_comes_in_between(self, place: Path) -> None:
        loader = many_slices(place)
        delivery = loader._delivery(Contexts(loader._spec.decode, Stages()), (0, 0, 2), None)
        with patch.object(delivery._ahead, "close", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            delivery.close()
        assert not delivery.auto.prefetch._finalizer.alive
        delivery.close()


class TestASlowConsumer:
    """Its stream is far behind its host: it drops each batch at once, and the memory stays in use."""

    @pytest.fixture
    def device(self, place: Path) -> Iterator[Device]:
        self.loader = FastLoader(FastDataset(place / "set.lmdb"), 4, num_workers=2, **SHUFFLED)
        device = lend(self.loader)
        device.frozen = {"default"}
        yield device
        device.frozen = set()

    def test_gets_no_more_batches_than_its_memory_is_to_hold(self, device: Device) -> None:
        taken: list[int] = []
        consumer = threading.Thread(target=lambda: taken.extend(len(labels) for _, labels in self.loader))
        consumer.start()
        assert eventually(lambda: len(taken) == AHEAD + 1)
        time.sleep(0.1)
        assert len(taken) == AHEAD + 1
        assert device.blocks() == 2 * (AHEAD + 1), "images and labels"
        device.frozen = set()
        consumer.join(10)
        assert len(taken) == 10
        assert device.blocks() <= 2 * (AHEAD + 3)

    def test_may_leave(self, device: Device) -> None:
        batches = iter(self.loader)
        for _ in range(AHEAD + 1):
            next(batches)
        time.sleep(0.05)  # by now the next one waits for the stream
        batches.close()  # type: ignore[attr-defined]
        assert workers() == 0, "it waits for the stream"
