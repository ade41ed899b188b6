"""Intervals by a CUDA device's own clock. Nothing here waits for the device.

The device stamps an event when it reaches it on the consumer's stream. Events at entry and return of next() enclose the
time in which the stream had no work because the batch was late. While the device has work queued, both are stamped
together, however long the host waited. A third event, when the batch is ready but not copied, splits off the transfer.
Events are read some steps later, when the device has passed them, and used again.
"""

import threading
from collections import deque
from typing import Any, Final, NamedTuple

from iofast.meter.counters import StageCounter

MAX_PENDING: Final = 256  # intervals not yet read; CUDA lets the host run about a thousand launches ahead
_SPARE: Final = 512  # events kept for reuse
RECENT: Final = 1024  # steps in a median


class _Interval(NamedTuple):
    """Two events with a name: a phase. Without a name: a step, whose `start` ended the step before it."""

    start: Any
    end: Any
    name: str | None = None
    waiting: Any = None
    arrived: Any = None


class DeviceTimes:
    """Sums of one device's times for one loader. `cuda` is torch.cuda, or a model of it in tests.

    `copies` is the loader's transfer counter: its wait is the part of the transfer that delayed training.
    """

    def __init__(self, name: str, cuda: Any, copies: StageCounter | None = None) -> None:
        self.name = name
        self._copies = copies
        self.steps = self.step_ns = self.stall_ns = self.transfer_ns = self.transfers = 0
        self.recent: deque[int] = deque(maxlen=RECENT)
        self.phases: dict[str, tuple[int, int]] = {}  # by name: number of measured phases, nanoseconds
        self._cuda = cuda
        self._spare: deque[Any] = deque(maxlen=_SPARE)
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
            try:
                event = self._spare.pop()
            except IndexError:
                event = self._cuda.Event(enable_timing=True)
            event.record(self._cuda.current_stream(self.name))
        except RuntimeError:
            self._broken = True  # training's next CUDA call raises the same error
            return None
        return event

    def phase(self, name: str, start: Any, end: Any) -> None:
        """Queue a phase to be read."""
        self._pending.append(_Interval(start, end, name))

    def step(self, before: Any, waiting: Any, arrived: Any | None, got: Any) -> None:
        """Queue a step to be read; `got` may be the `before` of the next one."""
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

    def forget(self, event: Any | None) -> None:
        """Use `event` again, which belongs to no interval."""
        if event is not None:
            self._spare.append(event)

    def _read(self, interval: _Interval) -> None:
        length = _between(interval.start, interval.end)
        if interval.name is not None:
            count, total = self.phases.get(interval.name, (0, 0))
            self.phases[interval.name] = count + 1, total + length
            self.forget(interval.end)  # the end of a step is the start of the next one
        else:
            self.steps += 1
            self.step_ns += length
            self.stall_ns += min(length, _between(interval.waiting, interval.end))
            self.recent.append(length)
        if interval.arrived is not None:
            exposed = _between(interval.arrived, interval.end)
            self.transfers += 1
            self.transfer_ns += exposed
            if self._copies is not None:
                self._copies.add(0, wait_ns=exposed)
        for event in (interval.start, interval.waiting, interval.arrived):
            self.forget(event)


class Marks:
    """The events of one pass over a loader: `waiting`, perhaps `arrived`, and `got` for each batch, or `left`."""

    def __init__(self, times: DeviceTimes) -> None:
        self._times = times
        self._before: Any | None = None
        self._waiting: Any | None = None
        self._arrived: Any | None = None

    def waiting(self) -> None:
        """Mark the entry of next()."""
        if self._before is not None:  # the first batch of an epoch ends no step
            self._waiting = self._times.mark()

    def arrived(self) -> None:
        """Mark that the batch is ready and its copy is not."""
        if self._waiting is not None:
            self._arrived = self._times.mark()

    def got(self) -> None:
        """Mark the return of next()."""
        got, times = self._times.mark(), self._times
        before, waiting, arrived = self._before, self._waiting, self._arrived
        self._before, self._waiting, self._arrived = got, None, None
        if before is not None and waiting is not None and got is not None:
            times.step(before, waiting, arrived, got)
        else:
            times.forget(waiting)
            times.forget(arrived)
        times.collect()

    def left(self) -> None:
        """End the pass at its end or an error; the last events end no step."""
        self._times.forget(self._waiting)
        self._times.forget(self._arrived)
        # `before` is not forgotten: it may be the end of a step that is not read yet
        self._before = self._waiting = self._arrived = None


def _between(start: Any, end: Any) -> int:
    """Return nanoseconds, at least 0: rounding may make the time between adjacent events negative."""
    return max(0, round(1e6 * float(start.elapsed_time(end))))
