"""Intervals by a CUDA device's own clock. Nothing here waits for the device.

The device stamps an event when it reaches it on the consumer's stream. Events at entry and return of next() enclose the
time in which the stream had no work because the batch was late. While the device has work queued, both are stamped
together, however long the host waited. A third event, when the batch is ready but not copied, splits off the transfer.
Events are read some steps later, when the device has passed them.
"""

import threading
from collections import deque
from typing import Any, Final, NamedTuple

from iofast.meter.counters import Cells, StageCounter

MAX_PENDING: Final = 256  # intervals not yet read; CUDA lets the host run about a thousand launches ahead
RECENT: Final = 1024  # steps in a median


class _Interval(NamedTuple):
    """Two events with sums: a phase. Without: a step, whose `start` ended the step before it."""

    start: Any
    end: Any
    phase: Cells | None = None
    waiting: Any = None
    arrived: Any = None


class DeviceTimes:
    """Sums of one device's times for one loader. `cuda` is torch.cuda, or a model of it in tests.

    `copies` is the loader's transfer counter: its wait is the part of the transfer that delayed training.
    """

    def __init__(self, name: str, cuda: Any, copies: StageCounter | None = None) -> None:
        self.name = name
        self._copies = copies
        self.steps = self.step_ns = self.stall_ns = 0
        self.recent: deque[int] = deque(maxlen=RECENT)
        self._cuda = cuda
        self._pending: deque[_Interval] = deque()
        self._reading = threading.Lock()  # tried, never waited for: one reader at a time is enough
        self._broken = False

    def mark(self) -> Any | None:
        """Record an event on the current stream; None if none can be recorded now."""
        if self._broken or len(self._pending) >= MAX_PENDING:
            return None
        try:
            if self._cuda.is_current_stream_capturing():
                return None  # the event would become a part of the graph
            event = self._cuda.Event(enable_timing=True)
            event.record(self._cuda.current_stream(self.name))
        except RuntimeError:
            self._broken = True  # training's next CUDA call raises the same error
            return None
        return event

    def phase(self, sums: Cells, start: Any | None, end: Any | None) -> None:
        """Queue a phase to be read, unless an event is missing. `sums` are the fields of PhaseTotals."""
        if start is not None and end is not None:
            self._pending.append(_Interval(start, end, sums))

    def step(self, before: Any | None, waiting: Any | None, arrived: Any | None, got: Any | None) -> None:
        """Queue a step to be read, unless an event is missing; `got` may be the `before` of the next one."""
        if before is not None and waiting is not None and got is not None:
            self._pending.append(_Interval(before, got, None, waiting, arrived))

    def collect(self) -> None:
        """Read the intervals that the device has passed."""
        if self._broken or not self._pending or not self._reading.acquire(blocking=False):
            return
        try:
            # during a capture a query would end the capture
            while self._pending and not self._cuda.is_current_stream_capturing():
                interval = self._pending[0]
                if not (interval.end.query() and interval.start.query()):  # they may be on different streams
                    return
                self._pending.popleft()
                self._read(interval)
        except RuntimeError:
            self._broken = True
        finally:
            self._reading.release()

    def _read(self, interval: _Interval) -> None:
        length = _between(interval.start, interval.end)
        if interval.phase is not None:
            row = interval.phase.mine()
            row[1] += 1
            row[2] += length
            return
        self.steps += 1
        self.step_ns += length
        self.stall_ns += min(length, _between(interval.waiting, interval.end))
        self.recent.append(length)
        if interval.arrived is not None and self._copies is not None:
            self._copies.add(0, wait_ns=_between(interval.arrived, interval.end))


def _between(start: Any, end: Any) -> int:
    """Return nanoseconds, at least 0: rounding may make the time between adjacent events negative."""
    return max(0, round(1e6 * float(start.elapsed_time(end))))
