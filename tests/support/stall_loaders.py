"""Loaders whose batches take chosen times on a simulated clock."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from iofast.meter import Meter, watch

MS = 1_000_000


class Time:
    """A clock that only `go` moves."""

    def __init__(self) -> None:
        self.ns = 5_000 * MS

    def __call__(self) -> int:
        return self.ns

    def go(self, ms: float) -> None:
        self.ns += round(ms * MS)


class TimedLoader:
    """Batches of 8 rows, each after its own wait."""

    batch_size, num_workers, prefetch_factor = 8, 2, 3

    def __init__(self, time: Time, waits_ms: list[float], start_ms: float = 0.0) -> None:
        self.time, self.waits_ms, self.start_ms = time, waits_ms, start_ms

    def __len__(self) -> int:
        return len(self.waits_ms)

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        self.time.go(self.start_ms)
        return self._batches()

    def _batches(self) -> Iterator[np.ndarray[Any, Any]]:
        for wait in self.waits_ms:
            self.time.go(wait)
            yield np.zeros((8, 2))


def timed(time: Time, waits_ms: list[float], start_ms: float = 0.0) -> Meter[Any]:
    """A meter on the test's clock."""
    meter = watch(TimedLoader(time, waits_ms, start_ms))
    meter.clock.now = time
    return meter
