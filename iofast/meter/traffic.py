"""Traffic with object stores: what this process has asked for, how long answers took, and what its cache saved."""

from __future__ import annotations

import math
import operator
from collections import deque
from dataclasses import dataclass

from iofast.meter.counters import Cells

_RECENT = 1024  # answers whose times are kept


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
        slower = max(self, other, key=lambda each: each.p99_s or 0.0)
        gets, nbytes, retries, read = map(operator.add, self.counts, other.counts)
        return TrafficStats(gets, nbytes, retries, read, slower.median_s, slower.p99_s)

    def since(self, before: TrafficStats) -> TrafficStats:
        """What came after `before`, with the times of now."""
        gets, nbytes, retries, read = (max(0, now - then) for now, then in zip(self.counts, before.counts, strict=True))
        return TrafficStats(gets, nbytes, retries, read, self.median_s, self.p99_s)

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


class Traffic:
    """Counts the requests of a process. Only the thread that waits for them may count answers."""

    def __init__(self) -> None:
        self.retries = 0
        self._gets = self._bytes = 0
        self._times: deque[float] = deque(maxlen=_RECENT)  # seconds
        self._read = Cells(1)

    def answered(self, nbytes: int, seconds: float) -> None:
        """Count an answer."""
        self._gets += 1
        self._bytes += nbytes
        self._times.append(seconds)

    def was_read(self, nbytes: int) -> None:
        """Count bytes of objects that any thread has read."""
        self._read.mine()[0] += nbytes

    def stats(self) -> TrafficStats | None:
        """The sums so far; None if no object was read and no request was sent."""
        read, times = self._read.sums()[0], sorted(self._times.copy())
        if not (read or self._gets or self.retries):
            return None
        # the times that so many of all do not exceed
        median, late = (times[max(0, math.ceil(share * len(times)) - 1)] if times else None for share in (0.5, 0.99))
        return TrafficStats(self._gets, self._bytes, self.retries, read, median, late)


traffic = Traffic()  # of this process
