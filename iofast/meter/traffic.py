"""Traffic with object stores: what this process has asked for, how long answers took, and what its cache saved."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from iofast.meter.counters import Cells

_RECENT = 1024  # answers whose times are kept
_EACH = 64  # answers between two looks at these times: to sort them takes 100 µs


@dataclass(frozen=True)
class TrafficStats:
    """The requests of a process to object stores so far.

    gets, bytes    answers with bytes of objects
    retries        requests that were repeated after a failure
    read           bytes of objects that were read, out of the cache or not
    median_s, p99_s  seconds from request to answer, of the last 1024; None before the first ones
    """

    gets: int = 0
    bytes: int = 0
    retries: int = 0
    read: int = 0
    median_s: float | None = None
    p99_s: float | None = None

    def plus(self, other: TrafficStats) -> TrafficStats:
        """Both together, with the longer times."""
        counts = map(operator.add, self.counts, other.counts)
        return _stats(counts, _longer(self.median_s, other.median_s), _longer(self.p99_s, other.p99_s))

    def since(self, before: TrafficStats) -> TrafficStats:
        """What came after `before`, with the times of now."""
        counts = (max(0, now - then) for now, then in zip(self.counts, before.counts, strict=True))
        return _stats(counts, self.median_s, self.p99_s)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """All but the times."""
        return self.gets, self.bytes, self.retries, self.read

    @property
    def hit_rate(self) -> float | None:
        """The share of the bytes read, 0 to 1, that this process did not have to ask for."""
        return max(0.0, 1.0 - self.bytes / self.read) if self.read else None

    def __str__(self) -> str:
        parts = [f"{self.gets:,} requests for {self.bytes / 1e6:,.0f} MB"]
        if self.median_s is not None and self.p99_s is not None:
            parts.append(f"{1e3 * self.median_s:.0f} ms (99 %: {1e3 * self.p99_s:.0f} ms)")
        if self.hit_rate is not None:
            parts.append(f"{self.hit_rate:.0%} from the cache")
        if self.retries:
            parts.append(f"{self.retries:,} repeated")
        return ", ".join(parts)


def _stats(counts: Iterable[int], median_s: float | None, p99_s: float | None) -> TrafficStats:
    gets, nbytes, retries, read = counts
    return TrafficStats(gets, nbytes, retries, read, median_s, p99_s)


def _longer(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)


class AnswerTimes:
    """The times of recent answers, in seconds. For one thread, and any readers."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._sorted: list[float] = []
        self._new = 0

    def add(self, seconds: float) -> None:
        """Add the newest answer."""
        self._times.append(seconds)
        self._new += 1
        if self._new >= _EACH or len(self._times) <= _EACH:
            self._sorted, self._new = sorted(self._times), 0

    def quantile(self, share: float) -> float | None:
        """The time that `share` of the answers do not exceed; None before the first one."""
        times = self._sorted
        return times[max(0, math.ceil(share * len(times)) - 1)] if times else None


class Traffic:
    """Counts the requests of a process. Only the thread that waits for them may count answers."""

    def __init__(self) -> None:
        self.retries = 0
        self._gets = self._bytes = 0
        self._times = AnswerTimes()
        self._read = Cells(1)

    def answered(self, nbytes: int, seconds: float) -> None:
        """Count an answer."""
        self._gets += 1
        self._bytes += nbytes
        self._times.add(seconds)

    def was_read(self, nbytes: int) -> None:
        """Count bytes of objects that any thread has read."""
        self._read.mine()[0] += nbytes

    def stats(self) -> TrafficStats | None:
        """The sums so far; None if no object was read and no request was sent."""
        read, times = self._read.sums()[0], self._times
        if not (read or self._gets or self.retries):
            return None
        seconds = times.quantile(0.5), times.quantile(0.99)
        return TrafficStats(self._gets, self._bytes, self.retries, read, *seconds)


traffic = Traffic()  # of this process
