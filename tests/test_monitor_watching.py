"""Snapshots of one job: looks joined with a device, loaders that report, stacks in bursts, and what watching costs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from proc_folder import running, until

from iofast import telemetry
from iofast.errors import OptionError
from iofast.monitor import bursts
from iofast.monitor.bursts import Bursts, together
from iofast.monitor.find import MonitorError, job_of
from iofast.monitor.probe.pages import PagesProbe, difference
from iofast.monitor.probe.proc import JobEnded, Look
from iofast.monitor.snapshot import (
    DeviceFigures,
    Doing,
    Frame,
    Job,
    LoaderFigures,
    StackFigures,
    SyncSite,
    Window,
    Work,
)
from iofast.monitor.watching import Watch, WatchOptions
from iofast.monitor.windows import Loading, Windows, waits
from iofast.telemetry import Figures, LoaderInfo, LoaderReport, Slot, StageStats

PROCESSES, THREADS, NEITHER = Loading(True, False), Loading(False, True), Loading(False, False)


@dataclass(frozen=True)
class Reading:
    time_s: float
    seconds: float
    busy: float


# --- what counts as waiting


@pytest.mark.parametrize(
    ("look", "loading", "bounds"),
    [
        (Look(0, Doing.QUEUE), PROCESSES, (True, True)),
        (Look(0, Doing.QUEUE), THREADS, (False, True)),
        (Look(0, Doing.FUTEX), PROCESSES, (False, True)),
        (Look(0, Doing.FUTEX), THREADS, (False, True)),
        (Look(0, Doing.FUTEX, backward=True), PROCESSES, (False, False)),
        (Look(0, Doing.RUNNING), PROCESSES, (False, False)),
        (Look(0, Doing.ASLEEP), PROCESSES, (False, False)),
        (Look(0, Doing.ASLEEP, blind=True), PROCESSES, (False, True)),
        (Look(0, Doing.STOPPED), PROCESSES, (False, False)),
        (Look(0, Doing.RUNNING), NEITHER, (False, True)),
        (Look(0, Doing.DISK), NEITHER, (False, True)),
        (Look(0, Doing.QUEUE), NEITHER, (False, True)),
        (Look(0, Doing.FUTEX), NEITHER, (False, True)),
        (Look(0, Doing.FUTEX), NEITHER._replace(busy_threads=False), (False, False)),
        (Look(0, Doing.STOPPED), NEITHER, (False, False)),
    ],
)
def test_bounds_of_waiting(look: Look, loading: Loading, bounds: tuple[bool, bool]) -> None:
    assert waits(look, loading) == bounds


# --- windows


def looks(*times: float, doing: Doing = Doing.QUEUE) -> list[Look]:
    return [Look(each, doing) for each in times]


def test_a_window_for_each_reading() -> None:
    windows = Windows()
    windows.add([*looks(0.1, 0.3), *looks(0.6, 0.9, doing=Doing.RUNNING)], 1.0, PROCESSES)
    assert windows.take([Reading(1.0, 0.5, 0.9), Reading(0.5, 0.5, 0.2)], None, 1.0) == (
        Window(0.5, 1.0, 1.0, pytest.approx(0.8), 2, {Doing.QUEUE: 1.0}),
        Window(0.5, 0.0, 0.0, pytest.approx(0.1), 2, {Doing.RUNNING: 1.0}),
    )


def test_looks_wait_for_their_reading() -> None:
    windows = Windows()
    windows.add(looks(0.1, 0.8), 1.0, PROCESSES)
    assert [each.idle for each in windows.take([Reading(0.5, 0.5, 0.0)], None, 1.0)] == [1.0]
    windows.add(looks(1.2), 1.0, PROCESSES)
    found = windows.take([Reading(1.0, 0.5, 1.0), Reading(1.5, 0.5, 0.5)], None, 2.0)
    assert [(each.seconds, each.idle) for each in found] == [(0.5, 0.0), (1.0, 0.5)]


def test_readings_that_do_not_come_and_gaps_between_them() -> None:
    windows = Windows()
    windows.add(looks(0.1, 0.45, 0.9), 1.0, PROCESSES)
    found = windows.take([Reading(0.2, 0.2, 1.0), Reading(1.0, 0.2, 0.0)], None, 1.0)
    assert [(each.idle, each.looks) for each in found] == [(0.0, 1), (None, 1), (1.0, 1)]
    windows.add(looks(1.5), 1.0, PROCESSES)
    assert windows.take([], None, 2.0) == ()
    assert [each.idle for each in windows.take([], None, 9.0)] == [None]


def test_without_readings_the_interval_has_one_share() -> None:
    windows = Windows()
    windows.add(looks(0.01, 0.1, 0.3, 0.6), 1.0, PROCESSES)
    found = windows.take(None, 0.4, 1.0)
    assert [(each.idle, each.looks) for each in found] == [(0.4, 2), (0.4, 1), (0.4, 1)]
    assert sum(each.seconds for each in found) == pytest.approx(1.0)


def test_seconds_of_windows_add_up_for_hours() -> None:
    windows, total = Windows(), 0.0
    for second in range(3600):
        windows.add(looks(*(second + at / 20 for at in range(20))), 1.0, PROCESSES)
        readings = [Reading(second + at / 6 - 0.1, 1 / 6, 0.5) for at in range(1, 7)]
        total += sum(each.seconds for each in windows.take(readings, None, second + 1.0))
    assert total == pytest.approx(3600, abs=1)
    assert len(windows._looks) < 20
    assert len(windows._readings) < 20


# --- telemetry pages

BEFORE = Figures(2, 5, 80, 9, 9_000_000_000, 900_000_000, 10, 100, 1_000, 1)


def report(figures: Figures, serial: int = 1, device: str = "cuda:0", **stages: StageStats) -> LoaderReport:
    info = LoaderInfo("train", "FastLoader", 4, 8, 16, device)
    return LoaderReport(serial, info, figures, stages)


def test_difference_of_reports() -> None:
    now = Figures(2, 9, 144, 13, 11_000_000_000, 1_900_000_000, 10, 500_000_100, 2_000_001_000, 2)
    then = report(BEFORE, read=StageStats(work_s=1.0), transfer=StageStats(work_s=0.5), decode=StageStats(failed=1))
    after = report(now, read=StageStats(work_s=1.5), transfer=StageStats(work_s=0.6), decode=StageStats(failed=3))
    found = difference(then, after)
    assert (found.batches, found.steps, found.images, found.step_s, found.wait_s) == (4, 4, 64, 0.5, 1.0)
    assert (found.exposed_s, found.device_step_s) == (0.5, 2.0)
    assert (found.stages["read"], found.transfer_s, found.failed) == (0.5, pytest.approx(0.1), 2)
    assert (found.name, found.kind, found.num_workers, found.epoch) == ("train", "FastLoader", 4, 2)


@pytest.mark.parametrize(
    ("now", "batches"),
    [
        (BEFORE, 0),
        (BEFORE._replace(batch=6, steps=10), 1),
        (BEFORE._replace(epoch=3, batch=2, steps=13), 5),  # three and one of the old one, one step and a first
        (BEFORE._replace(epoch=3, batch=1), 1),
        (BEFORE._replace(epoch=9, batch=1, steps=9), 7),  # epochs of one batch
        (BEFORE._replace(epoch=0, batch=2, steps=10), 2),  # epochs are set by the user
        (BEFORE._replace(epoch=2, batch=2, steps=10), 2),
    ],
)
def test_batches_over_epochs(now: Figures, batches: int) -> None:
    assert difference(report(BEFORE), report(now)).batches == batches


@pytest.fixture
def own_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    telemetry.close_page()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("iofast.monitor.probe.pages._SEARCH_S", 0.0)
    yield job_of(os.getpid())
    telemetry.close_page()


def test_train_and_validation(own_pages: Job) -> None:
    """The one that advanced is live; one that is closed is gone; a page that comes later is found."""
    probe = PagesProbe(own_pages)
    assert probe.take() == ()
    train, valid = Slot(LoaderInfo("train")), Slot(LoaderInfo("valid"))
    train.write(BEFORE)
    assert live(probe.take()) == {"train": 10}
    train.write(BEFORE._replace(steps=12, batch=8, updated_ns=2))
    assert live(probe.take()) == {"train": 3}
    valid.write(Figures(0, 4, 8, 3, 5, 5, 5, 0, 0, 3))
    found = probe.take()
    assert live(found) == {"valid": 4}
    assert [(each.name, each.batches) for each in found] == [("train", 0), ("valid", 4)]
    assert live(probe.take()) == {"valid": 0}  # nobody advanced: the one that did last
    valid.close()
    assert live(probe.take()) == {"train": 0}
    train.close()
    assert probe.take() == ()


def live(found: tuple[LoaderFigures, ...]) -> dict[str, int]:
    return {each.name: each.batches for each in found if each.live}


def test_what_was_before_does_not_count(own_pages: Job) -> None:
    slot = Slot(LoaderInfo("train"))
    slot.write(BEFORE)
    probe = PagesProbe(own_pages)
    assert live(probe.take()) == {"train": 0}
    slot.write(BEFORE._replace(steps=2, step_ns=5, updated_ns=9))  # totals fell: another loader of that number
    (found,) = probe.take()
    assert (found.batches, found.step_s, found.wait_s) == (0, None, 0.0)
    slot.close()


def test_peers_by_pages(own_pages: Job) -> None:
    program = """
        import time
        from iofast.telemetry import Figures, LoaderInfo, Slot
        slot = Slot(LoaderInfo("train", rank=1, world_size=2))
        for turn in (1, 2):
            slot.write(Figures(0, turn, turn, turn, turn * 1000, turn * 250, 1, 0, 0, turn))
            print(turn, flush=True)
            input()
    """
    mine = Slot(LoaderInfo("train", rank=0, world_size=2))
    mine.write(BEFORE)
    probe = PagesProbe(own_pages)
    assert (probe.rank, probe.world_size) == (0, 2)
    with running(program) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert probe.peers() == {}
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "2\n"
        assert probe.peers() == {1: 0.25}
    mine.close()


# --- bursts of stacks


class Stacks:
    """Stands for StackProbe: says what the test gave it."""

    note = ""
    given: StackFigures | None = None
    calls: ClassVar[list[list[int]]] = []

    def __init__(self, job: Job) -> None:
        Stacks.calls = []

    def burst(self, worker_pids: Collection[int], looks: int) -> StackFigures | None:
        self.calls.append(list(worker_pids))
        return self.given


SEEN = StackFigures(2, {Frame.SYNC: 1.0}, 1, {Work.DECODE: 1.0}, (SyncSite("train.py", 7, ".item()", 1.0),))


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> type[Stacks]:
    monkeypatch.setattr(bursts, "StackProbe", Stacks)
    monkeypatch.setattr(Stacks, "given", SEEN)
    return Stacks


def test_bursts_together() -> None:
    other = StackFigures(6, {Frame.FORWARD: 0.5, Frame.SYNC: 0.5}, 0, {}, convolutions=True)
    found = together([SEEN, other])
    assert found is not None
    assert (found.looks, found.worker_looks, found.workers) == (8, 1, {Work.DECODE: 1.0})
    assert found.main == {Frame.SYNC: pytest.approx(0.625), Frame.FORWARD: pytest.approx(0.375)}
    assert found.syncs == (SyncSite("train.py", 7, ".item()", 0.25),)
    assert found.convolutions
    assert together([]) is None
    assert together([SEEN]) is SEEN


def test_bursts_take_workers_in_turn(stacks: type[Stacks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "_SHORTEST_S", 0.0)
    found = Bursts(Job(1, 1, ""))
    for _ in range(4):
        found._due_at = 0.0
        found.start_if_due([7, 8, 9])
        assert until(lambda: found._running is not None and found._running.done())
        found._collect(time.monotonic())
    assert stacks.calls == [[7], [8], [9], [7]]
    taken = found.take()
    assert taken is not None
    assert taken.looks == 8
    assert found.take() is None
    found.close()


def test_bursts_keep_their_budget(stacks: type[Stacks], monkeypatch: pytest.MonkeyPatch) -> None:
    costs = iter([10.0, 10.05])
    monkeypatch.setattr(bursts, "_spent_s", lambda: next(costs))
    found = Bursts(Job(1, 1, ""))
    found.start_if_due([])
    assert until(lambda: found._running is not None and found._running.done())
    found._collect(1000.0)
    assert 0.05 / 0.02 * 0.5 < found._due_at - 1000 < 0.05 / 0.017 * 1.51
    found.close()


def test_stacks_that_cannot_be_had(stacks: type[Stacks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "given", None)
    monkeypatch.setattr(stacks, "note", "not allowed")
    with running("import time; print(1, flush=True); time.sleep(60)") as process:
        watch = Watch(job_of(process.pid), WatchOptions(0.1))
        watch.interval()
        assert "not allowed" in watch.interval().notes
        watch.close()
        watch = Watch(job_of(process.pid), WatchOptions(0.1, stacks="on"))
        with pytest.raises(MonitorError, match="not allowed"):
            watch.interval()
        watch.close()


# --- watching


@pytest.mark.parametrize(
    "wrong",
    [{"interval": 0}, {"interval": float("nan")}, {"rate": 21}, {"rate": 0}, {"stacks": "maybe"}, {"device": -1}],
)
def test_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        WatchOptions(**wrong)


class Gpu:
    """Stands for NvmlProbe: one GPU, busy by half, with a reading every 100 ms."""

    notes = ("power is not told",)

    def __init__(self, own: bool | None = True, index: int = 0) -> None:
        self.own, self.index, self.pids = own, index, frozenset[int]()

    def devices(self, pids: Collection[int], seconds: float) -> tuple[DeviceFigures, ...]:
        self.pids = frozenset(pids)
        unknown: dict[str, Any] = dict.fromkeys(DeviceFigures.__dataclass_fields__)
        unknown |= {
            "index": self.index,
            "name": "GPU",
            "uuid": "u",
            "busy": 0.5,
            "throttle_reasons": (),
            "own": self.own,
        }
        return (DeviceFigures(**unknown),)

    def readings(self, index: int, since: float, uuid: str | None = None) -> list[Reading]:
        assert (index, uuid) == (self.index, "u")
        first = int(max(since, time.monotonic() - 3) * 10) + 1
        return [Reading(at / 10, 0.1, 0.5) for at in range(first, int(time.monotonic() * 10) + 1)]


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
    """Two thirds of its time, beside a device that is idle by half; nothing drifts, and it costs next to nothing."""
    with running(LOADING) as process:
        gpu: Any = Gpu()
        watch = Watch(job_of(process.pid), WatchOptions(0.5), gpu)
        start, cost = time.monotonic(), watch.cost_s
        found = [watch.interval() for _ in range(6)]
        assert time.monotonic() - start == pytest.approx(3.0, abs=0.2)
        assert watch.cost_s - cost < 0.06
        watch.close()
        windows = [window for each in found for window in each.windows]
        total = sum(window.looks for window in windows)
        assert sum(window.seconds for window in windows) == pytest.approx(3.0, abs=0.3)
        assert sum(window.looks * window.wait_low for window in windows) / total == pytest.approx(0.67, abs=0.25)
        assert {window.idle for window in windows} == {0.5}
        assert {each.role for each in found[-1].processes} == {"main", "worker"}
        assert gpu.pids == {each.pid for each in found[-1].processes}
        assert any(each.stacks == SEEN for each in found)
        assert found[-1].notes == ("power is not told",)
        assert found[-1].main.samples >= 1


@pytest.mark.parametrize(
    ("own", "index", "option", "idle"),
    [(None, 0, None, 0.5), (False, 0, None, None), (False, 1, 1, 0.5), (True, 0, 1, None)],
)
def test_whose_device(own: bool | None, index: int, option: int | None, idle: float | None) -> None:
    with running("import time; print(1, flush=True); time.sleep(60)") as process:
        gpu: Any = Gpu(own, index)
        watch = Watch(job_of(process.pid), WatchOptions(0.3, stacks="off", device=option), gpu)
        snapshots = [watch.interval(), watch.interval()]
        watch.close()
    assert {window.idle for each in snapshots for window in each.windows} == {idle}


def test_paused_and_ended() -> None:
    with running("import time; print(1, flush=True); time.sleep(60)") as process:
        watch = Watch(job_of(process.pid), WatchOptions(0.1, stacks="off"))
        process.send_signal(signal.SIGSTOP)
        watch.interval()
        assert watch.interval().main.shares == {Doing.STOPPED: 1.0}
        process.kill()
        process.wait()
        with pytest.raises(JobEnded):
            watch.interval()
        watch.close()


def test_a_late_caller_gets_a_whole_interval() -> None:
    with running("import time; print(1, flush=True); time.sleep(60)") as process:
        watch = Watch(job_of(process.pid), WatchOptions(0.2, stacks="off"))
        time.sleep(0.5)
        start = time.monotonic()
        snapshot = watch.interval()
        assert time.monotonic() - start > 0.15
        assert snapshot.seconds == pytest.approx(0.7, abs=0.1)
        assert snapshot.main.samples <= 4
        watch.close()


def test_dear_looks_become_rare() -> None:
    with running("import time; print(1, flush=True); time.sleep(60)") as process:
        watch = Watch(job_of(process.pid), WatchOptions(stacks="off"))
        assert watch._rate() == 20
        watch._look_s, watch._snapshot_s = 0.001, 0.002
        assert watch._rate() == pytest.approx(6)
        watch._look_s = 1.0
        assert watch._rate() == 2
        watch.close()
