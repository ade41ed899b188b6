"""Trainings whose loader is their own: what is judged of their waits, why they wait, and what is not called idle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from monitor_snapshots import DEVICE, LOADER, MAIN, SYSTEM, stacks, training, worker

from iofast.monitor.findings import Bound, Cause, Verdict
from iofast.monitor.snapshot import Doing, Frame, Looks, ProcessFigures, WaitSite, WaitSource, WorkerTask
from iofast.monitor.verdict import classify

R, Q, X, A = Doing.RUNNING, Doing.QUEUE, Doing.FUTEX, Doing.ASLEEP
LINE = WaitSite("/u/train.py", 41, "batches", "queue.get", WaitSource.THREADS, True, 0.96)
SAID = "the training thread waits in `batches`, train.py:41, for `queue.get`, 96% of the time"
OTHERS = WaitSite("/u/train.py", 12, "main", "queue.put", WaitSource.THREADS, False, 0.96)
CHILD = ProcessFigures(300, 1, "other", "feeder", 0.9, 0.0, {"R": 1.0}, 0, 0, 0)
FORKED = worker(1, 0.02, name="python")


def fed(
    site: WaitSite = LINE, cpu: float = 0.07, frame: Frame = Frame.LOADER_WAIT, doing: Doing = X, **changes: Any
) -> dict[str, Any]:
    """A process without PyTorch's workers whose training thread is at this line most of the time."""
    rest = 1.0 - site.share
    seen = stacks({frame: site.share, Frame.BACKWARD: rest}, 10, changes.pop("work", None), waits=(site,), trains=True)
    return {
        "processes": (replace(MAIN, cpu_s=cpu), *changes.pop("others", ())),
        "main": Looks(20, {doing: site.share, R: rest}, cpu_s=min(cpu, 0.05), runnable_s=0.0),
        "doing": {doing: site.share, R: rest},
        "idle": None,
        "stacks": seen,
        **changes,
    }


def judged(**changes: Any) -> Verdict:
    return classify(training(**changes))


CAUSES: dict[str, tuple[dict[str, Any], Cause]] = {
    "a thread asleep": (fed(), Cause.STORAGE),
    "a thread that reads": (fed(cpu=0.8, work={WorkerTask.READ: 0.9, WorkerTask.DECODE: 0.1}), Cause.STORAGE),
    "a thread that decodes": (fed(cpu=0.9, work={WorkerTask.DECODE: 1.0}), Cause.WORKERS),
    "a thread that decodes at times": (fed(cpu=0.35, work={WorkerTask.DECODE: 1.0}), Cause.WORKERS),
    "a thread that decodes beside a child": (fed(cpu=0.9, work={WorkerTask.DECODE: 1.0}, others=(FORKED,)),
     Cause.WORKERS),
    "threads, and no cores": (fed(cpu=1.9, system=replace(SYSTEM, idle_cores=0.1)), Cause.CPU),
    "a child": (fed(replace(LINE, source=WaitSource.PROCESSES), doing=Q, others=(FORKED,)), Cause.STORAGE),
    "a busy child": (fed(replace(LINE, source=WaitSource.PROCESSES), doing=Q, others=(replace(FORKED, cpu_s=0.95),)),
     Cause.WORKERS),
    "a pool of processes": (fed(replace(LINE, source=WaitSource.THREADS), others=(FORKED,)), Cause.STORAGE),
    "a pool of threads": (fed(replace(LINE, source=WaitSource.PROCESSES), cpu=0.9, work={WorkerTask.DECODE: 1.0}),
     Cause.WORKERS),
    "a socket": (fed(replace(LINE, source=WaitSource.SOCKET, call="zmq.Socket.recv"), doing=Q), Cause.FEEDER),
    "a socket of a busy child": (fed(replace(LINE, source=WaitSource.SOCKET), doing=Q, others=(CHILD,)), Cause.WORKERS),
    "a socket beside a child asleep": (fed(replace(LINE, source=WaitSource.SOCKET), doing=Q,
     others=(replace(CHILD, cpu_s=0.01),)), Cause.FEEDER),
    "an event loop": (fed(replace(LINE, source=WaitSource.EVENTS), doing=Q), Cause.STORAGE),
    "asleep in line": (fed(replace(LINE, source=WaitSource.TIMER), frame=Frame.LOADER_INLINE, doing=A), Cause.SINGLE),
    "reading in line": (fed(replace(LINE, source=WaitSource.FILE), frame=Frame.LOADER_INLINE, doing=Doing.DISK),
     Cause.SINGLE),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_a_loader_of_its_own_is_late(name: str) -> None:
    changes, cause = CAUSES[name]
    verdict = judged(**changes)
    assert (verdict.bound, verdict.cause) == (Bound.INPUT, cause)
    assert verdict.stall is not None
    assert verdict.stall.low <= 0.96 <= verdict.stall.high
    assert verdict.stall.low > 0.8
    assert verdict.waits is not None
    assert verdict.waits.line == 41
    assert "train.py:41" in next(one.text for one in verdict.evidence if one.name == "waits_at")


def test_the_line_is_named() -> None:
    verdict = judged(**fed())
    assert SAID in [one.text for one in verdict.evidence]
    inline = judged(**fed(replace(LINE, source=WaitSource.NONE, call=""), frame=Frame.LOADER_INLINE, doing=R))
    assert "makes its batches in `batches`, train.py:41, 96%" in inline.evidence[1].text


def test_with_a_device() -> None:
    """The same where a GPU idles meanwhile, and where it does not."""
    starved = judged(**{**fed(), "idle": 0.95, "devices": (replace(DEVICE, busy=0.05),)})
    assert (starved.bound, starved.cause) == (Bound.INPUT, Cause.STORAGE)
    busy = judged(**{**fed(), "idle": 0.02, "devices": (replace(DEVICE, busy=0.98),)})
    assert busy.bound is Bound.COMPUTE


SLEEPS: dict[str, dict[str, Any]] = {
    "in a log": fed(OTHERS, frame=Frame.WAITING),
    "in a timer": fed(replace(OTHERS, source=WaitSource.TIMER, call="time.sleep"), frame=Frame.WAITING, doing=A),
    "for an answer": fed(replace(OTHERS, source=WaitSource.PROCESSES, call="multiprocessing.Queue.get"),
     frame=Frame.WAITING, doing=Q, others=(FORKED,)),
    "beside PyTorch's workers": fed(replace(OTHERS, source=WaitSource.PROCESSES), frame=Frame.WAITING, doing=Q,
     others=(worker(1),)),
}  # fmt: skip


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("name", SLEEPS)
def test_what_cannot_be_told_is_unknown_with_its_line(name: str, device: bool) -> None:
    on = {"idle": 0.95, "devices": (replace(DEVICE, busy=0.05),)} if device else {}
    verdict = judged(**{**SLEEPS[name], **on})
    assert verdict.bound is Bound.UNKNOWN
    assert "main`, train.py:12" in verdict.reason
    assert "it is unknown whether for its batches" in verdict.reason


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("doing", [X, A, Q])
def test_a_process_that_sleeps_computes_nothing(doing: Doing, seen: bool) -> None:
    """Also where no stack names what it sleeps in, and without stacks at all."""
    changes = fed(frame=Frame.OTHER, doing=doing)
    changes["stacks"] = stacks({Frame.OTHER: 0.96, Frame.BACKWARD: 0.04}) if seen else None
    for others in ((), (worker(1, name="python"),), (worker(1, 0.9),)):
        verdict = judged(**{**changes, "processes": (changes["processes"][0], *others)})
        assert verdict.bound is not Bound.COMPUTE
        assert (verdict.bound is Bound.INPUT) <= (doing is Q and others == (worker(1, 0.9),)), "a queue of PyTorch's"
    if seen and doing is X:
        assert "sleeps 93% of the time" in judged(**changes).reason


@pytest.mark.parametrize("frame", [Frame.SYNC, Frame.FORWARD])
def test_an_idle_device_is_not_blamed_on_the_rest_of_a_step(frame: Frame) -> None:
    """The loader is known to be quick, and the thread waits for something else most of the time."""
    site = replace(OTHERS, share=0.8)
    seen = stacks({Frame.WAITING: 0.8, frame: 0.2}, 10, waits=(site,), trains=True)
    loader = replace(LOADER, exposed_s=0.0, transfer_s=0.0)
    changes = fed(site, frame=Frame.WAITING, stacks=seen, idle=0.8, devices=(replace(DEVICE, busy=0.2),))
    verdict = judged(**changes, loaders=(loader,))
    assert verdict.bound is Bound.UNKNOWN
    assert "train.py:12" in verdict.reason


def test_a_process_that_sleeps_launches_nothing() -> None:
    changes = {**fed(frame=Frame.OTHER), "stacks": stacks({Frame.OTHER: 0.96, Frame.BACKWARD: 0.04})}
    on = {"idle": 0.95, "devices": (replace(DEVICE, busy=0.05),)}
    assert judged(**{**changes, **on}).bound is Bound.UNKNOWN
    at_work = {**changes, **on, "doing": {R: 1.0}, "processes": (replace(MAIN, cpu_s=1.0),)}
    assert judged(**{**at_work, "main": Looks(20, {R: 1.0}, 1.0, 0.0)}).bound is Bound.LAUNCH


def test_a_loop_that_waits_is_not_idle() -> None:
    """However little it computes; nor is one whose wait cannot be told. A server is."""
    assert judged(**fed(cpu=0.001)).bound is Bound.INPUT
    assert judged(**fed(OTHERS, cpu=0.001, frame=Frame.WAITING)).bound is Bound.UNKNOWN
    server = fed(OTHERS, cpu=0.001, frame=Frame.WAITING)
    server["stacks"] = stacks({Frame.WAITING: 1.0}, waits=(replace(OTHERS, share=1.0),))
    assert judged(**server).bound is Bound.IDLE
    for cpu, bound in ((0.01, Bound.UNKNOWN), (0.0005, Bound.IDLE)):
        unseen = judged(**{**fed(cpu=cpu), "stacks": None})
        assert unseen.bound is bound, "a process that stacks do not show"
    assert "Python stacks would tell" in judged(**{**fed(cpu=0.01), "stacks": None}).reason
