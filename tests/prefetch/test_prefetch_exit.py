"""Threads that work ahead end with the interpreter, and no result can be made while it exits."""

from __future__ import annotations

import subprocess
import sys

import pytest
from todays import todays

SCRIPT = """
import threading, time
from iofast.errors import WorkerError
from iofast.prefetch import jobs, threads
from iofast.prefetch.jobs import Prefetch, PrefetchJob

threads._PATIENCE_S = jobs.JOIN_S = 1000.0  # no exit stands on a wait that ends by itself

class Slow(PrefetchJob):
    def prepare(self): return [0, 1]
    def run(self, number, part): time.sleep(0.005)
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
