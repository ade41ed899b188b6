"""Counters that many threads add to: exact, never falling, bounded in memory."""

from __future__ import annotations

import threading

from at_once import at_once

from iofast.meter import STAGES, Cells, StageCounter, Stages, StageStats


def test_a_stage_adds_up() -> None:
    counter = StageCounter()
    assert counter.stats() == StageStats(0, 0, 0, 0.0, 0.0, None)
    counter.add(32, work_ns=2_000_000_000, wait_ns=500_000_000, nbytes=1000)
    counter.add(work_ns=1_000_000_000, failed=1)
    counter.observe(1, 4)
    counter.observe(3, 4)
    assert counter.stats() == StageStats(items=33, failed=1, bytes=1000, work_s=3.0, wait_s=0.5, occupancy=0.5)


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


def test_stages_by_name() -> None:
    stages = Stages()
    stages.decode.add(5)
    assert list(stages.stats()) == list(STAGES)
    assert [each.items for each in stages.stats().values()] == [0, 5, 0, 0]
