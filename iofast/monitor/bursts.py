"""Bursts of looks at Python stacks, so rare that with the looks at /proc they cost less than 2 % of a core."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from iofast.monitor.probe.stacks import StackCounts, StackProbe
from iofast.monitor.snapshot import Job, StackFigures

_BUDGET: Final = 0.009  # of one core, py-spy's processes and ours: /proc and verdicts use as much
_AHEAD: Final = 4  # bursts in advance, as users wait for the first verdict
_LOOKS: Final = 20  # in a burst, which takes three seconds; starting py-spy costs as much as 25 looks
_SHORTEST_S: Final = 0.25  # between bursts
_AGAIN_S: Final = 30.0  # after one that failed


class Bursts:
    """Runs one burst at a time, in its own thread."""

    def __init__(self, job: Job) -> None:
        self._probe = StackProbe(job)
        self._thread = ThreadPoolExecutor(1, "iofast-stacks")
        self._running: Future[tuple[StackCounts | None, float]] | None = None
        self._due_at = self._began = time.monotonic()
        self._turn = 0
        self._hurried = False
        self._tally: StackCounts | None = None  # of the bursts since the last take
        self._error = ""

    @property
    def note(self) -> str:
        """One line that says why there are no stacks, or ""."""
        return self._probe.note or self._error

    def start_if_due(self, workers: Sequence[int]) -> None:
        """Begin a burst at the training and at the next worker, if it is time for one."""
        now = time.monotonic()
        self._collect(now)
        if self._running is None and (self._hurried or now >= self._due_at):
            self._hurried = False
            self._running = self._thread.submit(self._burst, [workers[self._turn % len(workers)]] if workers else [])
            self._turn, self._began = self._turn + 1, now

    def hurry(self) -> None:
        """Begin another burst at the next look, whatever the last one cost, and also if it failed."""
        self._hurried = True

    def take(self) -> StackFigures | None:
        """The figures of the bursts that ended since the last call."""
        self._collect(time.monotonic())
        tally, self._tally = self._tally, None
        return None if tally is None else tally.figures()

    def close(self) -> None:
        """End a running burst."""
        self._probe.stop()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _burst(self, workers: Collection[int]) -> tuple[StackCounts | None, float]:
        before = _spent_s()
        try:
            tally = self._probe.burst(workers, _LOOKS)
        except (OSError, ValueError) as error:  # no descriptors or memory, or the output of another version of py-spy
            tally, self._error = None, f"no Python stacks: {error}"
        return tally, _spent_s() - before

    def _collect(self, now: float) -> None:
        if self._running is None or not self._running.done():
            return
        tally, cost = self._running.result()
        self._running = None
        if tally is None:
            self._due_at = now + _AGAIN_S
            return
        if self._tally is not None:
            tally.add(self._tally)
        self._tally = tally
        apart = cost / _BUDGET * random.uniform(0.5, 1.5)  # so that bursts do not keep step with the training
        self._due_at = max(now + _SHORTEST_S, self._began + apart if self._turn >= _AHEAD else 0.0)


def _spent_s() -> float:
    """Processor time of the children that have ended, and of this thread."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime + time.thread_time()
