"""Where the command gets jobs from: what was named, one GPU, a started program, everybody."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from iofast.monitor import sources
from iofast.monitor.find import MonitorError
from iofast.monitor.probe.nvml import NvmlProbe
from iofast.monitor.request import Request
from iofast.monitor.snapshot import Job
from iofast.monitor.sources import machine

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
    monkeypatch.setattr(sources, "find_jobs", lambda _nvml, _age: there["jobs"])
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


def test_all_of_this_user(seen: dict[str, Any]) -> None:
    assert machine(Request()).find() == JOBS


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
    monkeypatch.setattr(sources, "_PROVES_ITSELF_S", 0.0)
    time.sleep(0.01)
    assert [job.pid for job in made.find()] == [launcher[0]]
    with subprocess.Popen(["true"]) as ended:
        pass
    assert machine(Request(), ended.pid).find() == []
