"""The measurement of how fast CPU and device decode, for "split" and "auto"."""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from device_decoding import Bench
from loader_sets import photographs, write_lmdb

from iofast import transforms as T
from iofast.gpu.decode.share import WHOLE, Rates, balanced
from iofast.loader import batches as measuring
from iofast.loader.batches import measure
from iofast.loader.canvas import Uniform
from iofast.loader.loader_stats import Contexts
from iofast.loader.samples import Samples
from iofast.meter import Stages

SLICE_S, SLICE = 0.02, 4  # seconds and images of a slice
CROP: dict[str, Any] = {"transform": [T.RandomResizedCrop(24)], "shuffle": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lmdb(tmp_path_factory.mktemp("measured") / "set.lmdb", photographs(12) * 12)


@pytest.mark.parametrize(("num_workers", "batch_size"), [(1, 8), (4, 8), (6, 8), (4, 16), (3, 4)])
def test_threads_that_take_several_batches_at_once(
    bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int, batch_size: int
) -> None:
    """Results come in bursts; the time between two of them must not count."""

    def slow(samples: Samples, context: Any, stages: Any, start: int, stop: int) -> None:
        time.sleep(SLICE_S * (stop - start) / SLICE)

    loader = bench.there(place, batch_size, decode="split", num_workers=num_workers, **CROP)
    loader._resources.slice = SLICE
    loader._resources.limits = replace(loader._resources.limits, slices=-(-batch_size // SLICE))
    monkeypatch.setattr(Samples, "make", slow)
    monkeypatch.setattr(measuring, "_decoded", lambda plan, canvases, bus: 1000.0)
    rates = measure(loader._parts(), 0, 0)
    true = num_workers * SLICE / SLICE_S
    for rate in (rates.cpu, rates.parts):
        assert 0.1 * true < rate < 1.02 * true  # sleeping takes at least as long as asked


@pytest.mark.parametrize(("num_workers", "prefetch", "wanted"), [(1, 3, 3), (16, 16, 32), (16, 4, 8), (2, 16, 4)])
def test_every_thread_has_work(bench: Bench, place: Path, num_workers: int, prefetch: int, wanted: int) -> None:
    """The number of batches grows as they get smaller, up to the end of the epoch."""
    seen: list[range] = []
    loader = bench.there(place, 4, decode="split", num_workers=num_workers, prefetch=prefetch, **CROP)

    def made(plan: Any, contexts: Any, share: int, epoch: int, batches: range) -> Any:
        seen.append(batches)
        return measuring._run(plan, contexts, share, epoch, batches[:2])[::-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "_made", made)
        measure(loader._parts(), 0, 2)
        measure(loader._parts(), 0, len(loader) - 1)
    assert seen[:2] == [range(2, 3 + wanted)] * 2
    assert seen[2:] == [range(len(loader) - 1, len(loader))] * 2


def test_no_more_batches_at_a_time_than_in_training(bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's pixels are in page-locked memory, which would be gigabytes for many threads."""
    alive, most = weakref.WeakSet[Uniform](), list[int]()
    begin = Uniform.__init__

    def counted(canvas: Uniform, *given: Any) -> None:
        begin(canvas, *given)
        alive.add(canvas)
        most.append(len(alive))

    monkeypatch.setattr(Uniform, "__init__", counted)
    loader = bench.there(place, 4, decode="split", num_workers=16, prefetch=5, **CROP)
    rate, kept = measuring._made(loader._parts(), Contexts(loader._spec.decode, Stages()), WHOLE, 0, range(30))
    assert rate > 0
    assert kept == []
    assert len(most) == 30
    assert max(most) <= 20  # 5 in the making, 2 on their way, some freed late; of 30


def test_the_rates_of_a_loader(bench: Bench, place: Path) -> None:
    loader = bench.there(place, 8, decode="split", **CROP)
    rates = measure(loader._parts(), 0, 0)
    assert min(rates) > 0
    assert 0 <= balanced(rates) <= WHOLE
    assert bench.idle >= 2


def test_two_consumers_measure_once(bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the second share would replace the first one within its epoch."""
    rates = iter([Rates(1000, 9000, 3000), Rates(9000, 9000, 10)])

    def measured(*about: Any) -> Rates:
        time.sleep(0.05)
        return next(rates)

    monkeypatch.setattr("iofast.loader.fast.measure", measured)
    loader = bench.there(place, 8, decode="split", **CROP)
    threads = [threading.Thread(target=loader.peek) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert next(rates) == Rates(9000, 9000, 10), "it was measured twice"
    assert loader.state_dict()["split"] == balanced(Rates(1000, 9000, 3000))
