"""Threads that work ahead end with the interpreter, and no result can be made while it exits."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

SCRIPT = """
import threading, time
from iofast.errors import WorkerError
from iofast.prefetch.jobs import Prefetch, PrefetchJob

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
    "unused": "made = make()",
    "in a cycle": "made = make(); cycle = [made]; cycle.append(cycle); del made, cycle",
    "in a daemon thread": "made = make(); threading.Thread(target=list, args=(made,), daemon=True).start(); "
    "time.sleep(0.05)",
    "while its threads are starting": "begin = threading.Thread._set_native_id\n"
    "threading.Thread._set_native_id = lambda self: begin(self) or time.sleep(self.name.startswith('iofast-') / 2)\n"
    "threading.Thread(target=lambda: list(make()), daemon=True).start(); time.sleep(0.2)",
    "kept by a module": "import os; os.kept = make(); next(os.kept)",
    "used at the end": "made = make(); next(made); last = late(lambda: list(made)); next(last)",
}


ALWAYS = ("alive", "while its threads are starting", "used at the end")  # the others are slow tests


@pytest.fixture(params=[each if each in ALWAYS else pytest.param(each, marks=pytest.mark.slow) for each in EXITS])
def ending(request: pytest.FixtureRequest) -> str:
    return SCRIPT + EXITS[request.param] + "\nprint(time.monotonic())"


def test_the_interpreter_exits(ending: str) -> None:
    done = subprocess.run([sys.executable, "-c", ending], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - float(done.stdout.split()[0]) < 8  # less than the wait for a thread; the clock is shared


@pytest.mark.parametrize("num_workers", [0, 3])
def test_no_result_is_made_at_the_end(num_workers: int) -> None:
    program = SCRIPT + f"last = late(lambda: next(make({num_workers}))); next(last)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no batch can be made while the interpreter exits")
