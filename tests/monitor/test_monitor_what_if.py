"""Predicted rates and interference: exact for situations written by hand, silent where the model does not hold."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitor_snapshots import DEVICE, LATE, LOADER, MAIN, SYSTEM, stacks, thread, training, worker, workers

from iofast.monitor.advice import advise
from iofast.monitor.bounds import interference
from iofast.monitor.findings import Band, Bound, Cause, Prediction, Severity, StallBounds, Verdict
from iofast.monitor.snapshot import Doing, Frame, Looks, Tier, WorkerTask
from iofast.monitor.training import Training
from iofast.monitor.verdict import classify
from iofast.monitor.what_if import Situation, what_if


def predicted(cause: Cause, low: float, high: float, **changes: Any) -> dict[str, Prediction]:
    """By name, for 4 seconds of a job with these figures."""
    now = situation(cause, low, high, **changes)
    return {one.name: one for one in what_if(now)}


def situation(cause: Cause | None, low: float, high: float, **changes: Any) -> Situation:
    idle, longer = changes.pop("idle", 0.6), changes.pop("longer", None)
    shots = Training(training(4, **{"doing": LATE, "idle": idle, **changes}))
    bound = Bound.COMPUTE if cause is None else Bound.INPUT
    stall = StallBounds(low, high, Tier.STACKS, host_wait=idle is None)
    beside = None if longer is None else Band(longer, longer)
    return Situation(shots, shots, Verdict(bound, cause, stall, Severity.NONE, interference=beside))


DECODES = stacks({Frame.LOADER_WAIT: 1.0}, workers={WorkerTask.DECODE: 0.8, WorkerTask.AUGMENT: 0.2})
READS = stacks({Frame.LOADER_WAIT: 1.0}, workers={WorkerTask.READ: 0.9, WorkerTask.DECODE: 0.1})
FULL, FREE = replace(SYSTEM, idle_cores=0.0), replace(SYSTEM, idle_cores=1.0)
ONE_OF_TWO = {"processes": (MAIN,), "system": replace(SYSTEM, cores=2.0, idle_cores=1.0)}
BUSY = {"processes": workers(1.0)}
TWO = replace(SYSTEM, cores=2.0, idle_cores=0.0)
TAKEN = {"processes": workers(0.5, runnable_s=0.5), "system": replace(TWO, other_cores=1.0)}
OWN_CORES = {
    "processes": (replace(MAIN, cpu_s=0.5), *workers(0.75)[1:]),
    "idle": None,
    "system": TWO,
    "stacks": DECODES,
    "longer": 0.6,
}
BESIDE = {"processes": workers(1.0, count=1), "idle": None, "system": replace(TWO, idle_cores=0.5)}

# Cause, bounds of the stall, what was seen, and the highest rate that each change is predicted to give, if any.
HIGHEST: dict[str, tuple[Cause, tuple[float, float], dict[str, Any], dict[str, float | None]]] = {
    "three workers on the cores, although the step allows more": (Cause.WORKERS, (0.8, 0.81),
     {**BUSY, "system": FREE}, {"workers": 1.5}),
    "no core is free for another worker": (Cause.CPU, (0.6, 0.62), {**BUSY, "system": FULL},
     {"workers": None, "cores": 2.0}),
    "0.2 prep and 1.8 fetch of two workers": (Cause.STORAGE, (0.8, 0.82),
     {"processes": workers(0.1), "stacks": READS}, {"storage": 1 / ((0.2 + 0.9) / 2), "page_cache": 1 / 0.18}),
    "workers that never run, and no core": (Cause.STORAGE, (0.8, 0.82), {"processes": workers(0.0), "system": FULL},
     {"page_cache": 1 / 0.18}),
    "packing 280 to 28 kB shrinks decoding alone": (Cause.CPU, (0.89, 0.9),
     {**BUSY, "stacks": DECODES, "file_bytes": 280_000, "system": FULL}, {"pack": 1 / (1 - 0.8 * 0.9)}),
    "a FastLoader up to the step": (Cause.WORKERS, (0.5, 0.52), {**BUSY, "stacks": DECODES}, {"fastloader": 1 / 0.48}),
    "a faster device alone": (Cause.WORKERS, (0.6, 0.62), BUSY, {"device": None}),
    "a faster device, and a queue for processors that nothing explains": (Cause.WORKERS, (0.6, 0.62),
     {"processes": workers(0.8, runnable_s=0.2)}, {"device": None}),
    "step and batch in turn": (Cause.SINGLE, (0.5, 0.5), {"processes": (MAIN,)},
     {"device": 1 / (0.25 + 0.5), "workers": 1 / 0.5}),
    "workers get the training thread's core beside a device": (Cause.SINGLE, (0.6, 0.6), ONE_OF_TWO,
     {"workers": 1 / 0.4}),
    "on the CPU a batch takes a second of two cores": (Cause.SINGLE, (0.6, 0.6), {**ONE_OF_TWO, "idle": None},
     {"workers": 1 / 0.5}),
    # two workers get one of two cores; of what was added to them nothing else is known
    "other programs give their cores back": (Cause.TAKEN, (0.6, 0.62),
     {**TAKEN, "stacks": DECODES, "file_bytes": 280_000},
     {"others": 2.0, "workers": None, "pack": None, "fastloader": None, "device": None}),
    # of 1.5 cores a FastLoader leaves 0.13 to 0.5 times as much: the step of 0.5 without a loader is the limit
    "a training on the loader's own two cores": (Cause.CPU, (0.2, 0.2), OWN_CORES,
     {"fastloader": 1 / 0.5, "workers": None}),
    # training takes half a core of two, a worker a whole one: together 1.5 for a batch
    "a worker more beside a training on the same cores": (Cause.WORKERS, (0.5, 0.5), {**BESIDE, "longer": 0.0},
     {"workers": 4 / 3}),
    "how long its step is alone is not known": (Cause.WORKERS, (0.5, 0.5), BESIDE, {"workers": None}),
    "a band wider than its effect": (Cause.WORKERS, (0.1, 0.9), BUSY, {"workers": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", HIGHEST)
def test_the_highest_rate(name: str) -> None:
    cause, stall, changes, expected = HIGHEST[name]
    found = predicted(cause, *stall, **changes)
    highest = {change: found[change].high if change in found else None for change in expected}
    assert highest == {change: high and pytest.approx(high) for change, high in expected.items()}


def test_workers_up_to_the_step() -> None:
    """Two workers need 2 core-seconds a batch, a step 0.38 to 0.40: six workers on six cores need 0.333."""
    now = situation(Cause.WORKERS, 0.6, 0.62, **BUSY, loaders=(LOADER,))
    (found,) = (one for one in what_if(now) if one.name == "workers")
    nearness = 2 * (2 / 6) / 0.40 - 1
    low, high = 1 / (0.40 * (1 + 0.1 * nearness)), 1 / 0.38
    assert (found.change, found.low, found.high) == ("num_workers=6", pytest.approx(low), pytest.approx(high))
    assert found.images == (pytest.approx(320 * low), pytest.approx(320 * high)), "as the loader reports the rate"
    (advice,) = (one for one in advise(now, what_if(now)) if one.name == "num_workers")
    assert (advice.change, advice.gain) == ("DataLoader(..., num_workers=6)", found.high)


def test_advice_on_other_programs_has_the_predicted_gain() -> None:
    now = situation(Cause.TAKEN, 0.6, 0.62, **TAKEN)
    (advice,) = (one for one in advise(now, what_if(now)) if one.name == "other_programs")
    assert advice.gain == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("cause", "changes"),
    [
        (None, {}),  # compute-bound
        (Cause.FEEDER, {}),
        (Cause.TAKEN, {"idle": None}),  # others have taken cores of its step as well
        (Cause.CPU, {"idle": None}),  # training computes on the loader's processors
        (Cause.WORKERS, {"system": replace(SYSTEM, idle_cores=None)}),
        (Cause.WORKERS, {"processes": workers(0.4, runnable_s=0.6)}),  # most of their time is a queue for processors
    ],
)
def test_silent_where_the_model_does_not_hold(cause: Cause | None, changes: dict[str, Any]) -> None:
    assert what_if(situation(cause, 0.5, 0.52, **{"processes": workers(1.0), **changes})) == ()


# --- how much longer a step takes beside the loader


RUNNING = {Doing.RUNNING: 1.0}
ALONE = replace(SYSTEM, cores=2.0, idle_cores=0.0, other_cores=0.0)


def longer(stall: tuple[float, float], ran: float, queued: float | None, **changes: Any) -> Band | None:
    """Of a second with a worker that uses a core: the training thread runs and is queued for these shares."""
    main = Looks(20, changes.pop("doing", RUNNING), ran, queued)
    own = replace(MAIN, cpu_s=ran)
    given = {"processes": (own, worker(0, 1.0)), "system": ALONE, "idle": None, **changes}
    tier = StallBounds(*stall, Tier.STACKS, host_wait=given["idle"] is None)
    return interference(Training(training(4, main=main, **given)), tier)


LOOKED = {"processes": (replace(MAIN, cpu_s=0.9),), "threads": (thread("iofast-0", 0.3),)}
# Shares of a second that the training thread runs and is queued, what else was seen, and how much longer a step takes.
LONGER: dict[str, tuple[float, float | None, dict[str, Any], tuple[float, float] | None]] = {
    "a step of 0.8 takes 1.0, and 5 % of R may be in next()": (0.8, 0.2, {}, (0.19 / 0.81, 0.25)),
    "half of the queue is other programs'": (0.8, 0.2, {"system": replace(ALONE, other_cores=1.0)},
     (0.095 / 0.905, 0.1 / 0.9)),
    "a device that never idles hides the queue": (0.5, 0.2, {"idle": 0.0}, (0.0, 0.0)),
    # queued for 0.57 to 0.6, idle for 0.7 without a stall; a step is at least half of what it takes now
    "a device that idles for its host": (0.4, 0.6, {"idle": 0.7}, (0.27 / 0.73, 1.0)),
    # its own work all the time by stacks, half of it by /proc: the loader's thread may hold the GIL
    "the GIL bounds from above alone": (0.5, 0.0, {**LOOKED, "stacks": stacks({Frame.FORWARD: 1.0})}, (0.0, 0.3 / 0.7)),
    "no stacks, no GIL": (0.5, 0.0, LOOKED, (0.0, 0.0)),
    "the kernel does not count": (0.5, None, {}, None),
    "no loader beside the training": (0.5, 0.2, {"processes": (MAIN,)}, None),
    "nobody knows the cores": (0.5, 0.2, {"system": replace(ALONE, idle_cores=None)}, None),
    "another job on the device": (0.5, 0.2, {"idle": 0.5, "devices": (replace(DEVICE, others=1),)}, None),
    "it makes its batches itself": (0.5, 0.2, {"stacks": stacks({Frame.LOADER_INLINE: 1.0})}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", LONGER)
def test_how_much_longer_a_step_takes(name: str) -> None:
    ran, queued, changes, expected = LONGER[name]
    found = longer((0.0, 0.0), ran, queued, **changes)
    assert found == (expected and Band(*map(pytest.approx, expected)))


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
    assert texts["interference"].startswith("a step takes 2")
