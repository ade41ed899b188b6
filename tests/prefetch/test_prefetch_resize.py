"""Changes of threads and depth, times, and Ctrl-C between any two lines."""

import signal
import sys
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_sets import eventually, workers
from test_prefetch import Counted, Trace, expected

from iofast.errors import OptionError
from iofast.prefetch.jobs import Prefetch, PrefetchJob


class Gate(PrefetchJob[int, int]):
    """Jobs of one slice that wait until the gate is open; `at_work` counts them."""

    def __init__(self) -> None:
        self.lock, self.at_work, self.open = threading.Lock(), 0, threading.Event()

    def prepare(self) -> list[int]:
        return [0]

    def run(self, part: int) -> None:
        with self.lock:
            self.at_work += 1
        self.open.wait(20)
        with self.lock:
            self.at_work -= 1

    def finish(self) -> int:
        return 0


@given(
    changes=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6), st.integers(1, 6)), max_size=8),
    count=st.integers(0, 30),
    parts=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_order_and_bound_while_it_changes(
    changes: list[tuple[int, int, int]], count: int, parts: int, seed: int
) -> None:
    trace = Trace(0.001, seed)
    made = Prefetch(lambda number: Counted(number, parts, trace), count, num_workers=2, depth=3)
    results, allowed = [], 3
    for number in range(count):
        for _, num_workers, depth in [change for change in changes if change[0] == number]:
            made.resize(num_workers, depth)
            allowed = max(allowed, depth)
            assert (made.num_workers, made.depth) == (num_workers, depth)
        results.append(next(made))
        with trace.lock:
            trace.delivered += 1
    assert results == expected(count, parts)
    assert list(made) == []
    assert trace.most <= allowed + 1
    assert made.times().batches == count
    assert workers() == 0


def test_the_wanted_number_of_threads_works() -> None:
    gate = Gate()
    made = Prefetch(lambda _: gate, 1000, num_workers=1, depth=20)
    most = 1
    for wanted in (1, 4, 2, 6, 1, 3, 6):
        gate.open.clear()
        made.resize(num_workers=wanted)
        most = max(most, wanted)
        gate.open.set()  # threads park after their current task
        for _ in range(20):
            next(made)
        assert eventually(lambda: made.times().made - made.times().batches == 20)
        gate.open.clear()
        for _ in range(10):
            next(made)
        assert eventually(lambda wanted=wanted: gate.at_work == wanted)
        time.sleep(0.02)
        assert gate.at_work == wanted
        assert workers() == most  # with the parked ones; none was started without need
    gate.open.set()
    made.close()
    assert workers() == 0


@pytest.mark.parametrize("resize", [{"num_workers": 0}, {"depth": 0}, {"num_workers": -1}])
def test_sizes_below_one(resize: dict[str, int]) -> None:
    made = Prefetch(Counted, 9, num_workers=2, depth=3)
    with pytest.raises(OptionError, match="must be 1 or more, found"):
        made.resize(**resize)
    assert list(made) == expected(9, 3)
    made.resize(8, 8)  # after the end it starts nothing
    assert workers() == 0
    assert list(made) == []


def test_depth_shrinks_and_grows() -> None:
    trace = Trace()
    made = Prefetch(lambda number: Counted(number, 1, trace), 100, num_workers=2, depth=6)
    assert eventually(lambda: trace.begun == 6)
    made.resize(depth=2)
    for taken in range(1, 8):
        next(made)
        assert eventually(lambda taken=taken: trace.begun == max(6, taken + 2))
    made.resize(depth=10)
    assert eventually(lambda: trace.begun == 17)
    made._finalizer.detach()  # a Ctrl-C may interrupt it
    del made
    assert eventually(lambda: workers() == 0)


class Busy(Counted):
    """Computes for 4 ms in each of two slices."""

    def run(self, part: int) -> None:
        end = time.thread_time() + 0.004
        while time.thread_time() < end:
            pass


def test_times() -> None:
    made = Prefetch(lambda number: Busy(number, 2), 12, num_workers=1, depth=2)
    seen = []
    for _ in made:
        seen.append(made.times())
        time.sleep(0.001)
    last = made.times()
    assert [times.batches for times in seen] == list(range(1, 13))
    for earlier, later in pairwise([*seen, last]):
        difference = later.since(earlier)
        for name in ("wall_s", "wait_s", "work_s", "cpu_s", "made"):
            assert getattr(difference, name) > -1e-4, "three clocks are read one after the other"
    assert 0.096 <= last.cpu_s <= last.work_s + 0.002
    assert last.work_s <= last.wall_s
    assert 0.005 < last.wait_s < last.wall_s
    time.sleep(0.02)
    assert made.times() == last  # the threads have ended


def test_times_of_waiting_threads() -> None:
    made = Prefetch(Counted, 9, num_workers=2, depth=3)
    assert eventually(lambda: made.times().made == 3)

    def both_wait() -> bool:
        before = made.times()
        time.sleep(0.05)
        between = made.times().since(before)
        return between.wall_s > 0.04 and between.work_s < 0.02

    assert eventually(both_wait)
    made.close()


def test_ctrl_c_between_any_two_lines_loses_no_number() -> None:
    """Each Ctrl-C, here by a timer, loses at most the result that was being handed over."""
    sent, results, done, here = [0], list[int](), list[bool](), sys._getframe()

    def interrupt(_: int, frame: object) -> None:
        if frame is not here and not done:
            sent[0] += 1
            raise KeyboardInterrupt

    made = Prefetch(lambda number: Counted(number, 2), 3000, num_workers=3, depth=4)

    def consume() -> None:
        for result in made:
            results.append(result // 100)
            made.resize(1 + len(results) % 4, 1 + len(results) % 5)
            while sent[0] < len(results) // 100:  # a busy machine sends enough of them too
                time.sleep(0.0002)
        done.append(True)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        while not done:
            try:  # noqa: SIM105 - `suppress` has a frame of its own, which a signal may end
                consume()
            except KeyboardInterrupt:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert sent[0] > 20
    assert results == sorted(set(results))
    assert 3000 - sent[0] <= len(results) <= 3000
    assert eventually(lambda: workers() == 0)  # a Ctrl-C may end the wait for the threads
