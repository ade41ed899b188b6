"""How much longer a step takes beside the loader: exact for situations written by hand, None where it is not seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitor_moments import moment, starved
from monitor_snapshots import DEVICE, MAIN, SYSTEM, stacks, thread, training, worker

from iofast.monitor.findings import Interference, StallBounds
from iofast.monitor.interference import interference
from iofast.monitor.render.json_view import to_json
from iofast.monitor.render.layout import whole
from iofast.monitor.snapshot import Doing, Frame, Looks, Tier
from iofast.monitor.training import Training
from iofast.monitor.verdict import classify

RUNNING = {Doing.RUNNING: 1.0}
ALONE = replace(SYSTEM, cores=2.0, idle_cores=0.0, other_cores=0.0)


def longer(stall: tuple[float, float], ran: float, queued: float | None, **changes: Any) -> Interference | None:
    """Of a second with a worker that uses a core: the training thread runs and is queued for these shares."""
    main = Looks(20, changes.pop("doing", RUNNING), ran, queued)
    own = replace(MAIN, cpu_s=ran)
    given = {"processes": (own, worker(0, 1.0)), "system": ALONE, "idle": None, **changes}
    tier = StallBounds(*stall, Tier.STACKS, host_wait=given["idle"] is None)
    return interference(Training(training(4, main=main, **given)), tier)


def test_a_queue_for_processors_without_a_device() -> None:
    """No stall, a fifth of the time queued: a step of 0.8 takes 1.0, a quarter longer; 5 % of R may be in next()."""
    found = longer((0.0, 0.0), 0.8, 0.2)
    assert found is not None
    assert found.high == pytest.approx(0.25)
    assert found.low == pytest.approx(0.19 / 0.81)


def test_other_programs_are_not_the_loader() -> None:
    """They use as much as the worker: half of the queue is theirs."""
    found = longer((0.0, 0.0), 0.8, 0.2, system=replace(ALONE, other_cores=1.0))
    assert found is not None
    assert found.high == pytest.approx(0.1 / 0.9)


def test_a_device_that_never_idles_hides_the_queue() -> None:
    found = longer((0.0, 0.0), 0.5, 0.2, idle=0.0)
    assert found == Interference(0.0, 0.0)


def test_a_device_that_idles_for_its_host() -> None:
    """The host is queued for 0.6 and the device idles 0.7 without a stall: 0.3 at least coincide, 0.5 at most count."""
    found = longer((0.0, 0.0), 0.4, 0.6, idle=0.7)
    assert found is not None
    assert found.low == pytest.approx((0.57 + 0.7 - 1) / (1 - (0.57 + 0.7 - 1)))
    assert found.high == pytest.approx(1.0)  # a step is at least half of what it takes now


def test_the_gil_bounds_from_above_alone() -> None:
    """Stacks show the thread in its own work all the time, /proc half of it: the loader's thread may hold the GIL."""
    seen = stacks({Frame.FORWARD: 1.0})
    changes: dict[str, Any] = {"processes": (replace(MAIN, cpu_s=0.9),), "threads": (thread("iofast-0", 0.3),)}
    found = longer((0.0, 0.0), 0.5, 0.0, stacks=seen, **changes)
    assert found is not None
    assert found.low == 0.0
    assert found.high == pytest.approx(0.3 / 0.7)
    assert longer((0.0, 0.0), 0.5, 0.0, **changes) == Interference(0.0, 0.0)  # no stacks, no GIL


@pytest.mark.parametrize(
    ("queued", "changes"),
    [
        (None, {}),  # the kernel does not count
        (0.2, {"processes": (MAIN,)}),  # no loader beside the training
        (0.2, {"system": replace(ALONE, idle_cores=None)}),
        (0.2, {"idle": 0.5, "devices": (replace(DEVICE, others=1),)}),  # another job's work on the device
        (0.2, {"stacks": stacks({Frame.LOADER_INLINE: 1.0})}),  # it makes its batches itself
    ],
)
def test_none_where_it_cannot_be_seen(queued: float | None, changes: dict[str, Any]) -> None:
    assert longer((0.0, 0.1), 0.5, queued, **changes) is None


@given(*[st.floats(0, 1)] * 4, st.floats(0, 3) | st.none(), st.floats(0, 1) | st.none())
def test_bounds_are_ordered_and_finite(
    low: float, width: float, ran: float, queued: float, others: float | None, idle: float | None
) -> None:
    high = min(1.0, low + width)
    system = replace(ALONE, other_cores=others)
    found = longer((low, high), ran * (1 - queued), queued, system=system, idle=idle)
    assert found is not None
    assert 0 <= found.low <= found.high < 1000


def test_a_verdict_has_it_as_its_second_figure() -> None:
    """And as evidence, with the queue that it rests on."""
    own, main = replace(MAIN, cpu_s=0.8), Looks(20, RUNNING, 0.8, 0.2)
    verdict = classify(training(40, main=main, processes=(own, worker(0, 1.0)), system=ALONE, idle=None))
    assert verdict.interference is not None
    assert 0.2 < verdict.interference.high < 0.3
    texts = {one.name: one.text for one in verdict.evidence}
    assert texts["main_queued"] == "the training thread is ready to run and has no processor 20% of the time"
    assert texts["interference"] == verdict.interference.text


def test_views_show_it() -> None:
    seen = moment(last=starved(interference=Interference(0.1, 0.25)))
    assert any("; a step takes 10% to 25% longer beside the loader" in line.plain for line in whole(seen))
    assert to_json(seen)["interference"] == {"low": 0.1, "high": 0.25}
    assert not any("beside" in line.plain for line in whole(moment(last=starved())))
    assert Interference(0.1, 0.101).text == "a step takes 10% longer beside the loader"
