"""A hang is a verdict of its own: nothing is called slow that does not go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from monitor_snapshots import DEVICE, LOADER, MAIN, snapshot, stacks, training, worker

from iofast.monitor.findings import Bound, Severity
from iofast.monitor.render.wording import explanation
from iofast.monitor.snapshot import Doing, Frame, Looks, Snapshot, WaitSite, WaitSource
from iofast.monitor.verdict import classify

LOCK = WaitSite("/job/data.py", 12, "__getitem__", "lock.acquire", WaitSource.THREADS, False, 0.0)
NEXT = WaitSite("/job/train.py", 30, "main", "next", WaitSource.PROCESSES, False, 0.0)


def process(number: int = 0, state: str = "S", **changes: Any) -> Any:
    made = worker(number) if number else MAIN
    return replace(made, **{"cpu_s": 0.0, "read_calls_bytes": 0, "states": {state: 1.0}, **changes})


STACKS = stacks({Frame.LOADER_WAIT: 1.0}, stands={100: NEXT, 201: LOCK, 202: LOCK})
HANGS: dict[str, Any] = {
    "doing": {Doing.QUEUE: 1.0},
    "idle": None,
    "processes": (process(), process(1), process(2)),
    "stacks": STACKS,
}
SPINS = {"processes": (process(cpu_s=1.0), process(1)), "main": Looks(20, {Doing.RUNNING: 1.0}, 0.999, 0.0)}
PAGE = replace(LOADER, batches=0, images=0, steps=0)


def shots(seconds: int, /, **changes: Any) -> list[Snapshot]:
    return training(seconds, **{**HANGS, **changes})


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        (
            {},
            "the training thread in `main`, train.py:30, for `next`; "
            "workers 201, 202 in `__getitem__`, data.py:12, for `lock.acquire`",
        ),
        (
            {"stacks": None, "processes": (process(), process(1, "T"), process(2, "D"))},
            "the training thread asleep; worker 201 stopped (state T); worker 202 waiting for a disk (state D)",
        ),
        (
            {"stacks": None, "processes": (process(), *(process(number) for number in range(1, 7)))},
            "the training thread asleep; workers 201, 202, 203, 204 and 2 more asleep",
        ),
        ({"stacks": None, "processes": (process(cpu_s=0.01),), "loaders": (PAGE,)}, "the training thread asleep"),
        ({"stacks": stacks({Frame.COMMUNICATION: 1.0}), "processes": (process(),)}, "the training thread asleep"),
        (
            {**SPINS, "stacks": STACKS},
            "the training thread in `main`, train.py:30, for `next`; "
            "worker 201 in `__getitem__`, data.py:12, for `lock.acquire`",
        ),
        (
            {**SPINS, "stacks": stacks({Frame.LOADER_INLINE: 1.0}, stands={100: NEXT, 201: LOCK}), "loaders": (PAGE,)},
            "the training thread in `main`, train.py:30, for `next`; "
            "worker 201 in `__getitem__`, data.py:12, for `lock.acquire`",
        ),
    ],
    ids=["stacks", "states", "many", "page", "other ranks", "spins", "spins in its own loader"],
)
def test_where_a_hang_stands(changes: Any, where: str) -> None:
    verdict = classify(shots(30, **changes))
    assert (verdict.bound, verdict.cause, verdict.severity, verdict.advice) == (
        Bound.STALLED,
        None,
        Severity.SEVERE,
        (),
    )
    assert explanation(verdict) == f"No batch for 30 s: {where}."


@pytest.mark.parametrize(
    "changes",
    [
        {"processes": (process(), process(1, read_bytes=4096))},
        {"processes": (process(), process(1, read_calls_bytes=200))},  # the index of a batch
        {"processes": (process(cpu_s=0.5), process(1))},
        {"processes": (process(cpu_s=0.01), process(1))},  # a loop that sleeps, and is not counted
        {"loaders": (replace(PAGE, batches=1),)},
        {"devices": (replace(DEVICE, busy=1.0),)},
        {"stacks": stacks({Frame.OTHER: 1.0})},  # a notebook between two cells
        {"stacks": None, "processes": (process(),)},
        {"doing": {Doing.STOPPED: 1.0}},
        {**SPINS, "stacks": stacks({Frame.LOADER_WAIT: 0.9, Frame.FORWARD: 0.1})},
        {**SPINS, "processes": (process(cpu_s=1.5), process(1)), "stacks": STACKS},  # its threads make batches
        {**SPINS, "stacks": stacks({Frame.LOADER_INLINE: 1.0})},  # it may make batches, which nobody counts
    ],
    ids=[
        *("reads", "gets an index", "computes", "computes little", "batches", "device", "notebook", "server", "paused"),
        *("steps", "threads", "works in its loader"),
    ],
)
def test_what_does_not_hang(changes: Any) -> None:
    assert classify(shots(40, **changes)).bound is not Bound.STALLED


def test_a_hang_is_not_called_slow_storage_at_first_nor_at_last() -> None:
    worked = training(60, doing={Doing.QUEUE: 0.7, Doing.RUNNING: 0.3}, idle=None)
    verdict = classify([*worked, *shots(12)])
    assert verdict.bound is Bound.UNKNOWN
    assert verdict.reason.startswith("no batch for 12 s: ")
    hangs = classify([*worked, *shots(30)], verdict)
    assert hangs.bound is Bound.STALLED
    assert classify([*shots(30), *(snapshot(time_s=30.0 + at, idle=None) for at in range(80))], hangs).bound.sure
