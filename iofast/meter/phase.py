"""The parts of a step that have a name, by the host's clock and by a device's: context managers of `meter.step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Self

from iofast.meter.counters import Cells
from iofast.meter.device import DeviceTimes
from iofast.meter.page import PhaseTotals

UNADDED: Final = 1024  # times that are kept as they are: a training that no page is written for asks for no sums


class HostPhase:
    """A phase by the host's clock: one object for all of its name, however often it is open and in which threads.

    A sum needs no pairs: whichever of the starts a leaving thread takes, all together they add up to the same. So
    entering and leaving keep a number each, and nobody's row is looked for: after a step's work has emptied the
    caches, each call of Python takes 1 to 2 us. What was spent is added up when somebody asks.
    """

    __slots__ = ("_now", "_spent", "_started", "_sums", "name")

    def __init__(self, name: str, now: Callable[[], int]) -> None:
        self.name, self._now = name, now
        self._started: list[int] = []
        self._spent: list[int] = []
        self._sums = Cells(len(PhaseTotals._fields))

    def __enter__(self) -> Self:
        self._started.append(self._now())
        return self

    def __exit__(self, *error: object) -> None:
        self._spent.append(-self._started.pop() + self._now())  # in this order: another thread's start is no later
        if len(self._spent) > UNADDED:
            self._add()

    def entered(self) -> None:
        """Count one that somebody else has timed."""
        self._sums.mine()[0] += 1

    def totals(self) -> PhaseTotals:
        """What all threads have spent; never falls."""
        self._add()
        return PhaseTotals(*self._sums.sums())

    def _add(self) -> None:
        row = self._sums.mine()
        while self._spent:
            try:
                spent = self._spent.pop()
            except IndexError:  # another thread adds them up as well
                return
            row[0] += 1
            row[1] += 1
            row[2] += spent


class DevicePhase:
    """A phase by the clock of a device, between two events in the consumer's stream; for one use."""

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
