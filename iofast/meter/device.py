"""Intervals on a CUDA device's own clock. Nothing here ever waits for the device.

An event recorded on the consumer's stream is stamped when the device reaches it. One at the entry of next() and one at
its return enclose the time in which the stream had nothing to do because the batch was late: where the device still has
work queued, both are stamped one right after the other, however long the host has waited. A third between them, when
the batch is there and its copy is not, splits off the transfer. The events are read a few steps later, when the device
has passed them, and used again.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final, NamedTuple

from iofast.meter.counters import StageCounter

MAX_PENDING: Final = 256  # intervals not yet read; CUDA itself lets the host run about a thousand launches ahead
_SPARE: Final = 512  # events kept for another use
RECENT: Final = 1024  # steps that a median looks at


class _Step(NamedTuple):
    """Events of a step; `before` ended the step before it, `arrived` may be missing."""

    before: Any
    waiting: Any
    arrived: Any | None
    got: Any


class _Phase(NamedTuple):
    name: str
    start: Any
    end: Any


class DeviceTimes:
    """Sums of what one device's clock says about one loader. `cuda` is torch.cuda, or in tests a model of it.

    `copies` is the loader's own counter of its transfer: what is waited there is what was exposed of it.
    """

    def __init__(self, name: str, cuda: Any, copies: StageCounter | None = None) -> None:
        self.name = name
        self._copies = copies
        self.steps = self.step_ns = self.stall_ns = self.transfer_ns = self.transfers = 0
        self.recent: deque[int] = deque(maxlen=RECENT)
        self.phases: dict[str, tuple[int, int]] = {}  # name: how many were measured, nanoseconds
        self._cuda = cuda
        self._spare: deque[Any] = deque(maxlen=_SPARE)
        self._pending: deque[_Step | _Phase] = deque()
        self._reading = threading.Lock()  # never waited for: who finds it taken leaves the reading to its holder
        self._broken = False

    def mark(self) -> Any | None:
        """An event on the current stream; None where none can be recorded now."""
        if self._broken or len(self._pending) >= MAX_PENDING:
            return None
        try:
            if self._cuda.is_current_stream_capturing():
                return None  # it would become a part of the graph
            try:
                event = self._spare.pop()
            except IndexError:
                event = self._cuda.Event(enable_timing=True)
            event.record(self._cuda.current_stream(self.name))
        except RuntimeError:
            self._broken = True  # training's next call meets the same error, and it is training's to raise
            return None
        return event

    def phase(self, name: str, start: Any, end: Any) -> None:
        """An interval to be read later."""
        self._pending.append(_Phase(name, start, end))

    def step(self, before: Any, waiting: Any, arrived: Any | None, got: Any) -> None:
        """A step to be read later; `got` may be the `before` of the next one."""
        self._pending.append(_Step(before, waiting, arrived, got))

    def collect(self) -> None:
        """Read the intervals that the device has passed."""
        if self._broken or not self._pending or not self._reading.acquire(blocking=False):
            return
        try:
            # a query while a graph is being captured would end the capture
            while self._pending and not self._cuda.is_current_stream_capturing() and self._passed(self._pending[0]):
                interval = self._pending.popleft()
                if isinstance(interval, _Step):
                    self._read_step(interval)
                else:
                    self._read_phase(interval)
        except RuntimeError:
            self._broken = True
        finally:
            self._reading.release()

    def forget(self, event: Any | None) -> None:
        """Use `event` again: no interval will be read from it."""
        if event is not None:
            self._spare.append(event)

    def _passed(self, interval: _Step | _Phase) -> bool:
        if isinstance(interval, _Step):  # `before` may have been recorded on another stream
            return bool(interval.got.query() and interval.before.query())
        return bool(interval.end.query() and interval.start.query())

    def _read_step(self, step: _Step) -> None:
        stall, length = _between(step.waiting, step.got), _between(step.before, step.got)
        self.steps += 1
        self.step_ns += length
        self.stall_ns += min(stall, length)
        if step.arrived is not None:
            exposed = _between(step.arrived, step.got)
            self.transfers += 1
            self.transfer_ns += exposed
            if self._copies is not None:
                self._copies.add(0, wait_ns=exposed)
        self.recent.append(length)
        self._spare.extend(event for event in (step.before, step.waiting, step.arrived) if event is not None)

    def _read_phase(self, phase: _Phase) -> None:
        count, total = self.phases.get(phase.name, (0, 0))
        self.phases[phase.name] = count + 1, total + _between(phase.start, phase.end)
        self._spare.extend((phase.start, phase.end))


class Marks:
    """The events of one pass over a loader: `waiting`, perhaps `arrived`, and `got` for each batch, or `left`."""

    def __init__(self, times: DeviceTimes) -> None:
        self._times = times
        self._before: Any | None = None
        self._waiting: Any | None = None
        self._arrived: Any | None = None

    def waiting(self) -> None:
        """At the entry of next()."""
        if self._before is not None:  # the first batch of an epoch ends no step
            self._waiting = self._times.mark()

    def arrived(self) -> None:
        """Between: the batch is there, and its copy is being waited for."""
        if self._waiting is not None:
            self._arrived = self._times.mark()

    def got(self) -> None:
        """At the return of next()."""
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
        """The epoch has ended, or next() has raised: what was recorded last ends no step."""
        self._times.forget(self._waiting)
        self._times.forget(self._arrived)
        # `before` is not used again: it may be the end of a step that is still to be read
        self._before = self._waiting = self._arrived = None


def _between(start: Any, end: Any) -> int:
    """Nanoseconds; two events with nothing between them may differ by a negative rounding error."""
    return max(0, round(1e6 * float(start.elapsed_time(end))))
