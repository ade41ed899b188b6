"""Phases of a step on the telemetry page."""

from __future__ import annotations

from collections.abc import Callable

from stall_loaders import Time, timed

from iofast.meter import LoaderInfo, LoaderReport, PhaseTotals, Slot, StallClock, Totals, pages

TOTALS = {"forward": PhaseTotals(7, 6, 600), "backward": PhaseTotals(5, 4, 300)}

Reported = Callable[[], LoaderReport]


def test_phases_disappear_with_their_loader(reported: Reported) -> None:
    slot = Slot(LoaderInfo("train"))
    slot.write(Totals(), None, TOTALS, on_device=True)
    assert (reported().phases, reported().phases_on_device) == (TOTALS, True)
    slot.close()
    Slot(LoaderInfo("another")).write(Totals())
    assert reported().phases == {}


def test_phases_of_a_meter(time: Time, own_page: object) -> None:
    meter, plain = timed(time, [10] * 5), timed(time, [10] * 5)
    for _ in meter:
        with meter.step("forward"):
            time.go(30)
        with meter.step("\x1b[2Jback\nward"):
            time.go(20)
    list(plain)
    ((with_phases, without),) = (page.loaders for page in pages())
    expected = {"forward": PhaseTotals(5, 5, 150_000_000), "[2Jbackward": PhaseTotals(5, 5, 100_000_000)}
    assert (with_phases.phases, with_phases.phases_on_device, without.phases) == (expected, False, {})


def test_any_name_of_a_phase_is_published(reported: Reported) -> None:
    clock = StallClock(LoaderInfo("train"))
    for name in (3, ""):
        with clock.step(name):  # type: ignore[arg-type] # any name that works without a page works with one
            pass
    clock.publish(0, 1, clock.now())
    assert list(reported().phases) == ["3", "?"]
