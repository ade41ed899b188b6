"""Phases of a step on the telemetry page."""

from __future__ import annotations

from collections.abc import Callable

from iofast.meter import LoaderInfo, LoaderReport, PhaseTotals, Slot, StallClock, Totals

TOTALS = {"forward": PhaseTotals(7, 6, 600), "backward": PhaseTotals(5, 4, 300)}

Reported = Callable[[], LoaderReport]


def test_phases_disappear_with_their_loader(reported: Reported) -> None:
    slot = Slot(LoaderInfo("train"))
    slot.write(Totals(), None, TOTALS, on_device=True)
    assert (reported().phases, reported().phases_on_device) == (TOTALS, True)
    slot.close()
    Slot(LoaderInfo("another")).write(Totals())
    assert reported().phases == {}


def test_any_name_of_a_phase_is_published(reported: Reported) -> None:
    clock = StallClock(LoaderInfo("train"))
    for name in (3, ""):
        with clock.step(name):  # type: ignore[arg-type] # any name that works without a page works with one
            pass
    clock.publish(0, 1, clock.now())
    assert list(reported().phases) == ["3", "?"]
