"""Snapshots for the tests of the monitor's verdicts: written by hand, or sampled from a simulated training."""

import bisect
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from iofast.monitor.snapshot import (
    DeviceFigures,
    Doing,
    Frame,
    Job,
    LoaderFigures,
    Looks,
    ProcessFigures,
    Snapshot,
    StackFigures,
    SystemFigures,
    ThreadFigures,
    WaitSite,
    WorkerTask,
)

JOB = Job(100, 5000, "python train.py")
SYSTEM = SystemFigures(8.0, 4.0, 0.0, 64 << 30, 0)
DEVICE = DeviceFigures(0, "GPU", "GPU-0", 0.5, None, None, None, None, None, 10 << 30, 80 << 30, (), True, 0)
MAIN = ProcessFigures(100, 5000, "main", "python", 0.5, 0.0, {"R": 0.5, "S": 0.5}, 0, 0, 0)
# States of a training thread whose batches are late, and of one that waits for its device.
LATE = {Doing.QUEUE: 0.6, Doing.FUTEX: 0.38, Doing.RUNNING: 0.02}
BUSY = {Doing.FUTEX: 0.95, Doing.RUNNING: 0.05}
LOADER = LoaderFigures("train", "watched", 2, 4, 32, "cpu", 0, 10, 320, 0.1, 0.0, None, None, {}, False, {})


def worker(number: int, cpu: float = 0.0, **changes: Any) -> ProcessFigures:
    """A loader's worker; `cpu` is its share of a second."""
    states = {"R": cpu, "S": 1.0 - cpu}
    made = ProcessFigures(200 + number, 6000, "worker", "pt_data_worker", cpu, 0.0, states, 0, 1 << 20, 0)
    return replace(made, **changes)


def workers(cpu: float, count: int = 2, **changes: Any) -> tuple[ProcessFigures, ...]:
    """The training process, and this many workers."""
    return (MAIN, *(worker(number, cpu, **changes) for number in range(count)))


def thread(name: str, cpu: float) -> ThreadFigures:
    return ThreadFigures(900, name, cpu)


def stacks(
    main: dict[Frame, float],
    looks: int = 10,
    workers: dict[WorkerTask, float] | None = None,
    waits: Sequence[WaitSite] = (),
    **changes: Any,
) -> StackFigures:
    """So many stack samples, by their shares."""
    sites = {replace(site, share=0.0): site.share for site in waits}
    return StackFigures(*(Counter(_counts(each, looks)) for each in (main, workers or {}, sites)), **changes)


def _counts(shares: dict[Any, float], looks: int) -> dict[Any, Any]:
    """Whole ones, where they are."""
    counts = {what: looks * share for what, share in shares.items()}
    return {what: round(count) if abs(count - round(count)) < 1e-9 else count for what, count in counts.items()}


def snapshot(
    doing: dict[Doing, float] | None = None, idle: float | None = 0.5, time_s: float = 1.0, **changes: Any
) -> Snapshot:
    """One second of a training with two workers, sampled 20 times. Its devices run nothing for the share `idle`."""
    doing = doing or {Doing.RUNNING: 0.5, Doing.QUEUE: 0.5}
    made = Snapshot(
        time_s=time_s,
        seconds=1.0,
        job=JOB,
        main=Looks(20, doing),
        processes=(MAIN, worker(1), worker(2)),
        threads=(),
        system=SYSTEM,
    )
    devices = changes.pop("devices", () if idle is None else (DEVICE,))
    devices = devices if idle is None else tuple(replace(one, busy=1 - idle) for one in devices)
    return replace(made, devices=devices, **changes)


def training(seconds: int = 40, **changes: Any) -> list[Snapshot]:
    """The same second, repeated."""
    return [snapshot(time_s=float(at), **changes) for at in range(seconds)]


Span = tuple[float, Doing, Frame, bool]  # seconds; state and frame of the thread; whether the device is busy


@dataclass(frozen=True)
class Simulated:
    """Snapshots of a timeline, and its true shares of stall and waits."""

    snapshots: list[Snapshot]
    stall: float
    waits: float


LOADING = frozenset({Frame.LOADER_WAIT, Frame.LOADER_INLINE})


def simulate(
    step: Callable[[random.Random], Sequence[Span]],
    rng: random.Random,
    seconds: int = 40,
    looks: Sequence[int] = (20, 0),
) -> Simulated:
    """Simulate consecutive steps and sample them like the probes.

    `looks`: jittered samples per second of the thread's state and of its stack.
    """
    spans: list[tuple[float, float, Doing, Frame, bool]] = []
    now = 0.0
    while now < seconds:
        for length, doing, frame, busy in step(rng):
            spans.append((now, now + length, doing, frame, busy))
            now += length
    stall = sum(min(b, seconds) - min(a, seconds) for a, b, _, frame, busy in spans if frame in LOADING and not busy)
    waits = sum(min(b, seconds) - min(a, seconds) for a, b, _, frame, _ in spans if frame in LOADING)
    starts = [a for a, *_ in spans]
    made = []
    for second in range(seconds):
        states = [(at, spans[_at(starts, at)]) for at in _times(second, looks[0], rng)]
        frames = [spans[_at(starts, at)][3] for at in _times(second, looks[1], rng)]
        doing = _shares([span[2] for _, span in states])
        made.append(
            snapshot(
                time_s=float(second + 1),
                main=Looks(len(states), doing),
                processes=(MAIN, worker(1), worker(2)),
                idle=_idle(second, spans),
                stacks=stacks(_shares(frames), len(frames)) if frames else None,
            )
        )
    return Simulated(made, stall / seconds, waits / seconds)


def _times(second: int, count: int, rng: random.Random) -> list[float]:
    return [second + (number + rng.random()) / count for number in range(count)]


def _at(starts: Sequence[float], at: float) -> int:
    return max(0, bisect.bisect_right(starts, at) - 1)


def _idle(second: int, spans: Sequence[Any]) -> float:
    """Share of a second in which the device is idle."""
    return min(1.0, sum(max(0.0, min(b, second + 1) - max(a, second)) for a, b, *_, busy in spans if not busy))


def _shares(seen: Sequence[Any]) -> dict[Any, float]:
    return {what: seen.count(what) / len(seen) for what in set(seen)}
