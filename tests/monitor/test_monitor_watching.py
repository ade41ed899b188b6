"""Snapshots of one job: looks, a device, loaders that report, stacks, the cost of watching; real trainings judged."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from monitor_snapshots import DEVICE
from proc_folder import running

from iofast.monitor.find import ProcessTable, find_jobs, job_of
from iofast.monitor.probe.states import Gone
from iofast.monitor.request import WatchOptions
from iofast.monitor.snapshot import (
    DeviceFigures,
    Doing,
    Frame,
    Job,
    StackFigures,
    WorkerTask,
    idle_of,
)
from iofast.monitor.watching import Watch

SEEN = StackFigures(Counter({Frame.SYNC: 2}), Counter({WorkerTask.DECODE: 1}))


class Stacks:
    """Stands for StackProbe."""

    note = ""
    hurried = 0
    look = close = lambda *_: None

    def __init__(self, job: Job, *, wanted: bool) -> None:
        pass

    def hurry(self) -> None:
        type(self).hurried += 1

    def take(self) -> StackFigures | None:
        return None if self.note else SEEN


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> type[Stacks]:
    monkeypatch.setattr("iofast.monitor.watching.StackProbe", Stacks)
    return Stacks


def test_missing_stacks_are_noted(sleeper: Job, stacks: type[Stacks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "note", "not allowed")
    with closing(Watch(sleeper, WatchOptions(interval=0.1))) as watch:
        watch.interval()
        assert "not allowed" in watch.interval().notes


def test_a_job_that_begins_to_do_nothing_is_looked_at_once_more(
    sleeper: Job, stacks: type[Stacks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next burst can be 30 s away, and without stacks a hang without workers is `single-process`."""
    monkeypatch.setattr(stacks, "hurried", 0)
    monkeypatch.setattr("iofast.monitor.watching._HURRIED_S", 0.3)
    with closing(Watch(sleeper, WatchOptions(interval=0.2))) as watch:
        for _ in range(6):
            watch.interval()
    assert stacks.hurried == 1


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
        return (replace(DEVICE, index=self.index, own=self.own),)


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
    (tmp_path / "train.py").write_text(TORCH)  # stacks need a file
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
    assert (made := last.stacks.workers.total()) >= 10
    waits = last.stacks.main[Frame.LOADER_WAIT]
    assert waits > 0.45 * last.stacks.looks, "0.8 of twenty looks; less by chance once in a thousand"
    assert last.stacks.workers[WorkerTask.DECODE] > 0.7 * made, last.stacks


@pytest.mark.parametrize(
    ("own", "index", "option", "idle"),
    [(None, 0, None, 0.5), (False, 0, None, None), (False, 1, 1, 0.5), (True, 0, 1, None)],
)
def test_whose_device(sleeper: Job, own: bool | None, index: int, option: int | None, idle: float | None) -> None:
    gpu: Any = Gpu(own, index)
    with closing(Watch(sleeper, WatchOptions(interval=0.2, stacks="off", gpu=option), gpu)) as watch:
        snapshots = [watch.interval(), watch.interval()]
    assert {idle_of(each) for each in snapshots} == {idle}
    assert gpu.pids == {sleeper.pid}
    assert {each.notes for each in snapshots} == {gpu.notes}
    assert snapshots[1].time_s - snapshots[0].time_s == pytest.approx(snapshots[1].seconds), "without a gap"


def test_paused_and_ended(sleeper: Job) -> None:
    with closing(Watch(sleeper, WatchOptions(interval=0.2, stacks="off"))) as watch:
        os.kill(sleeper.pid, signal.SIGSTOP)
        watch.interval()
        assert watch.interval().main.shares == {Doing.STOPPED: 1.0}
        os.kill(sleeper.pid, signal.SIGKILL)
        with pytest.raises(Gone):
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


def test_expensive_looks_become_rare(sleeper: Job) -> None:
    with closing(Watch(sleeper, WatchOptions(stacks="off"))) as watch:
        assert watch._rate() == 20
        watch._look_s, watch._snapshot_s = 0.001, 0.002
        assert watch._rate() == pytest.approx(4)  # what 0.6 % of a core leave beside a snapshot
        watch._look_s = 1.0
        assert watch._rate() == 2


# --- the command beside training programs on a real GPU; the same programs on the CPU among the slow tests


TRAINING = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from iofast import watch

class Images(Dataset):
    def __len__(self):
        return 1 << 30
    def __getitem__(self, index):
        time.sleep(SECONDS)
        return torch.zeros(3, 64, 64)

if __name__ == "__main__":
    device, SECONDS, products = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    matrix = torch.ones(*[4096 if device == "cuda" else 512] * 2, device=device)
    for number, images in enumerate(watch(DataLoader(Images(), batch_size=4, num_workers=1), device=device)):
        images = images.to(device)
        for _ in range(products):
            matrix = (matrix @ matrix).clamp_(0, 1)
        if number == 2:
            print("on", flush=True)
"""
DEVICES = [pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("cpu", marks=pytest.mark.slow)]


def judged(device: str, seconds: float, products: int) -> dict[str, Any]:
    """What `iofast monitor --once --json` says of a training: a sample takes `seconds`, a step so many products."""
    with running(TRAINING, device, str(seconds), str(products)) as training:
        monitor = [sys.executable, "-m", "iofast", "monitor", "--once", "--json", "--pid", str(training.pid)]
        said = subprocess.run(monitor, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_a_training_that_is_starved_and_one_that_computes(device: str) -> None:
    """On a GPU its figures are there; whose it is the driver may not say in a container."""
    starved = judged(device, 0.02, 1)
    assert (starved["verdict"], starved["cause"], starved["tier"]) == ("input-bound", "storage", "inside")
    assert starved["stall"]["host_wait"] is (device == "cpu")
    assert 0.5 < starved["stall"]["low"] == starved["stall"]["high"]
    computes = judged(device, 0.0, 40)
    assert computes["verdict"] in ("compute-bound", "memory-bound", "throttled")  # a GPU may be held at its power limit
    assert computes["stall"]["high"] < 0.1
    for found in (starved, computes) if device == "cuda" else ():
        assert [one["busy"] for one in found["devices"] if one["own"] is not False and one["busy"] is not None]
