"""Where the time of a run went: exact for phases written by hand, the same however long the window is."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor_jobs import made
from monitor_moments import moment
from monitor_snapshots import BUSY, LOADER, snapshot, stacks, training
from test_monitor_terminal import WHEN

from iofast.monitor.live import Jobs
from iofast.monitor.render.html_report import html
from iofast.monitor.render.printed import to_json
from iofast.monitor.snapshot import Frame, Snapshot
from iofast.monitor.sums import Ledger, RunSums


def summed(shots: list[Snapshot], window: int = 1000) -> RunSums:
    kept, ledger = deque[Snapshot](maxlen=window), Ledger()
    for shot in shots:
        ledger.before_adding(kept)
        kept.append(shot)
    return ledger.sums(kept)


def busy(count: int) -> list[Snapshot]:
    """The device never idles, so the loader costs nothing."""
    return training(count, doing=BUSY, idle=0.0)


def seen(frame: Frame, count: int) -> list[Snapshot]:
    return [snapshot(BUSY, 1.0, stacks=stacks({frame: 1.0})) for _ in range(count)]


def test_each_phase_has_its_share() -> None:
    found = summed([*seen(Frame.COMPILE, 10), *busy(70), *seen(Frame.VALIDATION, 15), *seen(Frame.CHECKPOINT, 5)])
    assert found.seconds == 100
    assert (found.start_up, found.validation, found.checkpoints) == (0.10, 0.15, 0.05)
    assert found.computed.high == pytest.approx(0.70)
    assert found.waited.high < 0.02
    assert found.devices == 1
    assert found.lost_gpu_hours is not None
    assert found.lost_gpu_hours.low == pytest.approx(15 / 3600)  # validation is no loss


def test_the_wait_for_batches_by_a_loader_s_own_clock() -> None:
    """A loader that measures the stall, and says that a tenth of the time went into the starts of epochs."""
    exact = replace(LOADER, batches=9, steps=9, exposed_s=0.45, epoch_start_s=0.1)
    found = summed(training(50, loaders=(exact,)))
    assert found.epoch_starts == pytest.approx(0.1)
    assert found.waited.low == found.waited.high == pytest.approx(0.9 * 0.5)
    assert found.computed.low == found.computed.high == pytest.approx(0.45)


def test_the_first_start_of_an_epoch_is_no_warm_up_too() -> None:
    """10 s in which the device idles, and the loader says of 8 of them that they began its epoch."""
    start = training(10, doing=BUSY, idle=1.0, loaders=())
    first = replace(LOADER, batches=1, steps=0, step_s=None, wait_s=0.0, exposed_s=0.0, epoch_start_s=8.0)
    steady = replace(LOADER, batches=10, steps=10, step_s=0.1, wait_s=0.0, exposed_s=0.0)
    found = summed([*start, *training(1, loaders=(first,)), *training(41, loaders=(steady,))])
    assert found.seconds == pytest.approx(52)
    assert found.epoch_starts * 52 == pytest.approx(8)
    assert found.start_up * 52 == pytest.approx(3)  # 7 of the 8 s lie before the interval that reports them
    assert found.computed.low * 52 == pytest.approx(41)


def test_what_cannot_be_seen_is_either() -> None:
    blind = [replace(one, main=replace(one.main, samples=0, shares={})) for one in training(10, idle=None)]
    found = summed(blind)
    assert (found.computed.low, found.computed.high) == (0.0, 1.0)
    assert found.lost_gpu_hours is None


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([None, 0.2, 5.0, *Frame]), max_size=60), st.integers(2, 20))
def test_nothing_is_lost_or_counted_twice(frames: list[Frame | float | None], window: int) -> None:
    """Of phases, computing, and loaders that report seconds of an epoch's start."""
    shots = []
    for frame in frames:
        if isinstance(frame, float):
            shots += training(1, loaders=(replace(LOADER, epoch_start_s=frame),))
        else:
            shots += busy(1) if frame is None else seen(frame, 1)
    found = summed(shots, window)
    assert found.seconds == pytest.approx(len(shots))
    others = found.start_up + found.epoch_starts + found.validation + found.checkpoints + found.paused
    assert found.computed.low + found.waited.high + others == pytest.approx(1.0 if shots else 0.0)
    assert -1e-9 <= found.computed.low <= found.computed.high + 1e-9


def test_a_day_is_summed_in_a_small_window() -> None:
    hour = [*busy(50), *seen(Frame.VALIDATION, 10)]
    assert summed(hour * 20, window=30).validation == pytest.approx(1 / 6, abs=0.02)


def test_a_watched_job_has_sums_and_views_show_them() -> None:
    jobs = Jobs(made(last=12), window=5)
    jobs.add(made().find()[0])
    while len(jobs):
        jobs.next(1.0)
    last = jobs.moments()[0]
    jobs.close()
    assert last.history.sums is not None
    assert last.history.sums.seconds == pytest.approx(12.0)
    run: dict[str, Any] = json.loads(json.dumps(to_json(last)))["run"]
    assert set(run["computed"]) == {"low", "high"}
    assert "waited for batches  " in html([last], WHEN)
    assert to_json(moment())["run"] is None
