"""Looks at the training thread, joined with readings of the device: the windows of an interval."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from iofast.monitor.probe.proc import Look
from iofast.monitor.probe.states import shares
from iofast.monitor.snapshot import Doing, Window

ALONE_S: Final = 0.25  # width of a window where no device can be seen
LATE_S: Final = 3.0  # a driver hands readings over in lots; looks are kept for them as long as this


class BusyReading(Protocol):
    """How busy a device was in the `seconds` that ended at `time_s` (monotonic)."""

    @property
    def time_s(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def busy(self) -> float: ...


class Loading(NamedTuple):
    """Who makes the batches, as far as it can be seen from outside."""

    processes: bool  # workers
    threads: bool  # pin thread, or a loader's threads


class _Waiting(NamedTuple):
    look: Look
    stands_for: float  # seconds
    least: bool  # waited for the loader for certain,
    most: bool  # or perhaps


class Windows:
    """Keeps the looks that no reading covers yet. Every look is in one window, within LATE_S."""

    def __init__(self) -> None:
        self._looks: list[_Waiting] = []
        self._readings: list[BusyReading] = []

    @property
    def covered_until(self) -> float:
        """The end of the newest reading; 0 before the first."""
        return self._readings[-1].time_s if self._readings else 0.0

    def add(self, looks: Sequence[Look], seconds: float, loading: Loading) -> None:
        """The looks of an interval of `seconds`."""
        for look in looks:
            least, most = waits(look, loading)
            self._looks.append(_Waiting(look, seconds / len(looks), least, most))

    def take(self, readings: Iterable[BusyReading] | None, idle: float | None, now: float) -> tuple[Window, ...]:
        """Windows of what is covered by now.

        `readings`: those since `covered_until`, or None where the device gives none; then `idle`, its share of the
        whole interval, stands in all windows.
        """
        if readings is None:
            looks, self._looks, self._readings = self._looks, [], []
            groups = groupby(looks, lambda each: each.look.time_s // ALONE_S)
            return tuple(_window(list(group), idle) for _, group in groups)
        self._readings += [
            each for each in sorted(readings, key=lambda each: each.time_s) if each.time_s > self.covered_until
        ]
        until = max(self.covered_until, now - LATE_S)
        done = [each for each in self._looks if each.look.time_s <= until]
        self._looks = [each for each in self._looks if each.look.time_s > until]
        ends = [each.time_s for each in self._readings]
        found = []
        for number, group in groupby(done, lambda each: bisect_left(ends, each.look.time_s)):
            reading = self._readings[number] if number < len(ends) else None
            looks = list(group)
            within = [each for each in looks if reading and each.look.time_s > reading.time_s - reading.seconds - 1e-3]
            beyond = looks[: len(looks) - len(within)]  # in a gap before the reading
            if beyond:
                found.append(_window(beyond, None))
            if within and reading is not None:
                found.append(_window(within, min(1.0, max(0.0, 1.0 - reading.busy))))
        oldest = self._looks[0].look.time_s if self._looks else until
        self._readings = [each for each in self._readings if each.time_s >= oldest] or self._readings[-1:]
        return tuple(found)


def waits(look: Look, loading: Loading) -> tuple[bool, bool]:
    """Whether the training thread waited for its loader: for certain, and perhaps.

    Without a loader to be seen it may load by itself, whatever it is at, but for backward: that is waited for too.
    """
    doing, backward = look.doing, look.doing is Doing.FUTEX and look.backward
    if doing is Doing.STOPPED or backward:
        return False, False
    if loading.processes or loading.threads:
        return doing is Doing.QUEUE and loading.processes, doing in (Doing.QUEUE, Doing.FUTEX) or look.blind
    return False, True


def _window(looks: list[_Waiting], idle: float | None) -> Window:
    return Window(
        seconds=sum(each.stands_for for each in looks),
        wait_low=sum(each.least for each in looks) / len(looks),
        wait_high=sum(each.most for each in looks) / len(looks),
        idle=idle,
        looks=len(looks),
        doing=shares(Counter(each.look.doing for each in looks)),
    )
