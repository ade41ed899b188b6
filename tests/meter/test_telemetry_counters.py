"""Counters that many threads add to: nothing is lost, nothing falls, nothing grows."""

from __future__ import annotations

import threading

from iofast import meter as telemetry
from iofast.meter import Cells, StageCounter, Stages, StageStats


def test_a_stage_adds_up() -> None:
    counter = StageCounter()
    assert counter.stats() == StageStats(0, 0, 0, 0.0, 0.0, None)
    counter.add(32, work_ns=2_000_000_000, wait_ns=500_000_000, nbytes=1000)
    counter.add(work_ns=1_000_000_000, failed=1)
    counter.observe(1, 4)
    counter.observe(3, 4)
    assert counter.stats() == StageStats(items=33, failed=1, bytes=1000, work_s=3.0, wait_s=0.5, occupancy=0.5)


def test_no_addition_of_any_thread_is_lost() -> None:
    counter, seen, done = StageCounter(), [0], threading.Event()

    def work() -> None:
        for _ in range(5000):
            counter.add(2, work_ns=3)

    def ask() -> None:
        while not done.is_set():
            seen.append(counter.stats().items)

    asking = threading.Thread(target=ask)
    asking.start()
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    asking.join()
    assert (counter.stats().items, counter.sums()[3]) == (80_000, 120_000)
    assert seen == sorted(seen), "a sum has fallen"


def test_threads_that_end_leave_no_row_behind() -> None:
    """The rows of a loader that runs for days: four threads for each of a thousand epochs."""
    cells = Cells(1)

    def work(barrier: threading.Barrier) -> None:
        cells.mine()[0] += 1
        barrier.wait()

    for _ in range(1000):
        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=work, args=(barrier,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert cells.sums() == [4000]
    assert len(cells._rows) < 100


def test_stages_by_name() -> None:
    stages = Stages()
    stages.decode.add(5)
    assert list(stages.stats()) == list(telemetry.STAGES)
    assert {name: each.items for name, each in stages.stats().items()} == {
        "read": 0,
        "decode": 5,
        "queue": 0,
        "transfer": 0,
    }
