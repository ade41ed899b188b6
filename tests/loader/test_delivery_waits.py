"""What the thread of the device waits for: batches that come late or never, and a consumer's stream far behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device_model import Device, lend
from loader_sets import eventually, workers

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.loader.delivery import AHEAD
from iofast.loader.loader_stats import Contexts
from iofast.meter import Stages
from iofast.prefetch import jobs

CROP: dict[str, Any] = {"transform": [T.RandomResizedCrop(24), T.RandomHorizontalFlip()], "shuffle": True}


def slow(sample: Any, rng: Any) -> Any:
    time.sleep(0.02)
    return sample


def many_slices(place: Path) -> FastLoader:
    """A batch takes its thread 400 ms, in five slices."""
    loader = FastLoader(FastDataset(place / "set.lmdb"), 20, num_workers=1, map_sample=slow, **CROP)
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

    def test_is_closed_where_a_ctrl_c_comes_in_between(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loader = many_slices(place)
        delivery_ = loader._delivery(Contexts(loader._spec.decode, Stages()), (0, 0, 2), None)
        ahead = delivery_._ahead
        assert ahead is not None

        def interrupted() -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(ahead, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            delivery_.close()
        assert not delivery_.made._finalizer.alive
        monkeypatch.undo()
        delivery_.close()


class TestASlowConsumer:
    """Its stream is far behind its host: it drops each batch at once, and the memory stays in use."""

    @pytest.fixture
    def device(self, place: Path) -> Iterator[Device]:
        self.loader = FastLoader(FastDataset(place / "set.lmdb"), 4, num_workers=2, **CROP)
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
