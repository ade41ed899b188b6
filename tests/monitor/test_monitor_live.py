"""Which jobs are watched: what was named, one GPU, a started program, everybody; several at once, judged in turn."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from monitor_jobs import Watcher, made

from iofast.monitor import live
from iofast.monitor.find import MonitorError
from iofast.monitor.findings import Verdict
from iofast.monitor.live import Jobs, Sources, machine
from iofast.monitor.probe.nvml import NvmlProbe
from iofast.monitor.request import Request
from iofast.monitor.snapshot import Job, Snapshot


def test_a_job_that_ended_is_remembered_and_not_watched_again() -> None:
    jobs, (job,) = Jobs(made(last=3)), made().find()
    jobs.add(job)
    jobs.add(job)
    assert len(jobs) == 1
    while len(jobs):
        jobs.next(1.0)
    jobs.add(job)
    assert len(jobs) == 0
    assert [moment.ended for moment in jobs.moments()] == [True]
    jobs.close()


def test_snapshots_that_nobody_takes_are_dropped() -> None:
    before = threading.active_count()
    jobs = Jobs(made(), window=5)
    jobs.add(*made().find())
    time.sleep(1.2)  # a hundred snapshots a second, and the queue holds 64
    taken = 0
    while jobs.next(0.0) is not None:
        taken += 1
    assert taken <= 100  # some come while they are taken
    jobs.close()
    assert threading.active_count() <= before


def test_a_verdict_stands_for_some_seconds_and_the_last_is_on_everything() -> None:
    judged: list[int] = []
    plain = made()

    def judge(snapshots: Sequence[Snapshot], before: Verdict | None) -> Verdict:
        judged.append(len(snapshots))
        return plain.judge(snapshots, before)

    jobs = Jobs(Sources(plain.find, lambda job: Watcher(job, 30), judge))
    jobs.add(*plain.find())
    for _ in range(4):
        jobs.next(1.0)
    assert judged == [1, 2, 3]  # while nothing could be said each of them, and then it stands
    jobs.settle()
    jobs.settle()
    assert judged == [1, 2, 3, 4]
    while len(jobs):
        jobs.next(1.0)
    assert 8 <= len(judged) <= 12  # every five of 30 snapshots, which are a second each
    assert judged[-1] == 30
    jobs.close()


def test_an_error_is_raised_at_first_and_later_a_note() -> None:
    class Failing(Watcher):
        def interval(self) -> Snapshot:
            if self._number == 2:
                raise PermissionError("it became another user's")
            return super().interval()

    def watch(_job: Job) -> Watcher:
        raise PermissionError("not yours")

    jobs = Jobs(Sources(made().find, watch, made().judge))
    jobs.add(*made().find())
    with pytest.raises(PermissionError, match="not yours"):
        jobs.next(2.0)
    jobs.close()
    jobs = Jobs(Sources(made().find, Failing, made().judge))
    jobs.add(*made().find())
    while len(jobs):
        jobs.next(1.0)
    assert jobs.moments()[0].ended
    assert jobs.moments()[0].snapshot.notes[-1] == "watching it failed: it became another user's"
    jobs.close()


# --- where jobs come from


JOBS = [Job(pid, 1, "python train.py") for pid in (10, 20)]


class Gpus:
    """A driver that names these processes, with their GPUs."""

    def __init__(self, gpus: dict[int, set[int]]) -> None:
        self._gpus = gpus

    def processes(self) -> dict[int, set[int]]:
        return self._gpus


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The trainings that a search finds, and the driver that there is."""
    there: dict[str, Any] = {"jobs": JOBS, "nvml": None}
    monkeypatch.setattr(live, "find_jobs", lambda _nvml, _age: there["jobs"])
    monkeypatch.setattr(NvmlProbe, "open", lambda: there["nvml"])
    return there


@pytest.fixture
def launcher() -> Iterator[tuple[int, int]]:
    """The pids of a shell and of what it started."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        below = int(shell.stdout.readline())
        yield shell.pid, below
        os.kill(below, 9)


@pytest.mark.parametrize(
    ("on", "found"),
    [
        ({10: {0}, 20: {1}}, [20]),
        ({10: {0, 1}, 20: {1}}, [10, 20]),
        ({10: {0}}, []),
        ({}, [10, 20]),  # a driver that names nobody, in a container
    ],
)
def test_those_on_one_gpu(seen: dict[str, Any], on: dict[int, set[int]], found: list[int]) -> None:
    seen["nvml"] = Gpus(on)
    assert [job.pid for job in machine(Request(gpu=1)).find()] == found


def test_a_gpu_that_cannot_be_seen(seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NvmlProbe, "note", "GPUs are not seen: the driver is not loaded")
    with pytest.raises(MonitorError, match=r"^--gpu 1: no GPU can be seen: .* is not loaded$"):
        machine(Request(gpu=1))


def test_what_was_named(seen: dict[str, Any]) -> None:
    """It is looked up once, and watched as asked: the GPU too, which in a container the driver does not name."""
    seen["nvml"] = Gpus({})
    request = Request(pids=(os.getpid(),), gpu=1, interval=0.5, stacks="off")
    made = machine(request)
    (job,) = made.find()
    assert job.pid == os.getpid()
    watch = made.watch(job)
    options = watch.options  # type: ignore[attr-defined]
    watch.close()
    assert (options.interval, options.stacks, options.gpu) == (0.5, "off", 1)
    with pytest.raises(MonitorError, match="there is no process"):
        machine(Request(pids=(2**22 - 1,)))


def test_trainings_below_a_started_program(seen: dict[str, Any], launcher: tuple[int, int]) -> None:
    """A launcher is none itself, and others' trainings are none of its."""
    assert machine(Request()).find() == JOBS, "all of this user"
    shell, below = launcher
    seen["jobs"] = [*JOBS, Job(below, 1, "python train.py")]
    assert [job.pid for job in machine(Request(), shell).find()] == [below]


def test_a_started_program_without_the_signs_of_one(
    seen: dict[str, Any], launcher: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a while it may become one, then it is watched all the same; of one that has ended there is nothing."""
    seen["jobs"] = []
    made = machine(Request(), launcher[0])
    assert made.find() == []
    monkeypatch.setattr(live, "_PROVES_ITSELF_S", 0.0)
    time.sleep(0.01)
    assert [job.pid for job in made.find()] == [launcher[0]]
    with subprocess.Popen(["true"]) as ended:
        pass
    assert machine(Request(), ended.pid).find() == []
