"""Bursts of looks at Python stacks, so seldom that with the looks of /proc they cost less than 2 % of a core."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import fsum
from typing import Final, TypeVar

from iofast.monitor.probe.stacks import StackProbe
from iofast.monitor.snapshot import Job, StackFigures
from iofast.monitor.training import pooled

_BUDGET: Final = 0.009  # of one core, py-spy's processes and ours: /proc and verdicts use as much
_AHEAD_S: Final = 0.2  # of processor time, in advance: the first verdict is what people wait for
_LOOKS: Final = 20  # in a burst, which takes three seconds; starting py-spy costs as much as 25 looks
_WORKERS: Final = 1  # of them, in turn
_SHORTEST_S: Final = 0.25  # between bursts
_AGAIN_S: Final = 30.0  # after one that failed
_MOST_SITES: Final = 32

Kind = TypeVar("Kind")


class Bursts:
    """Runs one burst at a time, in a thread of its own: a burst takes three seconds."""

    def __init__(self, job: Job) -> None:
        self._probe = StackProbe(job)
        self._thread = ThreadPoolExecutor(1, "iofast-stacks")
        self._running: Future[tuple[StackFigures | None, float]] | None = None
        self._due_at = self._paid_at = time.monotonic()
        self._credit_s = _AHEAD_S
        self._turn = 0
        self._found: list[StackFigures] = []
        self._error: str | None = None
        self.succeeded = False

    @property
    def note(self) -> str | None:
        """Why there are no stacks, in a line."""
        return self._probe.note or self._error

    def start_if_due(self, workers: Sequence[int]) -> None:
        """Begin a burst, where it is time for one."""
        now = time.monotonic()
        self._collect(now)
        if self._running is None and now >= self._due_at:
            some = [workers[(self._turn + at) % len(workers)] for at in range(min(_WORKERS, len(workers)))]
            self._turn += len(some)
            self._running = self._thread.submit(self._burst, some)

    def take(self) -> StackFigures | None:
        """What the bursts said that ended since the last call."""
        self._collect(time.monotonic())
        found, self._found = self._found, []
        return together(found)

    def close(self) -> None:
        """End a burst that is under way."""
        self._probe.stop()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _burst(self, workers: Collection[int]) -> tuple[StackFigures | None, float]:
        before = _spent_s()
        try:
            figures = self._probe.burst(workers, _LOOKS)
        except (OSError, ValueError) as error:  # no descriptors or memory, or an answer of another version of py-spy
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
        self.succeeded = True
        self._found.append(figures)
        self._credit_s = min(_AHEAD_S, self._credit_s + _BUDGET * (now - self._paid_at)) - cost
        self._paid_at = now
        # at a random distance, so that bursts do not keep step with the training
        self._due_at = now + max(_SHORTEST_S, -self._credit_s / _BUDGET) * random.uniform(0.5, 1.5)


def _spent_s() -> float:
    """Processor time of the children that have ended, and of this thread."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime + time.thread_time()


def together(found: Sequence[StackFigures]) -> StackFigures | None:
    """Several bursts as one; None of none."""
    if len(found) < 2:
        return found[0] if found else None
    looks, worker_looks = sum(each.looks for each in found), sum(each.worker_looks for each in found)
    return StackFigures(
        looks=looks,
        main=_mean([(each.main, each.looks) for each in found]),
        worker_looks=worker_looks,
        workers=_mean([(each.workers, each.worker_looks) for each in found]),
        syncs=tuple(pooled([(each.syncs, each.looks) for each in found])[:_MOST_SITES]),
        waits=tuple(pooled([(each.waits, each.looks) for each in found])[:_MOST_SITES]),
        trains=any(each.trains for each in found),
        single_tensor_optimizer=any(each.single_tensor_optimizer for each in found),
        anomaly_detection=any(each.anomaly_detection for each in found),
        convolutions=any(each.convolutions for each in found),
        compiled=any(each.compiled for each in found),
    )


def _mean(parts: Sequence[tuple[dict[Kind, float], int]]) -> dict[Kind, float]:
    total = sum(looks for _, looks in parts)
    kinds = dict.fromkeys(kind for shares, _ in parts for kind in shares)
    return (
        {kind: fsum(shares.get(kind, 0.0) * looks for shares, looks in parts) / total for kind in kinds}
        if total
        else {}
    )
