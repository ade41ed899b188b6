"""Snapshots of one job: looks joined with a device, loaders that report, stacks in bursts, and what watching costs."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from proc_folder import running, until

from iofast.monitor import bursts, watching
from iofast.monitor.bursts import Bursts
from iofast.monitor.find import ProcessTable, find_jobs, job_of
from iofast.monitor.probe.proc import JobEnded
from iofast.monitor.request import WatchOptions
from iofast.monitor.snapshot import (
    DeviceFigures,
    Doing,
    Frame,
    Job,
    StackFigures,
    SyncSite,
    WorkerTask,
    idle_of,
)
from iofast.monitor.watching import Watch

# --- bursts of stacks

SEEN = StackFigures(2, {Frame.SYNC: 1.0}, 1, {WorkerTask.DECODE: 1.0}, (SyncSite("train.py", 7, ".item()", 1.0),))


class StackCounts:
    """Stands for StackCounts: a number of bursts, each of which saw SEEN."""

    bursts = 1

    def add(self, other: StackCounts) -> None:
        self.bursts += other.bursts

    def figures(self) -> StackFigures:
        return replace(SEEN, looks=2 * self.bursts)


class Stacks:
    """Stands for StackProbe."""

    note = ""
    calls: ClassVar[list[list[int]]] = []

    def __init__(self, job: Job) -> None:
        Stacks.calls = []

    def burst(self, worker_pids: Collection[int], looks: int) -> StackCounts | None:
        self.calls.append(list(worker_pids))
        return None if self.note else StackCounts()

    def stop(self) -> None:
        pass


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> type[Stacks]:
    monkeypatch.setattr(bursts, "StackProbe", Stacks)
    return Stacks


def test_bursts_take_workers_in_turn(stacks: type[Stacks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "_SHORTEST_S", 0.0)
    found = Bursts(Job(1, 1, ""))
    for _ in range(4):
        found._due_at = 0.0
        found.start_if_due([7, 8, 9])
        assert until(lambda: found._running is not None and found._running.done())
        found._collect(time.monotonic())
    assert stacks.calls == [[7], [8], [9], [7]]
    assert found.take() == replace(SEEN, looks=8)
    assert found.take() is None
    found.close()


def test_bursts_keep_their_budget(stacks: type[Stacks], monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of a second in advance, then 0.9 % of a core: with looks and verdicts below 2 %."""
    spent, clock = itertools.count(), [1000.0]
    monkeypatch.setattr(bursts, "_spent_s", lambda: 0.05 * next(spent))  # before a burst and after it
    monkeypatch.setattr("iofast.monitor.bursts.random.uniform", lambda least, most: (least + most) / 2)
    monkeypatch.setattr(bursts, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    found = Bursts(Job(1, 1, ""))
    waits = []
    for _ in range(8):
        clock[0] = max(clock[0], found._due_at)
        found.start_if_due([])
        assert found._running is not None
        found._running.result(10)
        found._collect(clock[0])
        waits.append(found._due_at - clock[0])
    found.close()
    assert waits[:3] == [0.25] * 3, "the first four cost 0.2 s together"
    assert waits[6:] == pytest.approx([0.05 / 0.009] * 2)


def test_a_job_that_begins_to_do_nothing_is_looked_at_at_once(
    sleeper: Job, stacks: type[Stacks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next burst can be 30 s away, and without stacks a hang without workers is `single-process`."""
    monkeypatch.setattr(watching, "_HURRIED_S", 0.3)
    monkeypatch.setattr(bursts, "_SHORTEST_S", 1e9)
    with closing(Watch(sleeper, WatchOptions(interval=0.2))) as watch:
        assert watch._bursts is not None
        watch._bursts._due_at = 1e9
        for _ in range(6):
            watch.interval()
    assert len(stacks.calls) == 1


def test_missing_stacks_are_noted(sleeper: Job, stacks: type[Stacks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "note", "not allowed")
    with closing(Watch(sleeper, WatchOptions(interval=0.1))) as watch:
        watch.interval()
        assert "not allowed" in watch.interval().notes


# --- watching


@pytest.fixture
def sleeper() -> Iterator[Job]:
    with running("import time; print(1, flush=True); time.sleep(60)") as process:
        yield job_of(process.pid)


class Gpu:
    """Stands for NvmlProbe: one GPU, busy by half."""

    notes = ("power is not told",)

    def __init__(self, own: bool | None = True, index: int = 0) -> None:
        self.own, self.index, self.pids = own, index, frozenset[int]()

    def devices(self, pids: Collection[int], seconds: float) -> tuple[DeviceFigures, ...]:
        self.pids = frozenset(pids)
        figures: dict[str, Any] = dict.fromkeys(DeviceFigures.__dataclass_fields__)
        figures |= {
            "index": self.index,
            "name": "GPU",
            "uuid": "u",
            "busy": 0.5,
            "throttle_reasons": (),
            "own": self.own,
        }
        return (DeviceFigures(**figures),)


LOADING = """
    import ctypes, multiprocessing as m, time
    def work(queue):
        ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)
        while True:
            time.sleep(0.03)
            queue.put(1)
    if __name__ == "__main__":
        fork = m.get_context("fork")
        queue = fork.Queue()
        fork.Process(target=work, args=(queue,), daemon=True).start()
        queue.get()
        print(1, flush=True)
        while True:
            queue.get()
            time.sleep(0.01)
"""


def test_a_training_that_waits(stacks: type[Stacks]) -> None:
    """Two thirds of its time, beside a device that is idle by half; intervals follow each other without a gap."""
    with running(LOADING) as process:
        gpu: Any = Gpu()
        watch = Watch(job_of(process.pid), WatchOptions(interval=0.5), gpu)
        found = [watch.interval() for _ in range(6)]
        watch.close()
        assert found[-1].time_s - found[0].time_s == pytest.approx(sum(each.seconds for each in found[1:]))
        total = sum(each.main.samples for each in found)
        if total >= 30:  # else looks were dear here, and their share is chance
            waits = sum(each.main.samples * each.main.shares.get(Doing.QUEUE, 0.0) for each in found)
            assert waits / total == pytest.approx(0.67, abs=0.25)
        assert {idle_of(each) for each in found} == {0.5}
        assert {each.role for each in found[-1].processes} == {"main", "worker"}
        assert gpu.pids == {each.pid for each in found[-1].processes}
        assert any(each.stacks == SEEN for each in found)
        assert found[-1].notes == ("power is not told",)
        assert found[-1].main.samples >= 1


TORCH = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 1 << 30
    def __getitem__(self, index):
        return self.decode()
    def decode(self):
        time.sleep(0.05)
        return torch.zeros(4)
if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, batch in enumerate(DataLoader(Slow(), 2, num_workers=2)):
        if number == 1:
            print(1, flush=True)
        time.sleep(0.01)
"""


def test_a_real_dataloader(tmp_path: Path) -> None:
    """Two workers make a batch in 100 ms each, a step takes 10: four fifths of the time are waiting."""
    (tmp_path / "train.py").write_text(TORCH)
    runner = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    with (
        running(runner, str(tmp_path / "train.py")) as process,
        closing(Watch(job_of(process.pid), WatchOptions(interval=2.0))) as watch,
    ):
        assert process.pid in {job.pid for job in find_jobs()}
        first = last = watch.interval()
        for _ in range(8):  # a burst takes three seconds, and its start some more
            if last.stacks is None and not any("stacks" in note for note in last.notes):
                last = watch.interval()
    assert [each.role for each in first.processes] == ["main", "worker", "worker"]
    assert {each.name for each in first.processes[1:]} == {"pt_data_worker"}
    assert first.main.shares[Doing.QUEUE] > 0.4
    assert idle_of(first) is None
    if last.stacks is None and last.notes:
        pytest.skip("; ".join(last.notes))  # no py-spy, or not the right to look
    assert last.stacks is not None
    assert last.stacks.looks >= 10
    assert last.stacks.worker_looks >= 10
    assert last.stacks.main.get(Frame.LOADER_WAIT, 0.0) > 0.45, "0.8 of twenty looks; less by chance once in a thousand"
    assert last.stacks.workers.get(WorkerTask.DECODE, 0.0) > 0.7, last.stacks
    assert sum(last.stacks.main.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("own", "index", "option", "idle"),
    [(None, 0, None, 0.5), (False, 0, None, None), (False, 1, 1, 0.5), (True, 0, 1, None)],
)
def test_whose_device(sleeper: Job, own: bool | None, index: int, option: int | None, idle: float | None) -> None:
    gpu: Any = Gpu(own, index)
    with closing(Watch(sleeper, WatchOptions(interval=0.2, stacks="off", gpu=option), gpu)) as watch:
        snapshots = [watch.interval(), watch.interval()]
    assert {idle_of(each) for each in snapshots} == {idle}


def test_paused_and_ended(sleeper: Job) -> None:
    with closing(Watch(sleeper, WatchOptions(interval=0.2, stacks="off"))) as watch:
        os.kill(sleeper.pid, signal.SIGSTOP)
        watch.interval()
        assert watch.interval().main.shares == {Doing.STOPPED: 1.0}
        os.kill(sleeper.pid, signal.SIGKILL)
        with pytest.raises(JobEnded):
            watch.interval()


def test_a_container_of_its_own() -> None:
    """Processes are seen from the machine; pages name other pids, so that is said instead of looking for them."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c"]
    program = [*command, "import time; print(1, flush=True); time.sleep(60)"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            pytest.skip("this user may not make a pid namespace")
        (inside,) = ProcessTable(os.geteuid()).below(process.pid)
        watch = Watch(job_of(inside), WatchOptions(interval=0.2, stacks="off"))
        watch.interval()  # it may not sleep yet at the first look
        snapshot = watch.interval()
        watch.close()
        process.kill()
    assert snapshot.main.shares == {Doing.ASLEEP: 1.0}
    assert any("container of its own" in note for note in snapshot.notes)


def test_a_late_caller_gets_a_whole_interval(sleeper: Job) -> None:
    with closing(Watch(sleeper, WatchOptions(interval=0.2, stacks="off"))) as watch:
        time.sleep(0.5)
        start = time.monotonic()
        snapshot = watch.interval()
    assert snapshot.time_s - start >= 0.2
    assert snapshot.seconds >= 0.7
    assert snapshot.main.samples <= 4


def test_missed_looks_are_not_made_up_for(sleeper: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    with closing(Watch(sleeper, WatchOptions(interval=0.2, stacks="off"))) as watch:
        monkeypatch.setattr(watch, "_look", lambda number: looks.append(number) or time.sleep(0.3))
        watch.interval()
    assert looks == [0]


def test_expensive_looks_become_rare(sleeper: Job) -> None:
    with closing(Watch(sleeper, WatchOptions(stacks="off"))) as watch:
        assert watch._rate() == 20
        watch._look_s, watch._snapshot_s = 0.001, 0.002
        assert watch._rate() == pytest.approx(4)  # what 0.6 % of a core leave beside a snapshot
        watch._look_s = 1.0
        assert watch._rate() == 2
