"""Steps of a driver, one after another, with their time and memory."""

import os
import random
import time
import tracemalloc
from collections import Counter
from pathlib import Path

from tools.torture.drivers import Driver, kind

TRACED = 4  # one step of four has its memory traced, which makes it three times as slow


class Run:
    """A driver at work; `counts` holds how its steps ended, and the largest figures."""

    def __init__(self, name: str, seed: int, folder: Path, counts: Counter[str]) -> None:
        self.name, self.seed, self.counts = name, seed, counts
        self.driver: Driver = kind(name)(folder)
        self.driver.counts = counts
        self._threads = _threads()  # the fewest so far: threads of the previous step may still be ending

    def step(self, number: int) -> None:
        """Take one step. An exception gets a note that names the step."""
        began, self._threads = time.monotonic(), min(self._threads, _threads())
        if self.driver.MEMORY is not None and number % TRACED == 0:
            tracemalloc.start()
        try:
            ended = self.driver.step(random.Random(f"{self.name} {self.seed} {number}"))
            peak, seconds = tracemalloc.get_traced_memory()[1] >> 20, time.monotonic() - began
            assert peak <= (self.driver.MEMORY or 0), f"memory: expected {self.driver.MEMORY} MiB, found {peak}"
            assert seconds <= self.driver.SLOW, f"time of a step: expected {self.driver.SLOW} s, found {seconds:.1f}"
        except Exception as error:
            error.add_note(f"driver {self.name}, seed {self.seed}, step {number}")
            raise
        finally:
            if tracemalloc.is_tracing():
                _wait_for_threads(self._threads)
                tracemalloc.stop()
        self.counts[ended] += 1
        self.counts["slowest ms"] = max(self.counts["slowest ms"], int(1000 * seconds))
        self.counts["most MiB"] = max(self.counts["most MiB"], peak)


def _threads() -> int:
    """Threads that the system knows; one that Python has joined may still free its last bytes."""
    return len(os.listdir("/proc/self/task"))


def _wait_for_threads(most: int) -> None:
    """Wait for further threads to end: CPython 3.11 crashes if tracing stops while a thread frees memory."""
    until = time.monotonic() + 1
    while _threads() > most and time.monotonic() < until:
        time.sleep(0.001)
