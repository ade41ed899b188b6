"""Looks at the training thread, joined with readings of the device: the windows of an interval."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from iofast.monitor.probe.nvml import Reading
from iofast.monitor.probe.proc import ThreadSample
from iofast.monitor.probe.states import shares
from iofast.monitor.snapshot import Window

ALONE_S: Final = 0.25  # width of a window where no device can be seen
LATE_S: Final = 3.0  # a driver hands readings over in lots; looks wait for them as long as this


class _Weighed(NamedTuple):
    look: ThreadSample
    stands_for: float  # seconds


class Windows:
    """Keeps the looks that no reading covers yet. Each look goes into one window, within LATE_S."""

    def __init__(self) -> None:
        self._looks: list[_Weighed] = []
        self._readings: list[Reading] = []

    @property
    def covered_until(self) -> float:
        """The end of the newest reading; 0 before the first."""
        return self._readings[-1].time_s if self._readings else 0.0

    def add(self, looks: Sequence[ThreadSample], seconds: float) -> None:
        """Add the looks of an interval of `seconds`."""
        self._looks += [_Weighed(look, seconds / len(looks)) for look in looks]

    def take(self, readings: Iterable[Reading] | None, idle: float | None, now: float) -> tuple[Window, ...]:
        """Return the windows that are complete by now.

        `readings`: those since `covered_until`. None where the device has none; then all windows get `idle`, its share
        of the whole interval.
        """
        if readings is None:
            looks, self._looks, self._readings = self._looks, [], []
            groups = groupby(looks, lambda each: each.look.time_s // ALONE_S)
            return tuple(_window(list(group), idle) for _, group in groups)
        fresh = sorted(readings, key=lambda each: each.time_s)
        self._readings += [each for each in fresh if each.time_s > self.covered_until]
        until = max(self.covered_until, now - LATE_S)
        done = [each for each in self._looks if each.look.time_s <= until]
        self._looks = [each for each in self._looks if each.look.time_s > until]
        ends = [each.time_s for each in self._readings]

        def place(each: _Weighed) -> tuple[int, bool]:
            """The first reading that ends after a look, and whether it covers the look or leaves a gap."""
            number, at = bisect_left(ends, each.look.time_s), each.look.time_s
            return number, number < len(ends) and at > ends[number] - self._readings[number].seconds - 1e-3

        windows = []
        for (number, covered), group in groupby(done, place):
            share = min(1.0, max(0.0, 1.0 - self._readings[number].busy)) if covered else None
            windows.append(_window(list(group), share))
        oldest = self._looks[0].look.time_s if self._looks else until
        self._readings = [each for each in self._readings if each.time_s >= oldest] or self._readings[-1:]
        return tuple(windows)


def _window(looks: list[_Weighed], idle: float | None) -> Window:
    return Window(
        seconds=sum(each.stands_for for each in looks),
        idle=idle,
        looks=len(looks),
        doing=shares(Counter(each.look.doing for each in looks)),
    )
