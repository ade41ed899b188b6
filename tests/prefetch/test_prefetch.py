"""Results in order, a bounded number ahead, errors at their number, and threads that end, also with the interpreter."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from loader_sets import eventually, threads, workers
from todays import todays

from iofast.errors import WorkerError
from iofast.prefetch.jobs import Prefetch, PrefetchJob


class Trace:
    """A record of what jobs did, and of the most that were in the making at once."""

    def __init__(self, delay: float = 0.0, seed: int = 0) -> None:
        self.lock = threading.Lock()
        self.begun = self.delivered = self.most = 0
        self.delay, self.random = delay, random.Random(seed)

    def wait(self) -> None:
        if self.delay:
            time.sleep(self.random.random() * self.delay)

    def begin(self) -> None:
        with self.lock:
            self.begun += 1
            self.most = max(self.most, self.begun - self.delivered)


class Counted(PrefetchJob[int, int]):
    """A job of `parts` slices, each of which adds a digit to the result."""

    def __init__(self, number: int, parts: int = 3, trace: Trace | None = None) -> None:
        self.number, self.parts, self.trace = number, parts, trace or Trace()
        self.sum = 0

    def prepare(self) -> list[int]:
        self.trace.begin()
        self.trace.wait()
        return list(range(self.parts))

    def run(self, part: int) -> None:
        self.trace.wait()
        with self.trace.lock:
            self.sum += 10**part

    def finish(self) -> int:
        self.trace.wait()
        return self.number * 10**self.parts + self.sum


def expected(count: int, parts: int) -> list[int]:
    return [number * 10**parts + int("1" * parts or "0") for number in range(count)]


@pytest.mark.parametrize("num_workers", [0, 3])  # 0: the consumer itself
def test_order_and_bound(num_workers: int) -> None:
    trace = Trace()
    made = Prefetch(lambda number: Counted(number, 2, trace), 12, num_workers=num_workers, depth=4, start=2)
    results = []
    for begun in (4, 5, 6) if num_workers else ():
        assert eventually(lambda begun=begun: trace.begun == begun)
        time.sleep(0.02)
        assert trace.begun == begun
        results.append(next(made))
    results += made
    assert results == expected(12, 2)[2:]
    assert (made.times().batches, list(made), workers()) == (10, [], 0)


def test_a_job_queued_twice_is_done_once() -> None:
    """A Ctrl-C between queuing a job and noting it queues it again."""
    trace = Trace()
    made = Prefetch(lambda number: Counted(number, 2, trace), 5, num_workers=2, depth=3)
    made._put = 0
    made._ask(3)
    assert list(made) == expected(5, 2)
    assert trace.begun == 5


def test_slices_of_one_job_run_at_the_same_time() -> None:
    barrier = threading.Barrier(4)

    class Together(Counted):
        def run(self, part: int) -> None:
            barrier.wait(20)
            super().run(part)

    before = threads()
    made = Prefetch(lambda number: Together(number, 4), 2, num_workers=4, depth=1)
    comms = [Path(f"/proc/self/task/{thread.native_id}/comm") for thread in made._threads]
    names = {f"iofast-{number}\n" for number in range(4)}  # by which a monitor recognises them
    assert eventually(lambda: {comm.read_text() for comm in comms} == names)
    assert list(made) == expected(2, 4)
    assert eventually(lambda: threads() <= before)


@pytest.mark.parametrize("stage", ["prepare", "run", "finish", "make"])
@pytest.mark.parametrize(("error", "raised"), [(KeyboardInterrupt, KeyboardInterrupt), (StopIteration, WorkerError)])
def test_an_error_reaches_the_consumer_at_its_number(stage: str, error: Any, raised: Any) -> None:
    def make(number: int) -> Counted:
        job = Counted(number)
        if number == 6 and stage == "make":
            raise ValueError(stage)
        if number == 6:  # a StopIteration would end the consumer's loop
            setattr(job, stage, Mock(side_effect=error(stage)))
        return job

    made, results = Prefetch(make, 9, num_workers=3, depth=3), list[int]()
    with pytest.raises(ValueError if stage == "make" else raised, match=stage if raised is error else None):
        results.extend(made)
    assert results == expected(3 if stage == "make" else 6, 3)
    made.close()
    assert workers() == 0
    assert list(made) == []


def test_collected_by_one_of_its_own_threads() -> None:
    """A thread that drops the last reference cannot wait for itself."""
    box: list[object] = []
    gone = threading.Event()

    class Dropping(Counted):
        def run(self, part: int) -> None:
            while not box:
                time.sleep(0.001)
            box.clear()
            gone.set()

    made = Prefetch(lambda number: Dropping(number, 1), 1, num_workers=2, depth=1)
    box.append(made)
    del made
    assert gone.wait(20)
    assert eventually(lambda: workers() == 0)


def test_a_machine_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer threads than asked for it works, with none it raises."""
    start, available = threading.Thread.start, 2

    def start_some(thread: threading.Thread) -> None:
        if thread.name.startswith("iofast-") and int(thread.name[7:]) >= available:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    two = Prefetch(Counted, 9, num_workers=4, depth=3)
    two.resize(num_workers=4)
    assert two.num_workers == workers() == 2
    assert len(list(two)) == 9
    available = 0
    with pytest.raises(RuntimeError, match="no thread for the loader: can't start new thread; a limit of processes"):
        Prefetch(Counted, 9, num_workers=4, depth=3)
    assert eventually(lambda: workers() == 0)


def test_a_stuck_thread_does_not_hold_the_consumer_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iofast.prefetch.jobs.JOIN_S", 0.5)
    monkeypatch.setattr(
        "iofast.prefetch.jobs.join_thread", lambda thread, most: waits.append(most) or thread.join(most)
    )
    release, waits, stuck = threading.Event(), list[float](), list[int]()

    class Stuck(Counted):
        def run(self, part: int) -> None:
            stuck.append(part)
            release.wait(60)

    made = Prefetch(lambda number: Stuck(number, 1), 8, num_workers=8, depth=8)
    assert eventually(lambda: len(stuck) == 8)
    made.close()
    assert len(waits) == 8
    assert sum(waits) < 1  # 0.5 for all together, not for each
    release.set()
    assert eventually(lambda: workers() == 0)


# --- at the end of the interpreter

SCRIPT = """
import threading, time
from iofast.errors import WorkerError
from iofast.prefetch import jobs, threads
from iofast.prefetch.jobs import Prefetch, PrefetchJob

threads._PATIENCE_S = jobs.JOIN_S = 1000.0  # no exit stands on a wait that ends by itself

class Slow(PrefetchJob):
    def prepare(self): return [0, 1]
    def run(self, part): time.sleep(0.005)
    def finish(self): return 1

def make(num_workers=3):
    return Prefetch(lambda number: Slow(), 10000, num_workers=num_workers, depth=3)

def late(ask):
    try:
        yield
    finally:  # when the interpreter drops this module's names
        try:
            print(ask())
        except WorkerError as error:
            print(error)
"""
EXITS = {
    "alive": "made = make(); next(made)",
    "in a cycle": "made = make(); cycle = [made]; cycle.append(cycle); del made, cycle",
    "in a daemon thread": "made = make(); threading.Thread(target=list, args=(made,), daemon=True).start(); "
    "time.sleep(0.05)",
    "while its threads are starting": "begin = threading.Thread._set_native_id\n"
    "threading.Thread._set_native_id = lambda self: begin(self) or time.sleep(self.name.startswith('iofast-') / 2)\n"
    "threading.Thread(target=lambda: list(make()), daemon=True).start(); time.sleep(0.2)",
    "kept by a module": "import os; os.kept = make(); next(os.kept)",
    "used at the end": "made = make(); next(made); last = late(lambda: list(made)); next(last)",
}


def printed(program: str) -> str:
    """What a program prints; by a new interpreter, whose end is the subject."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("ending", todays(list(EXITS)))
def test_the_interpreter_exits(ending: str) -> None:
    printed(SCRIPT + EXITS[ending])


@pytest.mark.parametrize("num_workers", todays([0, 3]))
def test_no_result_is_made_at_the_end(num_workers: int) -> None:
    program = SCRIPT + f"last = late(lambda: next(make({num_workers}))); next(last)"
    assert printed(program).startswith("no batch can be made while the interpreter exits")


COMPUTING = """
import torch
def train():
    while True:
        for _ in make(num_workers):
            for _ in range(20):
                (torch.ones(16, 3, 64, 64) @ torch.ones(16, 3, 64, 64)).sum()
for _ in range(2):
    threading.Thread(target=train, daemon=True).start()
time.sleep(delay)
"""


@pytest.mark.parametrize(
    "run", [*todays(range(6)), *(pytest.param(run, marks=pytest.mark.slow) for run in range(6, 20))]
)
def test_daemon_threads_that_compute_with_results_are_held(run: int) -> None:
    printed(SCRIPT.replace("10000", "5") + f"num_workers, delay = {run % 3}, {0.1 + run / 100}" + COMPUTING)


def test_a_daemon_thread_that_waits_for_another_is_not_waited_for() -> None:
    feeding = "import queue\nroom = queue.Queue(1)\ndef feed():\n    for each in make(): room.put(each)\n"
    printed(SCRIPT + feeding + "threading.Thread(target=feed, daemon=True).start(); time.sleep(0.3)")
