"""What counts as waiting, and looks joined with readings of a device."""

from __future__ import annotations

import pytest

from iofast.monitor.look_windows import Loading, Windows, waits
from iofast.monitor.probe.nvml import Reading
from iofast.monitor.probe.proc import Look
from iofast.monitor.snapshot import Doing, Window

PROCESSES, THREADS, NEITHER = Loading(True, False), Loading(False, True), Loading(False, False)


# --- what counts as waiting


@pytest.mark.parametrize(
    ("look", "loading", "bounds"),
    [
        (Look(0, Doing.QUEUE), PROCESSES, (True, True)),
        (Look(0, Doing.QUEUE), THREADS, (False, True)),
        (Look(0, Doing.FUTEX), PROCESSES, (False, True)),
        (Look(0, Doing.FUTEX), THREADS, (False, True)),
        (Look(0, Doing.FUTEX, backward=True), PROCESSES, (False, False)),
        (Look(0, Doing.RUNNING), PROCESSES, (False, False)),
        (Look(0, Doing.ASLEEP), PROCESSES, (False, False)),
        (Look(0, Doing.ASLEEP, blind=True), PROCESSES, (False, True)),
        (Look(0, Doing.STOPPED), PROCESSES, (False, False)),
        (Look(0, Doing.RUNNING), NEITHER, (False, True)),
        (Look(0, Doing.DISK), NEITHER, (False, True)),
        (Look(0, Doing.QUEUE), NEITHER, (False, True)),
        (Look(0, Doing.FUTEX), NEITHER, (False, True)),
        (Look(0, Doing.STOPPED), NEITHER, (False, False)),
    ],
)
def test_bounds_of_waiting(look: Look, loading: Loading, bounds: tuple[bool, bool]) -> None:
    assert waits(look, loading) == bounds


# --- windows


def looks(*times: float, doing: Doing = Doing.QUEUE) -> list[Look]:
    return [Look(each, doing) for each in times]


def test_a_window_for_each_reading() -> None:
    windows = Windows()
    windows.add([*looks(0.1, 0.3), *looks(0.6, 0.9, doing=Doing.RUNNING)], 1.0, PROCESSES)
    assert windows.take([Reading(1.0, 0.5, 0.9), Reading(0.5, 0.5, 0.2)], None, 1.0) == (
        Window(0.5, 1.0, 1.0, pytest.approx(0.8), 2, {Doing.QUEUE: 1.0}),
        Window(0.5, 0.0, 0.0, pytest.approx(0.1), 2, {Doing.RUNNING: 1.0}),
    )


def test_looks_wait_for_their_reading() -> None:
    windows = Windows()
    windows.add(looks(0.1, 0.8), 1.0, PROCESSES)
    assert [each.idle for each in windows.take([Reading(0.5, 0.5, 0.0)], None, 1.0)] == [1.0]
    windows.add(looks(1.2), 1.0, PROCESSES)
    found = windows.take([Reading(1.0, 0.5, 1.0), Reading(1.5, 0.5, 0.5)], None, 2.0)
    assert [(each.seconds, each.idle) for each in found] == [(0.5, 0.0), (1.0, 0.5)]


def test_readings_that_do_not_come_and_gaps_between_them() -> None:
    windows = Windows()
    windows.add(looks(0.1, 0.45, 0.9), 1.0, PROCESSES)
    found = windows.take([Reading(0.2, 0.2, 1.0), Reading(1.0, 0.2, 0.0)], None, 1.0)
    assert [(each.idle, each.looks) for each in found] == [(0.0, 1), (None, 1), (1.0, 1)]
    windows.add(looks(1.5), 1.0, PROCESSES)
    assert windows.take([], None, 2.0) == ()
    assert [each.idle for each in windows.take([], None, 9.0)] == [None]


def test_without_readings_the_interval_has_one_share() -> None:
    windows = Windows()
    windows.add(looks(0.01, 0.1, 0.3, 0.6), 1.0, PROCESSES)
    found = windows.take(None, 0.4, 1.0)
    assert [(each.idle, each.looks) for each in found] == [(0.4, 2), (0.4, 1), (0.4, 1)]
    assert sum(each.seconds for each in found) == pytest.approx(1.0)


def test_seconds_of_windows_add_up_for_long() -> None:
    windows, total = Windows(), 0.0
    for second in range(600):
        windows.add(looks(*(second + at / 20 for at in range(20))), 1.0, PROCESSES)
        readings = [Reading(second + at / 6 - 0.1, 1 / 6, 0.5) for at in range(1, 7)]
        total += sum(each.seconds for each in windows.take(readings, None, second + 1.0))
    assert total == pytest.approx(600, abs=1)
    assert len(windows._looks) < 20
    assert len(windows._readings) < 20
