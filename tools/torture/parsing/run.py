"""Steps of a driver, one after another, with their time and memory."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections import Counter
from pathlib import Path

from tools.torture.parsing import Driver, chance_of, make

SLOW = 20.0  # seconds that a step may take, on a sanitized build
TRACED = 4  # of so many steps one has its memory traced, which makes it three times as slow


class Run:
    """A driver that is at work; `counts` has how its steps ended, and the largest figures."""

    def __init__(self, name: str, seed: int, folder: Path, counts: Counter[str]) -> None:
        self.name, self.seed, self.counts = name, seed, counts
        self.driver: Driver = make(name, folder)
        self._threads = _threads()  # the fewest so far: when a step begins, one of the step before may still be ending

    def step(self, number: int) -> None:
        """One step. Raises what does not hold, with a note that says which step it was."""
        began, self._threads = time.monotonic(), min(self._threads, _threads())
        if number % TRACED == 0:
            tracemalloc.start()
        try:
            ended = self.driver.step(chance_of(self.name, self.seed, number))
            peak = tracemalloc.get_traced_memory()[1] >> 20
            seconds = time.monotonic() - began
            assert peak <= self.driver.MEMORY, f"{peak} MiB of memory, {self.driver.MEMORY} are allowed"
            assert seconds <= SLOW, f"{seconds:.1f} s"
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
    """How many the system knows: one that Python has joined may have its last bytes still to free."""
    return len(os.listdir("/proc/self/task"))


def _wait_for_threads(most: int) -> None:
    """Until there are no more than these: where tracing ends while a thread frees memory, CPython 3.11 crashes."""
    until = time.monotonic() + 1
    while _threads() > most and time.monotonic() < until:
        time.sleep(0.001)
