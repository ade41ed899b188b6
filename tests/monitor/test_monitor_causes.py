"""Why a loader is late: one cause for each pattern of signals, and none where they do not tell."""

from dataclasses import replace
from typing import Any

import pytest
from monitor_snapshots import DEVICE, LATE, LOADER, MAIN, SYSTEM, snapshot, stacks, thread, training, worker

from iofast.meter import TrafficStats
from iofast.monitor.causes import find_cause
from iofast.monitor.findings import Bound, Cause, StallBounds, Verdict
from iofast.monitor.limits import other_than_input
from iofast.monitor.snapshot import Doing, Frame, Looks, ProcessFigures, Tier, WaitSite, WaitSource, WorkerTask
from iofast.monitor.training import Training
from iofast.monitor.verdict import classify

FED = WaitSite("/job/train.py", 92, "batches", "queue.get", WaitSource.THREADS, True, 1.0)
FULL = replace(SYSTEM, idle_cores=0.1)
SHARED = replace(FULL, other_cores=6.0, busiest="pid 7, cc1")
FAST = replace(LOADER, kind="FastLoader", num_workers=2, wait_s=0.6, batches=10)
STORED = replace(FAST, stages={"read": 1.5, "decode": 0.2})
ASKED = TrafficStats(gets=400, bytes=30_000_000, median_s=0.03, p99_s=0.2)


def workers(**changes: Any) -> dict[str, Any]:
    return {"processes": (MAIN, worker(1, **changes), worker(2, **changes))}


def busy(cpu: float = 0.95, **changes: Any) -> dict[str, Any]:
    return workers(cpu=cpu, **changes)


def at_work(**shares: float) -> dict[str, Any]:
    """Stacks of workers, by the names of what they do."""
    seen = {WorkerTask[name.upper()]: share for name, share in shares.items()}
    return {"stacks": stacks({Frame.LOADER_WAIT: 0.6, Frame.SYNC: 0.4}, workers=seen)}


CASES: dict[str, tuple[dict[str, Any], Cause | None, str]] = {
    "cores are free": (busy(), Cause.WORKERS, "idle_cores"),
    "no core is free": ({**busy(), "system": FULL}, Cause.CPU, "idle_cores"),
    "workers queue for cores": (busy(0.6, runnable_s=0.35), Cause.CPU, "runnable"),
    "other programs have them": ({**busy(0.1, runnable_s=0.8), "system": SHARED}, Cause.TAKEN, ""),
    "other programs have them, and workers sleep as well": ({**busy(0.05, runnable_s=0.4), "system": SHARED},
     Cause.TAKEN, ""),
    "other programs have them, and workers wait longer for storage": ({**busy(0.02, runnable_s=0.25), "system": SHARED},
     Cause.STORAGE, "worker_asleep"),
    "other programs have them, and workers wait for storage": ({**busy(0.15, runnable_s=0.1), "system": SHARED},
     Cause.STORAGE, "worker_asleep"),
    "other programs use a few": ({**busy(), "system": replace(FULL, other_cores=1.0)}, Cause.CPU, "idle_cores"),
    "other programs leave some": ({**busy(), "system": replace(SYSTEM, other_cores=4.0)}, Cause.WORKERS, "idle_cores"),
    "a quota": ({**busy(0.4), "system": replace(SYSTEM, throttled_s=0.5)}, Cause.CPU, "throttled"),
    "nobody knows the cores": ({**busy(), "system": replace(SYSTEM, idle_cores=None)}, None, ""),
    "asleep, as on a network": (workers(cpu=0.05), Cause.STORAGE, "worker_asleep"),
    "asleep, as in a lock": (workers(cpu=0.05, read_calls_bytes=0), None, "worker_asleep"),
    "asleep, reading": ({**workers(cpu=0.2), **at_work(read=0.8, decode=0.2)}, Cause.STORAGE, "worker_asleep"),
    "in state D": (workers(cpu=0.2, states={"D": 0.7, "R": 0.2, "S": 0.1}, read_bytes=1 << 20), Cause.STORAGE,
     "worker_disk"),
    "bytes from the disk": (workers(cpu=0.2, read_bytes=900_000), Cause.STORAGE, "uncached"),
    "from the disk again": ({**workers(cpu=0.2, read_bytes=900_000), "loaders": (replace(LOADER, epoch=2),)},
     Cause.PAGE_CACHE, "uncached"),
    "no memory for a cache": ({**workers(cpu=0.2, read_bytes=900_000),
     "system": replace(SYSTEM, memory_available=100 << 20)}, Cause.PAGE_CACHE, "memory_available"),
    "a cold mapping": (workers(cpu=0.2, states={"D": 0.7, "R": 0.2}, major_faults=200, read_bytes=9 << 20,
     read_calls_bytes=0), Cause.PAGE_CACHE, "major_faults"),
    "decodes, out of work at times": ({**busy(0.4), **at_work(decode=0.5, starved=0.5)}, Cause.WORKERS, "idle_cores"),
    "collates": ({**busy(), **at_work(collate=0.7, decode=0.3)}, Cause.COLLATE, "collate"),
    "hands over": ({**workers(cpu=0.3), **at_work(send=0.5, collate=0.1, decode=0.4)}, Cause.COLLATE, "collate"),
    "nobody works ahead": ({"loaders": (replace(FAST, num_workers=0, stages={"decode": 0.5}),), "processes": (MAIN,),
     "doing": {Doing.RUNNING: 0.6, Doing.FUTEX: 0.4}}, Cause.SINGLE, "workers"),
    "pins": ({**workers(cpu=0.2), "threads": (thread("pt_data_pin", 0.95),)}, Cause.PIN, "pin_cpu"),
    "pins little": ({**workers(cpu=0.2), "threads": (thread("pt_data_pin", 0.25),)}, Cause.STORAGE, ""),
    "pins at leisure": ({**busy(), "threads": (thread("pt_data_pin", 0.1),)}, Cause.WORKERS, "idle_cores"),
    "loads by itself": ({"processes": (MAIN,), "stacks": stacks({Frame.LOADER_INLINE: 0.6, Frame.SYNC: 0.4})},
     Cause.SINGLE, "loader_inline"),
    "loads by itself, by /proc": ({"processes": (MAIN,), "doing": {Doing.RUNNING: 0.6, Doing.FUTEX: 0.4}},
     Cause.SINGLE, "workers"),
    "threads of whom nobody knows": ({"processes": (replace(MAIN, cpu_s=0.9),), "main": Looks(20, LATE, 0.02)},
     Cause.WORKERS, "thread_cpu"),
    "threads that decode": ({"processes": (MAIN,), "loaders": (replace(FAST, stages={"read": 0.1, "decode": 1.8}),)},
     Cause.WORKERS, "read_share"),
    "threads that read, by stacks": ({"processes": (replace(MAIN, cpu_s=0.15),), "main": Looks(20, LATE, 0.02),
     **at_work(read=0.9, decode=0.1)}, Cause.STORAGE, "thread_cpu"),
    "threads that feed a loader that is watched": (  # which has stages of its own, and none of them does anything
        {
            "processes": (replace(MAIN, cpu_s=0.02),),
            "main": Looks(20, LATE, 0.02),
            "loaders": (replace(LOADER, num_workers=0, stages={"read": 0.0, "decode": 0.0}),),
            "stacks": stacks({Frame.LOADER_WAIT: 1.0}, workers={WorkerTask.READ: 1.0}, waits=(FED,)),
        },
        Cause.STORAGE,
        "thread_cpu",
    ),
    "threads without cores": ({"processes": (MAIN,),
     "loaders": (replace(FAST, stages={"read": 0.1, "decode": 1.8}),), "system": FULL}, Cause.CPU, "idle_cores"),
    "threads that wait for an object store": ({"processes": (MAIN,),
     "loaders": (replace(STORED, traffic=replace(ASKED, read=30_000_000)),)}, Cause.REMOTE, "store_answer"),
    "threads that read an object store's cache": ({"processes": (MAIN,),
     "loaders": (replace(STORED, traffic=replace(ASKED, read=900_000_000)),)}, Cause.STORAGE, "read_share"),
    "threads whose requests all fail": ({"processes": (MAIN,),
     "loaders": (replace(STORED, traffic=TrafficStats(retries=7)),)}, Cause.REMOTE, "store_retries"),
    "threads that read": ({"processes": (MAIN,), "loaders": (replace(FAST, stages={"read": 1.5, "decode": 0.2}),)},
     Cause.STORAGE, "read_share"),
    "the slowest rank": ({**busy(), "peers": {0: 0.02, 2: 0.1}}, Cause.RANK_SKEW, "rank_gap"),
    "all ranks wait": ({**busy(), "peers": {0: 0.55, 2: 0.5}}, Cause.WORKERS, "idle_cores"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_cause(name: str) -> None:
    changes, expected, evidence = CASES[name]
    cause, found = find_cause(Training(training(10, **{"doing": LATE, "idle": 0.6, **changes})))
    assert cause is expected
    assert not evidence or evidence in {one.name for one in found}


@pytest.mark.parametrize("queued", [0.7, 0.02])
def test_a_training_on_the_cpu_says_who_has_its_cores(queued: float) -> None:
    """If it is queued for them; other programs are named in any case."""
    main = Looks(20, {Doing.RUNNING: 1.0}, 1.0 - queued, queued)
    computes = stacks({Frame.FORWARD: 0.5, Frame.BACKWARD: 0.5})
    changes = {"stacks": computes, "processes": (replace(MAIN, cpu_s=1.0 - queued),), "system": SHARED}
    verdict = classify(training(doing={Doing.RUNNING: 1.0}, idle=None, main=main, **changes))
    assert (verdict.bound, verdict.cause) == (Bound.COMPUTE, Cause.TAKEN if queued > 0.1 else None)
    assert "other programs use 6.0 of 8 cores (pid 7, cc1)" in [one.text for one in verdict.evidence]
    assert ("other_programs" in [one.name for one in verdict.advice]) == (queued > 0.1)


@pytest.mark.parametrize(("high", "bound"), [(0.14, Bound.COMPUTE), (0.18, Bound.UNKNOWN)])
def test_a_stall_that_may_be_large_is_not_called_none(high: float, bound: Bound) -> None:
    """Whatever the middle of its bounds: the true stall was 15 % where these were 2 to 18 %."""
    stall = StallBounds(0.015, high, Tier.OUTSIDE, False)
    for idle in (0.16, None):
        judged = Training(training(30, doing={Doing.FUTEX: 0.9, Doing.QUEUE: 0.1}, idle=idle))
        assert other_than_input(judged, stall).bound is bound


def test_a_second_loaders_idle_workers_are_left_out() -> None:
    """Of four workers two decode; the two of the validation set wait for their turn."""
    processes = (MAIN, worker(1, 0.9), worker(2, 0.9), worker(3, 0.0), worker(4, 0.01))
    pooled = Training([snapshot(LATE, 0.6, processes=processes)] * 10)
    assert pooled.workers is not None
    assert pooled.workers.cpu == pytest.approx(0.9)
    assert find_cause(pooled)[0] is Cause.WORKERS


def test_starved_workers_are_not_at_work() -> None:
    pooled = Training([snapshot(**at_work(starved=0.9, decode=0.1))])
    assert pooled.work[WorkerTask.DECODE] == pytest.approx(1.0)
    assert Training([snapshot(**at_work(starved=1.0))]).work == {}


# --- trainings whose loader is their own: what is judged of their waits, why they wait, and what is not called idle


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
    "a thread that decodes on what other programs leave": (fed(work={WorkerTask.DECODE: 1.0}, system=SHARED),
     Cause.TAKEN),
    "a thread that decodes within a quota": (fed(work={WorkerTask.DECODE: 1.0},
     system=replace(SYSTEM, throttled_s=0.5)), Cause.CPU),
    "a thread that reads, and other programs have the cores": (fed(work={WorkerTask.READ: 0.6, WorkerTask.DECODE: 0.4},
     system=SHARED), Cause.STORAGE),
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


ON = {"idle": 0.95, "devices": (replace(DEVICE, busy=0.05),)}
SLEEPS: dict[str, dict[str, Any]] = {
    "in a log": fed(OTHERS, frame=Frame.WAITING),
    "in a timer": fed(replace(OTHERS, source=WaitSource.TIMER, call="time.sleep"), frame=Frame.WAITING, doing=A),
    "for an answer": fed(replace(OTHERS, source=WaitSource.PROCESSES, call="multiprocessing.Queue.get"),
     frame=Frame.WAITING, doing=Q, others=(FORKED,)),
    "beside PyTorch's workers": fed(replace(OTHERS, source=WaitSource.PROCESSES), frame=Frame.WAITING, doing=Q,
     others=(worker(1),)),
}  # fmt: skip
UNTOLD = ", 96% of the time, and it is unknown whether for its batches"
NAMELESS = {**fed(frame=Frame.OTHER), "stacks": stacks({Frame.OTHER: 0.96, Frame.BACKWARD: 0.04})}
WORKS = {"doing": {R: 1.0}, "processes": (replace(MAIN, cpu_s=1.0),), "main": Looks(20, {R: 1.0}, 1.0, 0.0)}
SERVES = stacks({Frame.WAITING: 1.0}, waits=(replace(OTHERS, share=1.0),))
QUICK = (replace(LOADER, exposed_s=0.0, transfer_s=0.0),)


def rests(frame: Frame) -> dict[str, Any]:
    """A loader that is known to be quick, and a thread that waits for something else, on a device that idles."""
    site = replace(OTHERS, share=0.8)
    seen = stacks({Frame.WAITING: 0.8, frame: 0.2}, 10, waits=(site,), trains=True)
    return {**fed(site, frame=Frame.WAITING, stacks=seen, idle=0.8), "loaders": QUICK}


# What was seen, the verdict, and words of its reason.
JUDGED: dict[str, tuple[dict[str, Any], Bound, str]] = {
    "late, and the device idles": ({**fed(), **ON}, Bound.INPUT, ""),
    "late, and the device works": ({**fed(), "idle": 0.02}, Bound.COMPUTE, ""),
    "hardly late": (fed(replace(LINE, share=0.01), cpu=0.99), Bound.COMPUTE, ""),
    "late, and computes nothing": (fed(cpu=0.001), Bound.INPUT, ""),
    **{f"sleeps {where}": (sleeps, Bound.UNKNOWN, UNTOLD) for where, sleeps in SLEEPS.items()},
    **{f"sleeps {where}, on a device": ({**sleeps, **ON}, Bound.UNKNOWN, UNTOLD) for where, sleeps in SLEEPS.items()},
    "sleeps, and computes nothing": (fed(OTHERS, cpu=0.001, frame=Frame.WAITING), Bound.UNKNOWN, UNTOLD),
    "serves": ({**fed(OTHERS, cpu=0.001, frame=Frame.WAITING), "stacks": SERVES}, Bound.IDLE, ""),
    "launches nothing": ({**NAMELESS, **ON}, Bound.UNKNOWN, ""),
    "launches": ({**NAMELESS, **ON, **WORKS}, Bound.LAUNCH, ""),
    "a device that idles is not blamed on lines that sync": (rests(Frame.SYNC), Bound.UNKNOWN, "train.py:12"),
    "a device that idles is not blamed on launches": (rests(Frame.FORWARD), Bound.UNKNOWN, "train.py:12"),
    "stacks do not show it": ({**fed(cpu=0.01), "stacks": None}, Bound.UNKNOWN, "Python stacks would tell"),
    "stacks do not show it, and it does nothing": ({**fed(cpu=0.0005), "stacks": None}, Bound.IDLE, ""),
}


@pytest.mark.parametrize("name", JUDGED)
def test_waits_are_judged(name: str) -> None:
    changes, bound, words = JUDGED[name]
    verdict = judged(**changes)
    assert verdict.bound is bound
    assert words in verdict.reason


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
