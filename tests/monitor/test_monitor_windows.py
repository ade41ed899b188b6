"""Windows: looks joined with readings of a device."""

from __future__ import annotations

import pytest

from iofast.monitor.look_windows import Windows
from iofast.monitor.probe.nvml import Reading
from iofast.monitor.probe.proc import ThreadSample
from iofast.monitor.snapshot import Doing, Window


def looks(*times: float, doing: Doing = Doing.QUEUE) -> list[ThreadSample]:
    return [ThreadSample(each, doing) for each in times]


def test_a_window_for_each_reading() -> None:
    windows = Windows()
    windows.add([*looks(0.1, 0.3), *looks(0.6, 0.9, doing=Doing.RUNNING)], 1.0)
    assert windows.take([Reading(1.0, 0.5, 0.9), Reading(0.5, 0.5, 0.2)], None, 1.0) == (
        Window(0.5, pytest.approx(0.8), 2, {Doing.QUEUE: 1.0}),
        Window(0.5, pytest.approx(0.1), 2, {Doing.RUNNING: 1.0}),
    )


def test_looks_wait_for_their_reading() -> None:
    windows = Windows()
    windows.add(looks(0.1, 0.8), 1.0)
    assert [each.idle for each in windows.take([Reading(0.5, 0.5, 0.0)], None, 1.0)] == [1.0]
    windows.add(looks(1.2), 1.0)
    found = windows.take([Reading(1.0, 0.5, 1.0), Reading(1.5, 0.5, 0.5)], None, 2.0)
    assert [(each.seconds, each.idle) for each in found] == [(0.5, 0.0), (1.0, 0.5)]


def test_readings_that_do_not_come_and_gaps_between_them() -> None:
    windows = Windows()
    windows.add(looks(0.1, 0.45, 0.9), 1.0)
    found = windows.take([Reading(0.2, 0.2, 1.0), Reading(1.0, 0.2, 0.0)], None, 1.0)
    assert [(each.idle, each.looks) for each in found] == [(0.0, 1), (None, 1), (1.0, 1)]
    windows.add(looks(1.5), 1.0)
    assert windows.take([], None, 2.0) == ()
    assert [each.idle for each in windows.take([], None, 9.0)] == [None]


def test_without_readings_the_interval_has_one_share() -> None:
    windows = Windows()
    windows.add(looks(0.01, 0.1, 0.3, 0.6), 1.0)
    found = windows.take(None, 0.4, 1.0)
    assert [(each.idle, each.looks) for each in found] == [(0.4, 2), (0.4, 1), (0.4, 1)]
    assert sum(each.seconds for each in found) == pytest.approx(1.0)


def test_seconds_of_windows_add_up_for_long() -> None:
    windows, total = Windows(), 0.0
    for second in range(600):
        windows.add(looks(*(second + at / 20 for at in range(20))), 1.0)
        readings = [Reading(second + at / 6 - 0.1, 1 / 6, 0.5) for at in range(1, 7)]
        total += sum(each.seconds for each in windows.take(readings, None, second + 1.0))
    assert total == pytest.approx(600, abs=1)
    assert len(windows._looks) < 20
    assert len(windows._readings) < 20
