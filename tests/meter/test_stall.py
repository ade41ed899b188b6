"""watch() around all kinds of loaders, and the arithmetic of StallClock with a clock that the test sets."""

from __future__ import annotations

import contextlib
import copy
import pickle
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from at_once import at_once
from stall_loaders import Time, TimedLoader, timed
from torch.utils.data import DataLoader, TensorDataset

from iofast import meter as telemetry
from iofast.errors import OptionError
from iofast.meter import LoaderInfo, LoaderReport, Meter, Stall, watch
from iofast.meter.clock import MAX_PHASES, OTHER
from iofast.meter.device import RECENT

pytestmark = pytest.mark.usefixtures("own_page")


# --- arithmetic


def test_host_wait_steps_and_epoch_start(time: Time) -> None:
    meter = timed(time, [70, 10, 30, 20], start_ms=30)
    for _ in meter:
        time.go(60)
    stats = meter.stats
    assert (stats.device, stats.epochs, stats.batches, stats.steps, stats.images) == ("cpu", 1, 4, 3, 32)
    assert stats.epoch_start_s == pytest.approx(0.100), "iter() and the first next(), which belong to no step"
    assert stats.step_mean_s == pytest.approx(0.080)  # 70, 90 and 80
    assert stats.step_median_s == pytest.approx(0.080)
    assert stats.host_wait == pytest.approx(60 / 240)
    assert stats.stall == Stall(pytest.approx(0.25), pytest.approx(0.25), "inside")
    assert stats.transfer is None
    assert stats.images_per_s == pytest.approx(8 / 0.080)
    assert str(stats) == ("3 steps of 80 ms (median 80); 100 images/s; host wait 25.0%; epoch start 0.10 s")


def test_time_without_a_processor(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux's count is read where the pass begins and ends, and by its own thread alone."""
    assert timed(time, [70, 10]).stats.queued is None
    counts = [(5_000, 1_000_000), (5_000, 1_000_000), (65_000, 1_600_000)]  # begin, first page, end
    monkeypatch.setattr("iofast.meter.clock._queued_ns", lambda: counts.pop(0))
    meter = timed(time, [70, 10])
    for _ in meter:
        time.go(60)
    assert not counts
    assert meter.stats.queued == pytest.approx(0.1)
    assert "; queued 10.0%" in str(meter.stats)


def test_before_the_first_step() -> None:
    meter = watch([np.zeros(3)])
    for seen in (0, 1):
        stats = meter.stats
        assert (stats.batches, stats.steps, stats.host_wait, stats.step_mean_s) == (seen, 0, None, None)
        assert stats.stall == Stall(0.0, 1.0)
        assert stats.images_per_s is None
        assert str(stats) == f"{seen} batches, no step yet"
        for _ in meter:
            pass
    assert asdict(meter.stats)["stall"] == {"low": 0.0, "high": 1.0, "tier": "inside"}


def test_the_end_of_an_epoch_counts_to_its_start(time: Time, reported: Callable[[], LoaderReport]) -> None:
    """A DataLoader ends its workers in the last next(). Leaving early waits for nothing."""

    class Ending(TimedLoader):
        def _batches(self) -> Iterator[np.ndarray[Any, Any]]:
            yield from super()._batches()
            self.time.go(500)

    meter = watch(Ending(time, [100, 10], start_ms=20))
    meter.clock.now = time
    for _ in meter:
        time.go(40)
    assert meter.stats.epoch_start_s == pytest.approx(0.620)
    assert (meter.stats.step_mean_s, meter.stats.host_wait) == (pytest.approx(0.05), pytest.approx(0.2))
    assert reported().figures.epoch_start_ns == 620_000_000
    batches = iter(meter)
    next(batches)
    time.go(9_000)
    del batches
    for _ in meter:
        time.go(7_000)
        break
    assert meter.stats.epoch_start_s == pytest.approx((0.62 + 2 * 0.12) / 3)
    assert list(watch(Ending(time, []))) == []


def test_what_ends_no_step(time: Time) -> None:
    """The first batch of an epoch, time between epochs, break and errors."""
    meter = timed(time, [100, 10, 10])
    for _ in range(2):
        for _ in meter:
            time.go(40)
        time.go(9_000)  # validation
    with contextlib.suppress(ZeroDivisionError):
        for _ in meter:
            time.go(10)
            raise ZeroDivisionError
    stats = meter.stats
    assert (stats.epochs, stats.steps, stats.batches) == (3, 4, 7)
    assert stats.epoch_start_s == pytest.approx(0.1)
    assert stats.step_mean_s == pytest.approx(0.05)
    assert stats.host_wait == pytest.approx(0.2)


def test_an_error_of_the_loader_is_raised_and_ends_no_step() -> None:
    class Failing:
        script: ClassVar[list[Any]] = [1, OSError("the disk is gone"), 3, 4, StopIteration]

        def __iter__(self) -> Failing:
            self.steps = iter(self.script)
            return self

        def __next__(self) -> int:
            if isinstance(step := next(self.steps), int):
                return step
            raise step

    meter = watch(Failing())
    batches = iter(meter)
    assert next(batches) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert list(batches) == [3, 4]
    assert (meter.stats.epochs, meter.stats.batches, meter.stats.steps) == (1, 3, 1)


def test_phases_are_seconds_per_batch(time: Time) -> None:
    meter = timed(time, [10, 10, 10, 10, 10])
    for number, _ in enumerate(meter):
        with meter.step("forward"):
            time.go(30)
            with meter.step("inner"), meter.step("inner"):
                time.go(10)
        if number % 2:  # the optimizer at every second batch
            with meter.step("optimizer"):
                time.go(25)
        with pytest.raises(KeyError), meter.step("raises"):
            raise KeyError
    phases = meter.stats.phases
    assert meter.stats.step_mean_s == pytest.approx(0.0625)  # two of four steps have the optimizer in them
    assert phases["forward"].seconds == pytest.approx(0.040)
    assert phases["forward"].share == pytest.approx(0.64)
    assert phases["inner"].seconds == pytest.approx(0.020)
    assert phases["optimizer"].seconds == pytest.approx(0.010)
    assert phases["raises"].seconds == 0


def test_memory_is_bounded(time: Time) -> None:
    """Of names, and of the steps of the median."""
    meter = timed(time, [1] * (3 * RECENT))
    for number, _ in enumerate(meter):
        if number < 3 * MAX_PHASES:
            with meter.step(f"step {number}"):
                pass
        time.go(9 if number < RECENT else 19)
    assert len(meter.stats.phases) <= MAX_PHASES + 1
    assert OTHER in meter.stats.phases
    assert len(meter.clock.recent) == RECENT
    assert meter.stats.step_median_s == pytest.approx(0.020)
    assert meter.stats.steps == 3 * RECENT - 1


# --- any loader


def test_other_attributes_are_the_loaders() -> None:
    dataset = TensorDataset(torch.arange(10))
    loader = DataLoader(dataset, batch_size=4)
    meter = watch(loader)
    assert (len(meter), meter.batch_size, meter.dataset, meter.loader) == (3, 4, dataset, loader)
    assert [bool(watch(each)) for each in ([1], [], iter([1]))] == [True, False, True]
    assert repr(watch([1])) == "watch([1])"
    with pytest.raises(AttributeError, match="DataLoader"):
        _ = meter.nothing
    with pytest.raises(TypeError, match="has no len"):
        len(watch(iter([1])))
    assert list(watch(number for number in range(3))) == [0, 1, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_dataloader(workers: int) -> None:
    loader = DataLoader(TensorDataset(torch.arange(64).reshape(32, 2)), batch_size=5, num_workers=workers)
    meter = watch(loader)
    for _ in range(2):
        assert torch.cat([rows for (rows,) in meter]).flatten().tolist() == list(range(64))
    stats = meter.stats
    assert (stats.epochs, stats.batches, stats.steps, stats.images) == (2, 14, 12, 64)
    (page,) = telemetry.pages()  # workers have none
    (reported,) = page.loaders
    assert reported.info == LoaderInfo("DataLoader", "watched", workers, 2 * workers, 5, rank=page.rank)


@pytest.mark.parametrize(
    ("loader", "options", "message"),
    [
        (3, {}, "iterable of batches, found int"),
        ([1], {"device": "cuda:99"}, "torch sees"),
        ([1], {"device": "cuda:x"}, "found 'cuda:x'"),
        ([1], {"name": 3}, "name must be a str, found 3"),
    ],
)
def test_invalid_arguments(loader: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        watch(loader, **options)


def test_a_batch_whose_attributes_raise_is_handed_over() -> None:
    class Raises(dict[str, Any]):
        def values(self) -> Any:
            raise KeyError("loaded lazily")

        @property
        def shape(self) -> tuple[int, ...]:
            raise RuntimeError("sizes of nested tensors are not one number")

    batches = [Raises(), SimpleNamespace(shape=(None, 3)), np.zeros(3)]
    meter = watch(batches, device=torch.device("cpu"))
    assert list(meter) == batches
    assert (meter.stats.batches, meter.stats.images) == (3, None), "not all are known"


class Copied:
    """Makes batches that nobody keeps, and copies itself in its own way."""

    def __iter__(self) -> Iterator[Any]:
        return ({number} for number in range(2))

    def __deepcopy__(self, memo: dict[int, object]) -> Copied:
        return Copied()


def test_the_meter_keeps_no_batch_and_is_copied() -> None:
    meter = watch(Copied())
    batches = iter(meter)
    batch = weakref.ref(next(batches))
    assert batch() is None
    assert isinstance(copy.deepcopy(meter), Meter)
    assert isinstance(copy.deepcopy(meter).loader, Copied)


def test_copies_measure_for_themselves() -> None:
    meter = watch(DataLoader(TensorDataset(torch.arange(4))), name="train", device="cpu")
    for other in (copy.deepcopy(meter), pickle.loads(pickle.dumps(meter))):
        assert len(list(other)) == 4
        assert (other.stats.batches, meter.stats.batches) == (4, 0)
        assert (other.clock.slot.info, other.clock.device) == (meter.clock.slot.info, "cpu")
    assert len(list(copy.copy(meter))) == 4


def test_nested_meters_are_independent(time: Time) -> None:
    outer, inner = timed(time, [10, 10, 10]), timed(time, [1, 1])
    for _ in outer:
        for _ in inner:
            time.go(4)
    assert (inner.stats.step_mean_s, outer.stats.step_mean_s) == (pytest.approx(0.005), pytest.approx(0.020))
    assert outer.stats.host_wait == pytest.approx(0.5)


# --- several at once


def test_threads_with_one_meter_and_with_their_own() -> None:
    shared = watch([np.zeros((2, 1))] * 500)
    own = [watch([np.zeros((3, 1))] * 500) for _ in range(4)]
    results = []

    def run(meter: Meter[Any]) -> None:
        for _ in shared:
            with shared.step("s"):
                pass
        for _ in meter:
            pass
        results.append(meter.stats.images)

    at_once(*(partial(run, meter) for meter in own))
    assert results == [1500] * 4
    assert (shared.stats.epochs, shared.stats.batches, shared.stats.images) == (4, 2000, 4000)
