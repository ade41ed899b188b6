"""Counters of stages and of requests, phases of a step, samples of a batch: exact, never falling, bounded in memory."""

import threading
from contextlib import AbstractContextManager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from at_once import at_once
from hypothesis import given
from hypothesis import strategies as st
from stall_loaders import Time

from iofast.meter import (
    STAGES,
    Cells,
    LoaderInfo,
    Slot,
    StageCounter,
    Stages,
    StageStats,
    StallClock,
    Totals,
    TrafficStats,
    pages,
)
from iofast.meter.loop import _Batches, samples
from iofast.meter.traffic import Traffic


def test_sums() -> None:
    own = Traffic()
    assert own.stats() is None
    own.answered(1000, 0.25)
    own.answered(3000, 0.5)
    own.was_read(16_000)
    own.retries += 1
    assert own.stats() == TrafficStats(2, 4000, 1, 16_000, 0.25, 0.5)
    assert own.stats().hit_rate == 0.75  # type: ignore[union-attr]
    words = "2 requests for 0 MB, 250 ms (99 %: 500 ms), 75% from the cache, 1 repeated"
    assert str(own.stats()) == words


def test_differences_and_sums() -> None:
    before, now = TrafficStats(1, 10, 2, 40, 0.5, 0.6), TrafficStats(5, 30, 3, 90, 0.1, 0.2)
    assert now.since(before) == TrafficStats(4, 20, 1, 50, 0.1, 0.2)
    assert now.plus(before) == TrafficStats(6, 40, 5, 130, 0.5, 0.6)
    assert now.plus(TrafficStats()).p99_s == 0.2
    assert TrafficStats(bytes=20, read=10).hit_rate == 0.0, "no negative rate"
    assert TrafficStats(bytes=20).hit_rate is None


@given(st.lists(st.floats(0, 100), min_size=1, max_size=1500))
def test_quantiles_are_those_of_recent_answers(times: list[float]) -> None:
    own = Traffic()
    for each in times:
        own.answered(1, each)
    stats, recent = own.stats(), sorted(times[-1024:])
    assert stats is not None
    for share, found in ((0.5, stats.median_s), (0.99, stats.p99_s)):
        assert found is not None
        assert sum(each <= found for each in recent) >= share * len(recent)
        assert sum(each < found for each in recent) < share * len(recent)


def test_the_page_has_it_for_a_loader_of_a_store(own_page: object, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Traffic()
    monkeypatch.setattr("iofast.meter.page_files.traffic", own)
    own.answered(1000, 0.25)
    own.was_read(3000)
    for is_remote in (True, False):
        Slot(LoaderInfo("train")).write(Totals(), Stages(is_remote=is_remote))
    ((stored, local),) = (page.loaders for page in pages())
    assert (stored.traffic, local.traffic) == (own.stats(), None)


def test_a_stage_adds_up() -> None:
    counter = StageCounter()
    assert counter.stats() == StageStats(0, 0, 0, 0.0, 0.0)
    counter.add(32, work_ns=2_000_000_000, wait_ns=500_000_000, nbytes=1000)
    counter.add(work_ns=1_000_000_000, failed=1)
    assert counter.stats() == StageStats(items=33, failed=1, bytes=1000, work_s=3.0, wait_s=0.5)
    stages = Stages()
    stages.decode.add(5)
    assert {name: each.items for name, each in stages.stats().items()} == dict.fromkeys(STAGES, 0) | {"decode": 5}


def test_no_addition_of_any_thread_is_lost() -> None:
    counter, seen = StageCounter(), [0]

    def work() -> None:
        for _ in range(5000):
            counter.add(2, work_ns=3)

    def read() -> None:
        while seen[-1] < 80_000:
            seen.append(counter.stats().items)

    at_once(read, *[work] * 8)
    assert (counter.stats().items, counter.stats().work_s) == (80_000, 120_000 / 1e9)
    assert seen == sorted(seen), "a sum has fallen"


def test_ended_threads_leave_no_row_behind() -> None:
    cells = Cells(1)
    for _ in range(1000):  # epochs of four threads
        barrier = threading.Barrier(4)

        def work(barrier: threading.Barrier = barrier) -> None:
            cells.mine()[0] += 1
            barrier.wait()

        at_once(*[work] * 4)
    assert cells.sums() == [4000]
    assert len(cells._rows) < 100


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**9)), max_size=60))
def test_overlapping_uses_add_up(moves: list[tuple[int, int]]) -> None:
    clock, now = StallClock(LoaderInfo("train"), device="cpu"), Time()
    clock.now = now
    inside: dict[int, tuple[int, AbstractContextManager[object]]] = {}
    spent = left = 0
    for consumer, passing in moves:  # each of four consumers enters if it is outside, and leaves if it is inside
        now.ns += passing
        if consumer not in inside:
            inside[consumer] = now.ns, clock.step("forward")
            inside[consumer][1].__enter__()
        else:
            since, phase = inside.pop(consumer)
            phase.__exit__(None, None, None)
            spent, left = spent + now.ns - since, left + 1
        assert clock._phase_totals().get("forward", (0, 0, 0)) == (left, left, spent)


BATCHES: tuple[tuple[object, int | None], ...] = (
    ((torch.zeros(5, 2), torch.zeros(7)), 5),
    ([np.zeros((4, 3, 2, 2)), np.zeros(4)], 4),
    ({"path": "x", "image": torch.zeros(6, 1)}, 6),
    ({"image": torch.zeros(9, 1), "path": "x"}, 9),
    ((3, "text", None, {"deep": [torch.zeros(2)]}), 2),
    (([torch.zeros(3, 9, 9), torch.zeros(3, 5, 5)], torch.zeros(2)), 2),
    (([], torch.zeros(8)), 8),
    ((torch.tensor(1.0), torch.zeros(4)), 4),
    ((torch.zeros(1), torch.zeros(4)), 1),
    ("text", None),
    ([], None),
    ({"other": torch.zeros(3, 2)}, 3),
    ([[[[[[torch.zeros(3)]]]]]], None),
    (torch.zeros(0, 3), 0),
)


@pytest.mark.parametrize(("batch", "expected"), BATCHES)
def test_samples_of_a_batch(batch: object, expected: int | None) -> None:
    assert samples(batch) == expected


@given(st.lists(st.sampled_from(range(len(BATCHES))), min_size=1, max_size=12))
def test_any_sequence_of_batches(numbers: list[int]) -> None:
    pairs = [BATCHES[number] for number in numbers]
    clock = StallClock(LoaderInfo("mixed"), device="cpu")
    counts: list[int | None] = []
    batches = _Batches([batch for batch, _ in pairs], clock)
    batches._pass = SimpleNamespace(got=counts.append, waiting=lambda: None, left=lambda: None)  # type: ignore[assignment]
    assert all(found is batch for found, (batch, _) in zip(batches, pairs, strict=True))
    assert counts == [expected for _, expected in pairs]
