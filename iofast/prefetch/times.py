"""How threads that work ahead, and their consumer, spend their time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class PrefetchTimes(NamedTuple):
    """A snapshot.

    wall_s   seconds from the start of the threads to `close`
    batches  results handed over
    made     results finished, handed over or not
    wait_s   seconds that the consumer waited
    work_s   seconds that threads computed or waited for a disk, summed over threads
    cpu_s    CPU seconds of the threads' work
    """

    wall_s: float = 0.0
    batches: int = 0
    made: int = 0
    wait_s: float = 0.0
    work_s: float = 0.0
    cpu_s: float = 0.0

    def since(self, before: PrefetchTimes) -> PrefetchTimes:
        """What happened between two snapshots."""
        return PrefetchTimes._make(now - then for now, then in zip(self, before, strict=True))


class Spent:
    """The time of one thread's tasks so far. That thread alone writes it, so any thread may read it without a lock."""

    __slots__ = ("cpu_s", "work_s")

    def __init__(self) -> None:
        self.work_s = self.cpu_s = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time within this context."""
        begun, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self.work_s += time.perf_counter() - begun
            self.cpu_s += time.thread_time() - cpu
