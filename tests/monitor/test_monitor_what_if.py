"""Predicted rates and interference: exact for situations written by hand, silent where the model does not hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitor_snapshots import DEVICE, LATE, LOADER, MAIN, SYSTEM, stacks, thread, training, worker, workers

from iofast.monitor.advice import advise
from iofast.monitor.findings import Bound, Cause, Interference, Prediction, Severity, StallBounds, Verdict
from iofast.monitor.interference import interference
from iofast.monitor.situation import Situation
from iofast.monitor.snapshot import Doing, Frame, Looks, Tier, WorkerTask
from iofast.monitor.training import Training
from iofast.monitor.verdict import classify
from iofast.monitor.what_if import what_if

DECODES = {WorkerTask.DECODE: 0.8, WorkerTask.AUGMENT: 0.2}


def predicted(cause: Cause, low: float, high: float, **changes: Any) -> dict[str, Prediction]:
    """By name, for 4 seconds of a job with these figures."""
    now = situation(cause, low, high, **changes)
    return {one.name: one for one in what_if(now)}


def situation(cause: Cause | None, low: float, high: float, **changes: Any) -> Situation:
    idle = changes.pop("idle", 0.6)
    shots = Training(training(4, **{"doing": LATE, "idle": idle, **changes}))
    bound = Bound.COMPUTE if cause is None else Bound.INPUT
    host = idle is None
    stall = StallBounds(low, high, Tier.STACKS, host_wait=host)
    return Situation(shots, shots, Verdict(bound, cause, stall, Severity.NONE))


def test_workers_up_to_the_step() -> None:
    """Two workers need 2 core-seconds a batch, a step 0.38 to 0.40: six workers on six cores need 0.333."""
    found = predicted(Cause.WORKERS, 0.6, 0.62, processes=workers(1.0))["workers"]
    assert found.change == "num_workers=6"
    assert found.high == pytest.approx(1 / 0.38)
    nearness = 2 * (2 / 6) / 0.40 - 1
    assert found.low == pytest.approx(1 / (0.40 * (1 + 0.1 * nearness)))
    assert found.images is None


def test_workers_up_to_the_cores() -> None:
    """One core is free: three workers give 1.5 times the rate, although the step would allow more."""
    found = predicted(Cause.WORKERS, 0.8, 0.81, processes=workers(1.0), system=replace(SYSTEM, idle_cores=1.0))
    assert found["workers"].high == pytest.approx(1.5)
    assert found["workers"].change == "num_workers=4"


def test_images_a_second_where_a_loader_reports_them() -> None:
    found = predicted(Cause.WORKERS, 0.6, 0.62, processes=workers(1.0), loaders=(LOADER,))["workers"]
    assert found.images == (pytest.approx(320 * found.low), pytest.approx(320 * found.high))


def test_no_more_workers_without_cores() -> None:
    found = predicted(Cause.CPU, 0.6, 0.62, processes=workers(1.0), system=replace(SYSTEM, idle_cores=0.0))
    assert "workers" not in found
    assert found["cores"].high == pytest.approx(2.0)
    assert found["cores"].change == "twice the cores, num_workers=4"


def test_other_programs_give_their_cores_back() -> None:
    """Two workers get one of two cores: alone they have both, and of what was added to them nothing else is known."""
    shared = replace(SYSTEM, cores=2.0, idle_cores=0.0, other_cores=1.0)
    queued = workers(0.5, runnable_s=0.5)
    found = predicted(Cause.TAKEN, 0.6, 0.62, processes=queued, system=shared)
    assert (list(found), found["others"].high) == (["others"], pytest.approx(2.0))
    now = situation(Cause.TAKEN, 0.6, 0.62, processes=queued, system=shared)
    advice = {one.name: one for one in advise(now, what_if(now))}
    assert advice["other_programs"].gain == found["others"].high


def test_storage_and_page_cache_take_the_fetch_part() -> None:
    """Workers on a processor 10 % of the time, never out of work: 0.2 prep and 1.8 fetch of 2 workers."""
    seen = stacks({Frame.LOADER_WAIT: 1.0}, workers={WorkerTask.READ: 0.9, WorkerTask.DECODE: 0.1})
    found = predicted(Cause.STORAGE, 0.8, 0.82, processes=workers(0.1), stacks=seen)
    assert found["storage"].high == pytest.approx(1 / ((0.2 + 0.9) / 2))
    assert found["page_cache"].high == pytest.approx(1 / 0.18)


def test_a_training_on_the_loader_s_own_cores() -> None:
    """Two cores, both used: 1.5 by the loader, 0.5 by training, whose step takes 0.8 now and 0.5 alone.

    A FastLoader leaves 0.13 to 0.5 of the loader's work: the step of 0.5 is the limit, longer by a third of what it is
    longer now, as a third of the work is left.
    """
    seen, full = stacks({Frame.LOADER_WAIT: 1.0}, workers=DECODES), replace(SYSTEM, cores=2.0, idle_cores=0.0)
    now = situation(Cause.CPU, 0.2, 0.2, processes=(replace(MAIN, cpu_s=0.5), *workers(0.75)[1:]), idle=None,
                    system=full, stacks=seen)  # fmt: skip
    now = replace(now, verdict=replace(now.verdict, interference=Interference(0.6, 0.6)))
    found = {one.name: one for one in what_if(now)}
    assert found["fastloader"].high == pytest.approx(1 / 0.5)
    nearness = 2 * 0.5 / 0.6 - 1
    assert found["fastloader"].low == pytest.approx(1 / (0.6 * (1 + 0.1 * nearness)))
    assert "workers" not in found


def test_more_workers_beside_a_training_on_the_same_cores() -> None:
    """Training takes half a core of two, a worker a whole one: together 1.5 for a batch, so at most 4/3 as many."""
    two = replace(SYSTEM, cores=2.0, idle_cores=0.5)
    now = situation(Cause.WORKERS, 0.5, 0.5, processes=workers(1.0, count=1), idle=None, system=two)
    assert what_if(now) == (), "how long its step is alone is not known"
    now = replace(now, verdict=replace(now.verdict, interference=Interference(0.0, 0.0)))
    (found,) = what_if(now)
    assert (found.change, found.high) == ("num_workers=2", pytest.approx(4 / 3))


def test_packing_shrinks_decoding_alone() -> None:
    seen = stacks({Frame.LOADER_WAIT: 1.0}, workers=DECODES)
    found = predicted(Cause.CPU, 0.89, 0.9, processes=workers(1.0), stacks=seen, file_bytes=280_000,
                      system=replace(SYSTEM, idle_cores=0.0))  # fmt: skip
    assert found["pack"].high == pytest.approx(1 / (1 - 0.8 * 0.9))
    assert "280 to 28 kB" in found["pack"].assumption


def test_fastloader_by_its_share_of_a_pillow_loader() -> None:
    seen = stacks({Frame.LOADER_WAIT: 1.0}, workers=DECODES)
    found = predicted(Cause.WORKERS, 0.5, 0.52, processes=workers(1.0), stacks=seen)["fastloader"]
    assert found.high == pytest.approx(1 / 0.48)
    assert found.low > 1.8


@pytest.mark.parametrize("cpu", [1.0, 0.8])
def test_a_faster_device_alone_brings_nothing_to_an_input_bound_job(cpu: float) -> None:
    """Also where workers rest, or queue for a processor, a part of the time that nothing explains."""
    assert "device" not in predicted(Cause.WORKERS, 0.6, 0.62, processes=workers(cpu, runnable_s=1 - cpu))


def test_a_thread_that_makes_its_batches_itself_takes_step_and_batch_in_turn() -> None:
    """Half of the time is the step: twice the device leaves 0.25 + 0.5, workers leave the step alone."""
    found = predicted(Cause.SINGLE, 0.5, 0.5, processes=(MAIN,))
    assert (found["device"].low, found["device"].high) == (pytest.approx(1 / 0.75), pytest.approx(1 / 0.75))
    assert found["workers"].high == pytest.approx(1 / 0.5)


def test_a_training_thread_gives_its_core_back_beside_a_device() -> None:
    """One of two cores idles: workers have 1.6 beside a device; on the CPU a batch takes a second of two cores."""
    two = replace(SYSTEM, cores=2.0, idle_cores=1.0)
    for idle, limit in ((0.6, 0.4), (None, 0.5)):
        found = predicted(Cause.SINGLE, 0.6, 0.6, processes=(MAIN,), system=two, idle=idle)
        assert found["workers"].high == pytest.approx(1 / limit)


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


def test_workers_that_never_run_on_a_machine_without_a_free_core() -> None:
    found = predicted(Cause.STORAGE, 0.8, 0.82, processes=workers(0.0), system=replace(SYSTEM, idle_cores=0.0))
    assert found["page_cache"].high == pytest.approx(1 / 0.18)


def test_silent_where_the_band_is_wider_than_the_effect() -> None:
    assert predicted(Cause.WORKERS, 0.1, 0.9, processes=workers(1.0)) == {}


def test_advice_has_the_predicted_number_and_gain() -> None:
    now = situation(Cause.WORKERS, 0.6, 0.62, processes=workers(1.0))
    found = what_if(now)
    advice = {one.name: one for one in advise(now, found)}
    predicted = next(one for one in found if one.name == "workers")
    assert advice["num_workers"].gain == predicted.high
    assert advice["num_workers"].change == f"DataLoader(..., {predicted.change})"


# --- how much longer a step takes beside the loader


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
