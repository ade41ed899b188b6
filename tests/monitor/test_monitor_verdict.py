"""Bounds of the stall against simulated trainings whose stall is known; what classify says, keeps, and never does."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from monitor_snapshots import DEVICE, LOADER, MAIN, SYSTEM, simulate, snapshot, stacks, thread, training, worker

from iofast.monitor.bounds import exposed, wilson
from iofast.monitor.findings import Band, Bound, Cause, Severity, StallBounds, Verdict
from iofast.monitor.snapshot import Doing, Frame, Looks, Snapshot, Tier, WaitSite, WaitSource
from iofast.monitor.thresholds import BOUND
from iofast.monitor.training import Training
from iofast.monitor.verdict import classify, severity

R, Q, X, A = Doing.RUNNING, Doing.QUEUE, Doing.FUTEX, Doing.ASLEEP
FORWARD, SYNC, WAIT = Frame.FORWARD, Frame.SYNC, Frame.LOADER_WAIT


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.floats(0.005, 0.4), st.sampled_from([R, Q, X, A]), st.booleans()), min_size=2, max_size=6))
def test_bounds_hold_for_any_cycle(parts: list[tuple[float, Doing, bool]]) -> None:
    """Whatever a step is made of: QUEUE is the loader's, FUTEX a device's that works, and the rest the host's own."""
    frames = {Q: WAIT, X: SYNC, R: FORWARD, A: Frame.OTHER}
    spans = [(length, doing, frames[doing], busy or doing is X) for length, doing, busy in parts]
    for looks in ((20, 0), (20, 4)):
        run = simulate(
            lambda rng: [(s * rng.uniform(0.9, 1.1), *rest) for s, *rest in spans], random.Random(1), 25, looks
        )
        stall = exposed(Training(run.snapshots, z=3.5))
        assert stall is not None
        assert stall.low - 0.01 <= run.stall <= stall.high + 0.01


EVENTS = replace(LOADER, exposed_s=0.3, wait_s=0.8, batches=10, step_s=0.1)
METER = replace(EVENTS, exposed_s=None)
HALVES = tuple(replace(LOADER, name=name, exposed_s=0.2, transfer_s=0.0) for name in "ab")
NAMELESS = tuple(replace(one, name="a") for one in HALVES)
SHARED = (replace(DEVICE, others=1),)
LATE, HALF = {Q: 0.5, X: 0.48, R: 0.02}, stacks({WAIT: 0.5, SYNC: 0.5})
# What was seen, where the bounds of the stall lie, how they were seen, and whether it is the host's wait.
STALLS: dict[str, tuple[dict[str, Any], tuple[float, float], tuple[float, float], Tier, bool]] = {
    "events are exact": ({"loaders": (EVENTS,)}, (0.3, 0.3), (0.3, 0.3), Tier.INSIDE, False),
    # 0.4 idle less 0.2 of the host
    "a meter is better than looks": ({"loaders": (METER,), "idle": 0.4, "doing": {Q: 0.8, R: 0.2}},
     (0.15, 0.25), (0.38, 0.45), Tier.INSIDE, False),
    "a meter, and no device": ({"loaders": (METER,), "idle": None}, (0.8, 0.8), (0.8, 0.8), Tier.INSIDE, True),
    "two loaders of a step, one after the other": ({"loaders": HALVES}, (0.4, 0.4), (0.4, 0.4), Tier.INSIDE, False),
    "two loaders of the same name": ({"loaders": NAMELESS}, (0.4, 0.4), (0.4, 0.4), Tier.INSIDE, False),
    "stacks, and a device that idles for want of a batch": ({"doing": LATE, "idle": 0.5, "stacks": HALF},
     (0.45, 0.5), (0.5, 0.55), Tier.STACKS, False),
    "no device": ({"doing": {Q: 0.3, R: 0.7}, "idle": None}, (0.25, 0.3), (0.3, 0.45), Tier.OUTSIDE, True),
    "a device of its own": ({"doing": {Q: 0.6, R: 0.4}, "idle": 0.1}, (0.0, 0.1), (0.1, 0.15), Tier.OUTSIDE, False),
    "a device that others use as well": ({"doing": {Q: 0.6, R: 0.4}, "idle": 0.1, "devices": SHARED},
     (0.0, 0.1), (0.6, 0.8), Tier.OUTSIDE, False),
}  # fmt: skip


@pytest.mark.parametrize("name", STALLS)
def test_bounds_of_the_stall(name: str) -> None:
    changes, low, high, tier, host_wait = STALLS[name]
    stall = exposed(Training(training(**changes)))
    assert stall is not None
    assert (stall.tier, stall.host_wait) == (tier, host_wait)
    assert low[0] - 1e-9 <= stall.low <= low[1] + 1e-9
    assert high[0] - 1e-9 <= stall.high <= high[1] + 1e-9


def test_wilson() -> None:
    """Of 15 in 50 at 95 %, as textbooks have it; nothing is known without samples."""
    found = wilson(0.3, 50, 1.96)
    assert (found.low, found.high) == (pytest.approx(0.1910, abs=1e-4), pytest.approx(0.4375, abs=1e-4))
    assert wilson(0.5, 0, 1.96) == Band(0.0, 1.0)


# --- verdicts


BUSY = {X: 0.95, R: 0.05}
HOST = {R: 0.9, X: 0.1}
SITE = WaitSite("train.py", 40, "main", ".item()", WaitSource.DEVICE, False, 0.5)
AT_17 = replace(LOADER, exposed_s=0.17, transfer_s=0.0)
SLOWED = replace(DEVICE, busy=0.99, throttle_reasons=("power",))

CASES: dict[str, tuple[list[Snapshot], Bound]] = {
    "late": (training(doing=LATE, idle=0.5), Bound.INPUT),
    "busy": (training(doing=BUSY, idle=0.02), Bound.COMPUTE),
    "a pause, and a device that is seen no more": ([*training(doing=BUSY, idle=0.02)[:30],
     *training(doing=BUSY, idle=0.95)[30:38], replace(training(doing=BUSY)[38], devices=())], Bound.COMPUTE),
    "waits, and the device works": (training(doing={Q: 0.8, R: 0.2}, idle=0.02), Bound.COMPUTE),
    "syncs": (training(doing=HOST, idle=0.5, stacks=stacks({SYNC: 0.5, FORWARD: 0.5}, waits=(SITE,))), Bound.SYNC),
    "syncs, by /proc": (training(doing={R: 0.5, X: 0.5}, idle=0.5), Bound.SYNC),
    "launches": (training(doing=HOST, idle=0.7, stacks=stacks({FORWARD: 0.9, SYNC: 0.1})), Bound.LAUNCH),
    "launches, and a next() that counts": (training(doing=HOST, idle=0.87, stacks=stacks({FORWARD: 0.8, WAIT: 0.2}),
     loaders=(AT_17,)), Bound.LAUNCH),
    "late, and launches that count": (training(doing=HOST, idle=0.45, stacks=stacks({FORWARD: 0.8, WAIT: 0.2}),
     loaders=(AT_17,)), Bound.INPUT),
    "launches, by /proc": (training(doing={R: 1.0}, idle=0.7), Bound.LAUNCH),
    "copies": (training(doing=HOST, idle=0.4, stacks=stacks({Frame.TRANSFER: 0.4, FORWARD: 0.6})), Bound.TRANSFER),
    "copies, measured": (training(doing=HOST, idle=0.4, loaders=(replace(LOADER, exposed_s=0.35, transfer_s=0.3),)),
     Bound.TRANSFER),
    "talks": (training(doing=BUSY, idle=0.02, stacks=stacks({Frame.COMMUNICATION: 0.4, SYNC: 0.6})),
     Bound.COMMUNICATION),
    "a slow rank": (training(doing=BUSY, idle=0.02, peers={1: 0.6}), Bound.COMMUNICATION),
    "held back": (training(doing=BUSY, idle=0.01, devices=(SLOWED,)), Bound.THROTTLED),
    "bandwidth": (training(doing=BUSY, idle=0.01, devices=(replace(DEVICE, dram_active=0.8, tensor_active=0.1),)),
     Bound.MEMORY),
    "tensor cores": (training(doing=BUSY, idle=0.01, devices=(replace(DEVICE, dram_active=0.8, tensor_active=0.7),)),
     Bound.COMPUTE),
    "no device, late": (training(doing={Q: 0.5, R: 0.5}, idle=None), Bound.INPUT),
    "no device, hardly late": (training(doing={Q: 0.06, R: 0.94}, idle=None), Bound.COMPUTE),
    "no device, late or not": (training(doing={Q: 0.08, R: 0.92}, idle=None), Bound.UNKNOWN),
    "no device, late: 7 % are proved, and the middle is 12 %": (training(doing={Q: 0.09, R: 0.91}, idle=None),
     Bound.INPUT),
    "no device, computes": (training(doing={R: 1.0}, idle=None), Bound.COMPUTE),
    "a quota": (training(doing={R: 1.0}, idle=None, system=replace(SYSTEM, throttled_s=0.5),
     processes=(MAIN, worker(1), worker(2))), Bound.THROTTLED),
    "short": (training(5), Bound.UNKNOWN),
    "no look": (training(idle=None, main=Looks(0, {})), Bound.UNKNOWN),
    "wide": (training(doing={R: 0.5, X: 0.5}, idle=0.5, processes=(MAIN,)), Bound.UNKNOWN),
    "nothing": ([], Bound.IDLE),
    "asleep": (training(doing={A: 1.0}, idle=1.0, processes=(replace(MAIN, cpu_s=0.0),)), Bound.IDLE),
    "stopped": (training(doing={Doing.STOPPED: 1.0}, idle=1.0), Bound.IDLE),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_verdict(name: str) -> None:
    snapshots, bound = CASES[name]
    verdict = classify(snapshots)
    assert verdict.bound is bound, verdict
    assert (verdict.bound is not Bound.INPUT) <= (verdict.cause is None)
    assert bool(verdict.reason) >= (bound in (Bound.UNKNOWN, Bound.IDLE))
    assert verdict.bound in (Bound.UNKNOWN, Bound.IDLE) or verdict.evidence
    assert all(one.text and one.name for one in verdict.evidence)


def test_what_a_verdict_rests_on() -> None:
    verdict = classify(CASES["late"][0])
    assert verdict.seconds == pytest.approx(40)
    assert verdict.severity is Severity.SEVERE
    assert verdict.tier is Tier.OUTSIDE
    assert verdict.steps is None
    assert verdict.stall is not None
    assert verdict.stall.low <= 0.5 <= verdict.stall.high
    assert "train.py:40" in " ".join(one.text for one in classify(CASES["syncs"][0]).evidence)


def test_severity() -> None:
    found = [severity(StallBounds(low, 1.0, Tier.OUTSIDE)) for low in (0.0, 0.05, 0.1, 0.2, 1.0)]
    assert found == [*Severity, Severity.SEVERE]
    assert severity(None) is Severity.NONE


def test_twenty_steps_are_enough_where_they_are_known() -> None:
    few = replace(LOADER, batches=3, step_s=0.1, exposed_s=0.1)
    assert classify(training(5, loaders=(few,))).bound is Bound.UNKNOWN
    assert classify(training(8, loaders=(few,))).bound is Bound.INPUT
    assert classify(training(8, loaders=(few,))).steps == 24


@pytest.mark.parametrize(
    ("before", "share", "bound"),
    [
        (None, 0.115, Bound.INPUT),
        (0.02, 0.115, Bound.COMPUTE),
        (0.02, 0.125, Bound.INPUT),
        (0.3, 0.105, Bound.INPUT),
        (0.3, 0.095, Bound.COMPUTE),
    ],
)
def test_a_verdict_changes_by_more_than_the_margin(before: float | None, share: float, bound: Bound) -> None:
    """Its severity is that of the stall."""

    def measured(share: float) -> list[Snapshot]:
        return training(30, doing=BUSY, idle=0.09, loaders=(replace(LOADER, exposed_s=share),))

    verdict = classify(measured(share), None if before is None else classify(measured(before)))
    assert verdict.bound is bound
    assert (verdict.severity is Severity.NOTICE) == (share < 0.1)


def test_wide_bounds_within_the_margin_keep_the_last_verdict() -> None:
    waits = training(120, doing={Q: 0.13, R: 0.87}, idle=None)
    assert classify(waits).bound is Bound.INPUT
    computing = classify(training(120, doing={Q: 0.0, R: 1.0}, idle=None))
    assert computing.bound is Bound.COMPUTE
    kept = classify(waits, computing)
    assert kept.bound is Bound.COMPUTE
    assert classify(waits, kept).bound is Bound.COMPUTE


@pytest.mark.parametrize("idle", [0.085, 0.095, 0.105, 0.115])
@pytest.mark.parametrize("changes", [{}, {"dram_active": 0.8, "tensor_active": 0.2}, {"throttle_reasons": ("power",)}])
def test_a_verdict_on_a_device_confirms_itself(idle: float, changes: dict[str, Any]) -> None:
    """Of a training whose loader is quick."""
    quick = (replace(LOADER, exposed_s=0.0, transfer_s=0.0),)
    seen = {"stacks": stacks({FORWARD: 0.9, SYNC: 0.1}), "devices": (replace(DEVICE, **changes),)}
    shots = training(40, doing=HOST, idle=idle, loaders=quick, **seen)
    first = classify(shots)
    assert classify(shots, first).bound is first.bound


@pytest.mark.parametrize(("before", "idle", "bound"), [(0.02, 0.11, Bound.COMPUTE), (0.5, 0.09, Bound.LAUNCH)])
def test_a_verdict_on_a_device_changes_by_more_than_the_margin(before: float, idle: float, bound: Bound) -> None:
    seen = {"stacks": stacks({FORWARD: 0.9, SYNC: 0.1}), "loaders": (replace(LOADER, exposed_s=0.0, transfer_s=0.0),)}
    last = classify(training(40, doing=HOST, idle=before, **seen))
    assert last.bound is bound
    shots = training(40, doing=HOST, idle=idle, **seen)
    assert (classify(shots).bound, classify(shots, last).bound) == (
        {Bound.COMPUTE: Bound.LAUNCH, Bound.LAUNCH: Bound.COMPUTE}[bound],
        bound,
    )


# --- for all snapshots


SHARES = st.floats(0, 1)
MAYBE = st.none() | SHARES


@st.composite
def anything(draw: st.DrawFn) -> Snapshot:
    doing = draw(st.dictionaries(st.sampled_from(list(Doing)), SHARES, max_size=3))
    count = draw(st.sampled_from([None, 0, 1 << 30]))
    odd = {"read_bytes": count, "read_calls_bytes": count, "major_faults": count}
    processes = [replace(MAIN, cpu_s=draw(SHARES), **odd)] if draw(st.booleans()) else []
    for number in range(draw(st.integers(0, 3))):
        made = worker(draw(st.integers(0, 5)) + 10 * number, draw(SHARES), runnable_s=draw(MAYBE), **odd)
        processes.append(replace(made, states=draw(st.sampled_from([{}, {"D": 1.0}, {"S": 1.0}]))))
    figures = {name: draw(MAYBE) for name in ("busy", "sm_active", "tensor_active", "dram_active")}
    whose = {"own": draw(st.sampled_from([True, False, None])), "others": draw(st.sampled_from([None, 0, 2]))}
    held = {"throttle_reasons": draw(st.sampled_from([(), ("power",), ("odd",)])), "memory_used": count}
    device = replace(DEVICE, **figures, **whose, **held, memory_total=count)
    numbers = ("idle_cores", "throttled_s", "other_cores")
    system = replace(SYSTEM, **{name: draw(MAYBE) for name in numbers}, memory_available=count)
    loader = replace(
        LOADER,
        kind=draw(st.sampled_from(["FastLoader", "watched"])),
        num_workers=draw(st.sampled_from([None, 0, 2])),
        batches=draw(st.sampled_from([0, 30])),
        epoch_start_s=draw(SHARES),
        **{name: draw(MAYBE) for name in ("step_s", "exposed_s", "transfer_s", "device_step_s")},
        epoch=draw(st.sampled_from([None, 3])),
        stages=draw(st.sampled_from([{}, {"read": 0.5, "decode": 0.0}])),
        phases=draw(st.sampled_from([{}, {"a": 0.0, "b": 9.0}])),
    )
    frames = draw(st.dictionaries(st.sampled_from(list(Frame)), SHARES, max_size=3))
    return replace(
        snapshot(),
        time_s=draw(st.floats(0, 100)),
        seconds=draw(st.sampled_from([0.0, 1.0, 40.0])),
        main=Looks(draw(st.sampled_from([0, 20])), doing),
        processes=tuple(processes),
        threads=(thread(draw(st.sampled_from(["pt_data_pin", "pt_autograd_0", "iofast-1"])), draw(SHARES)),)
        * draw(st.integers(0, 1)),
        system=system,
        devices=(device,) * draw(st.integers(0, 2)),
        stacks=stacks(frames, draw(st.sampled_from([0, 5]))) if draw(st.booleans()) else None,
        loaders=(loader,) * draw(st.integers(0, 2)),
        peers=draw(st.sampled_from([{}, {1: 0.9}])),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(anything(), max_size=6), st.sampled_from([None, *Bound]))
def test_no_snapshots_make_it_raise_and_no_order_of_processes_matters(
    seen: list[Snapshot], before: Bound | None
) -> None:
    last = None if before is None else Verdict(before, Cause.STORAGE, None, Severity.NONE)
    verdict = classify(seen, last)
    turned = [replace(one, processes=one.processes[::-1], devices=one.devices[::-1]) for one in seen]
    assert classify(turned, last) == verdict
    if verdict.stall is not None:
        assert 0 <= verdict.stall.low <= verdict.stall.high <= 1
    if verdict.bound is Bound.INPUT:
        assert verdict.stall is not None
        assert verdict.stall.low >= BOUND


def test_bursts_that_differ_widen_the_bounds() -> None:
    def width(*bursts: dict[Frame, float]) -> float:
        found = exposed(Training([snapshot(idle=None, stacks=stacks(burst)) for burst in bursts * 10]))
        assert found is not None
        return found.width

    half = {Frame.LOADER_WAIT: 0.5, FORWARD: 0.5}
    assert width({Frame.LOADER_WAIT: 1.0}, {FORWARD: 1.0}) > 2 * width(half, half)


def test_a_line_that_waits_for_the_device_waits_for_no_batch() -> None:
    seen = stacks({SYNC: 0.5, FORWARD: 0.5}, waits=(SITE,))
    assert classify(training(doing=HOST, idle=0.5, stacks=seen)).waits is None
