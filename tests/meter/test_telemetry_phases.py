"""Phases of a step in the page."""

from __future__ import annotations

import pytest
from stall_loaders import Time, timed

from iofast import meter as telemetry
from iofast.meter import LoaderInfo, LoaderReport, PhaseTotals, Slot, StallClock, Totals
from iofast.meter.page import MAX_PHASES

FIGURES = Totals(3, 7, 448, 6, 60_000, 5_000, 4_000, 300, 20_000, 123_456)
TOTALS = [("forward", PhaseTotals(7, 6, 600)), ("backward", PhaseTotals(5, 4, 300))]


pytestmark = pytest.mark.usefixtures("own_page")


def only_loader() -> LoaderReport:
    (page,) = telemetry.pages()
    (loader,) = page.loaders
    return loader


def test_a_page_tells_phases_and_forgets_them_with_their_loader() -> None:
    slot = Slot(LoaderInfo("train"))
    slot.write(FIGURES, None, TOTALS, on_device=True)
    loader = only_loader()
    assert (loader.phases, loader.phases_on_device, loader.figures) == (dict(TOTALS), True, FIGURES)
    slot.close()
    Slot(LoaderInfo("another")).write(FIGURES)
    assert only_loader().phases == {}


# --- what a clock tells


def test_a_meter_tells_its_phases_and_one_without_writes_nothing() -> None:
    time = Time()
    meter, plain = timed(time, [10] * 5), timed(time, [10] * 5)
    for _ in meter:
        with meter.step("forward"):
            time.go(30)
        with meter.step("\x1b[2Jback\nward"):
            time.go(20)
    list(plain)
    (page,) = telemetry.pages()
    assert page.loaders[0].phases == {
        "forward": PhaseTotals(5, 5, 150_000_000),
        "[2Jbackward": PhaseTotals(5, 5, 100_000_000),
    }
    assert not page.loaders[0].phases_on_device
    assert page.loaders[1].phases == {}


def test_of_many_names_the_first_are_told() -> None:
    clock = StallClock(LoaderInfo("train"))
    with clock.step(3):  # type: ignore[arg-type] # what works without a page works with one
        pass
    for number in range(30):
        with clock.step(f"phase {number}"):
            pass
    clock.publish(0, 1, clock.now())
    assert list(only_loader().phases) == ["3", *(f"phase {number}" for number in range(MAX_PHASES - 1))]
