"""Bursts of looks at Python stacks, so rare that with the looks at /proc they cost less than 2 % of a core."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import fsum
from typing import Final, TypeVar

from iofast.monitor.probe.stacks import StackProbe
from iofast.monitor.snapshot import Job, StackFigures
from iofast.monitor.training import pooled

_BUDGET: Final = 0.009  # of one core, py-spy's processes and ours: /proc and verdicts use as much
_AHEAD_S: Final = 0.2  # of processor time, in advance, as users wait for the first verdict
_LOOKS: Final = 20  # in a burst, which takes three seconds; starting py-spy costs as much as 25 looks
_SHORTEST_S: Final = 0.25  # between bursts
_AGAIN_S: Final = 30.0  # after one that failed
_MOST_SITES: Final = 32

Kind = TypeVar("Kind")


class Bursts:
    """Runs one burst at a time, in its own thread."""

    def __init__(self, job: Job) -> None:
        self._probe = StackProbe(job)
        self._thread = ThreadPoolExecutor(1, "iofast-stacks")
        self._running: Future[tuple[StackFigures | None, float]] | None = None
        self._due_at = self._paid_at = time.monotonic()
        self._credit_s = _AHEAD_S
        self._turn = 0
        self._figures: list[StackFigures] = []
        self._error = ""

    @property
    def note(self) -> str:
        """One line that says why there are no stacks, or ""."""
        return self._probe.note or self._error

    def start_if_due(self, workers: Sequence[int]) -> None:
        """Begin a burst at the training and at the next worker, if it is time for one."""
        now = time.monotonic()
        self._collect(now)
        if self._running is None and now >= self._due_at:
            self._running = self._thread.submit(self._burst, [workers[self._turn % len(workers)]] if workers else [])
            self._turn += 1

    def take(self) -> StackFigures | None:
        """The figures of the bursts that ended since the last call."""
        self._collect(time.monotonic())
        figures, self._figures = self._figures, []
        return together(figures)

    def close(self) -> None:
        """End a running burst."""
        self._probe.stop()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _burst(self, workers: Collection[int]) -> tuple[StackFigures | None, float]:
        before = _spent_s()
        try:
            figures = self._probe.burst(workers, _LOOKS)
        except (OSError, ValueError) as error:  # no descriptors or memory, or the output of another version of py-spy
            figures, self._error = None, f"no Python stacks: {error}"
        return figures, _spent_s() - before

    def _collect(self, now: float) -> None:
        if self._running is None or not self._running.done():
            return
        figures, cost = self._running.result()
        self._running = None
        if figures is None:
            self._due_at = now + _AGAIN_S
            return
        self._figures.append(figures)
        self._credit_s = min(_AHEAD_S, self._credit_s + _BUDGET * (now - self._paid_at)) - cost
        self._paid_at = now
        # a random distance, so that bursts do not keep step with the training
        self._due_at = now + max(_SHORTEST_S, -self._credit_s / _BUDGET) * random.uniform(0.5, 1.5)


def _spent_s() -> float:
    """Processor time of the children that have ended, and of this thread."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime + time.thread_time()


def together(bursts: Sequence[StackFigures]) -> StackFigures | None:
    """Several bursts as one; None of none."""
    if len(bursts) < 2:
        return bursts[0] if bursts else None
    return StackFigures(
        looks=sum(each.looks for each in bursts),
        main=_mean([(each.main, each.looks) for each in bursts]),
        worker_looks=sum(each.worker_looks for each in bursts),
        workers=_mean([(each.workers, each.worker_looks) for each in bursts]),
        syncs=tuple(pooled([(each.syncs, each.looks) for each in bursts])[:_MOST_SITES]),
        waits=tuple(pooled([(each.waits, each.looks) for each in bursts])[:_MOST_SITES]),
        trains=any(each.trains for each in bursts),
        single_tensor_optimizer=any(each.single_tensor_optimizer for each in bursts),
        anomaly_detection=any(each.anomaly_detection for each in bursts),
        convolutions=any(each.convolutions for each in bursts),
        compiled=any(each.compiled for each in bursts),
    )


def _mean(parts: Sequence[tuple[Mapping[Kind, float], int]]) -> dict[Kind, float]:
    """Shares of all looks together; each part has its shares and its number of looks."""
    total = sum(looks for _, looks in parts)
    kinds = dict.fromkeys(kind for shares, looks in parts if looks for kind in shares)
    return {kind: fsum(shares.get(kind, 0.0) * looks for shares, looks in parts) / total for kind in kinds}
