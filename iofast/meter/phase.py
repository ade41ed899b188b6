"""The named phases of a step, by the host's clock and by a device's: context managers of `meter.step`."""

from collections.abc import Callable
from typing import Any, Self

from iofast.meter.counters import Cells
from iofast.meter.device import DeviceTimes
from iofast.meter.page import PhaseTotals


class HostPhase:
    """A phase by the host's clock. One object serves all threads and nested uses of its name.

    The sum of all spans does not depend on which start belongs to which end.
    """

    __slots__ = ("_now", "_started", "_sums", "name")

    def __init__(self, name: str, now: Callable[[], int]) -> None:
        self.name, self._now = name, now
        self._started: list[int] = []
        self._sums = Cells(len(PhaseTotals._fields))

    def __enter__(self) -> Self:
        self._started.append(self._now())
        return self

    def __exit__(self, *error: object) -> None:
        row, start = self._sums.mine(), self._started.pop()  # first: another thread's start is no later than now
        row[0] += 1
        row[1] += 1
        row[2] += self._now() - start

    def entered(self) -> None:
        """Count an entry without a time."""
        self._sums.mine()[0] += 1

    def totals(self) -> PhaseTotals:
        """Return the totals of all threads; they never fall."""
        return PhaseTotals(*self._sums.sums())


class DevicePhase:
    """A phase by a device's clock, between two events on the consumer's stream; for one use."""

    __slots__ = ("_phase", "_start", "_times")

    def __init__(self, phase: HostPhase, times: DeviceTimes) -> None:
        self._phase, self._times = phase, times
        self._start: Any = None

    def __enter__(self) -> Self:
        self._start = self._times.mark()
        return self

    def __exit__(self, *error: object) -> None:
        self._phase.entered()
        start = self._start
        if start is not None and (end := self._times.mark()) is not None:
            self._times.phase(self._phase.name, start, end)
        else:
            self._times.forget(start)
