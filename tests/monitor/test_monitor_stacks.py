"""Bursts of py-spy: on a real DataLoader, and with stand-ins for py-spy that refuse, hang or say nonsense."""

# ruff: noqa: E501 (a stack is one line, as py-spy writes it)

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from iofast.monitor.probe import stacks
from iofast.monitor.probe.calls import call
from iofast.monitor.probe.loops import Feeds
from iofast.monitor.probe.stacks import StackProbe, missing_right
from iofast.monitor.snapshot import Frame, Job, StackFigures, WaitSource, WorkerTask

Standin = Callable[[str], None]


@pytest.fixture
def job() -> Job:
    return Job(os.getpid(), 0, "")


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    """Puts a shell script in py-spy's place; $output is the file that it is to write to."""

    def standin(script: str) -> None:
        program = tmp_path / "py-spy"
        find = 'while [ "$1" != --output ]; do shift; done; output=$2; pid=$4\n'
        program.write_text(f"#!/bin/sh\necho call >> {tmp_path}/calls\n{find}{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(stacks, "pyspy", lambda: str(program))

    return standin


def burst(probe: StackProbe, *workers: int) -> StackFigures | None:
    """One burst, as soon as it may be; None where it fails or none is begun any more."""
    probe._due_at = 0.0
    probe.look(workers)
    while probe._running:
        time.sleep(0.01)
        probe.look(workers)
    return probe.take()


@pytest.mark.parametrize(
    ("scope", "way"),
    [("0", "--cap-add SYS_PTRACE"), ("1", "`iofast monitor -- python train.py`"), ("2", "sudo"), ("3", "forbids"), ("", "same user")],
)  # fmt: skip
def test_a_right_that_is_missing(
    standin: Standin, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, way: str
) -> None:
    """It is asked for once: the right does not come while the program runs."""
    monkeypatch.setattr(stacks, "ptrace_scope", lambda: scope)
    standin("echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    probe = StackProbe(job)
    for _ in range(3):
        assert burst(probe) is None
    assert way in probe.note
    assert "\n" not in probe.note
    assert missing_right() in probe.note
    assert (tmp_path / "calls").read_text().count("call") == 1


def test_workers_that_may_not_be_looked_at(
    standin: Standin, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that was started under Yama allows itself to be looked at, its workers do not: one line, asked once."""
    monkeypatch.setattr(stacks, "ptrace_scope", lambda: "1")
    standin(f"""
    [ $pid = {job.pid} ] && echo 'thread ({job.pid}): MainThread;main (/u/train.py:7) 5' > $output && exit 0
    echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1""")
    probe = StackProbe(job)
    for _ in range(3):
        figures = burst(probe, 4194303)
        assert figures is not None
        assert (figures.looks, figures.workers.total()) == (5, 0)
    assert probe.note == f"no Python stacks of its workers: {missing_right(of_worker=True)}"
    assert "for itself alone" in probe.note
    assert (tmp_path / "calls").read_text().count("call") == 4


OWN = """
def fill():
    time.sleep(0.05)

def batches():
    while True:
        yield waiting.get()

for x in batches():
    net(x).sum().backward()
"""


def test_a_training_that_its_own_thread_feeds(standin: Standin, job: Job, tmp_path: Path) -> None:
    """A generator round a queue: it is the loader, its line is named, and the thread behind it is looked at."""
    (program := tmp_path / "train.py").write_text(OWN)
    queue = "get (/usr/lib/python3.11/queue.py:171);wait (/usr/lib/python3.11/threading.py:327)"
    standin(f"""cat > $output <<END
thread ({job.pid}): MainThread;<module> ({program}:9);batches ({program}:7);{queue} 8
thread ({job.pid}): MainThread;<module> ({program}:10);backward (/v/lib/python3.11/site-packages/torch/_tensor.py:6) 2
thread (11): Thread-1;run (/usr/lib/python3.11/threading.py:9);fill ({program}:3) 10
END""")
    figures = burst(StackProbe(job))
    assert figures is not None
    assert (figures.trains, figures.main[Frame.LOADER_WAIT]) == (True, 8)
    (site,) = figures.waits
    assert (site.file, site.line, site.function, figures.waits[site]) == (str(program), 7, "batches", 8)
    assert (site.call, site.source, site.loader) == ("queue.get", WaitSource.THREADS, True)
    assert figures.workers == {WorkerTask.READ: 10}, "a storage that sleeps is a storage"


def test_looks_are_counted(standin: Standin, job: Job) -> None:
    """Of the main thread by what it does, of workers, and of the threads beside them."""
    library, standard = "/v/lib/python3.11/site-packages", "/usr/lib/python3.11"
    queue = f"get ({standard}/multiprocessing/queues.py:113);select ({standard}/selectors.py:415)"
    standin(f"""
    [ $pid = {job.pid} ] && cat > $output <<END
thread ({job.pid}): MainThread;main (/u/train.py:9);synchronize ({library}/torch/cuda/__init__.py:1) 3
thread ({job.pid}): MainThread;main (/u/train.py:9);step ({library}/torch/optim/sgd.py:1);_single_tensor_sgd ({library}/torch/optim/sgd.py:1) 1
thread ({job.pid}): MainThread;main (/u/train.py:7);__next__ ({library}/torch/utils/data/dataloader.py:1);_get_data ({library}/torch/utils/data/dataloader.py:2);{queue} 6
thread (11): Thread-1;_pin_memory_loop ({library}/torch/utils/data/_utils/pin_memory.py:1);pin_memory ({library}/torch/utils/data/_utils/pin_memory.py:2) 2
thread (12): Thread-2;serve ({standard}/socket.py:1) 10
END
    [ $pid = 4194303 ] && cat > $output <<END
thread (4194303): MainThread;_worker_loop ({library}/torch/utils/data/_utils/worker.py:1);fetch (x.py:1);load ({library}/PIL/ImageFile.py:1) 1
thread (4194303): MainThread;main (/u/train.py:7);_worker_loop ({library}/torch/utils/data/_utils/worker.py:1);{queue} 5
thread (13): QueueFeederThread;_feed ({standard}/multiprocessing/queues.py:1);dumps ({standard}/multiprocessing/reduction.py:1) 2
END
    [ $pid = 4194302 ] && echo nonsense > $output
    exit 0""")
    probe = StackProbe(job)
    figures = burst(probe, 4194303, 4194302)
    assert figures is not None
    assert (figures.looks, figures.workers.total()) == (10, 8)
    assert figures.main == {Frame.LOADER_WAIT: 6, Frame.SYNC: 3, Frame.OPTIMIZER: 1}
    assert figures.workers == {
        WorkerTask.PIN: 2,
        WorkerTask.STARVED: 3,
        WorkerTask.SEND: 2,
        WorkerTask.DECODE: 1,
    }
    (site,) = (one for one in figures.waits if one.source is WaitSource.DEVICE)
    assert (site.file, site.line, site.call, figures.waits[site]) == ("/u/train.py", 9, "synchronize()", 3)
    assert {pid: at.place for pid, at in figures.stands.items()} == {
        job.pid: "`main`, train.py:7, for `next`",
        4194303: "`_worker_loop`, worker.py:1, for `multiprocessing.get`",
    }
    nonsense = burst(probe, 4194303, 4194302)
    assert nonsense is not None
    assert (nonsense.looks, +nonsense.workers) == (10, {WorkerTask.PIN: 2}), "the next worker"


def test_a_py_spy_that_hangs_or_fails(
    standin: Standin, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_TIMEOUT_S", 1)
    standin("exec sleep 60")
    probe = StackProbe(job)
    assert burst(probe) is None
    assert "took more than 1 s" in probe.note
    monkeypatch.setattr(stacks, "_TIMEOUT_S", 60)
    standin("echo 'Error: Failed to find a python interpreter in the .data section' >&2; exit 1")
    probe = StackProbe(job)
    for _ in range(5):
        assert burst(probe) is None
    assert probe.note.endswith("py-spy: Failed to find a python interpreter in the .data section")
    assert (tmp_path / "calls").read_text().count("call") == 1 + stacks._TRIES
    standin("echo 'Error: Failed to open process: check that the process is running' >&2; exit 1")
    probe = StackProbe(job)
    assert burst(probe) is None
    assert probe.note == f"no Python stacks: process {job.pid} has ended"
    monkeypatch.setattr(stacks, "pyspy", lambda: None)
    assert "pip install" in StackProbe(job).note


class Recording:
    """Stands for a py-spy that is done at once and saw the training twice."""

    pids: ClassVar[list[int]] = []

    def __init__(self, program: str, pid: int) -> None:
        self.pid = pid
        self.pids.append(pid)

    def ended(self) -> bool:
        return True

    def result(self) -> tuple[str, str]:
        return "thread (1): MainThread;main (/u/train.py:7) 2\n", ""


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> StackProbe:
    """A probe whose bursts end at once."""
    Recording.pids = []
    monkeypatch.setattr(stacks, "pyspy", lambda: "py-spy")
    monkeypatch.setattr(stacks, "_Recording", Recording)
    return StackProbe(Job(1, 1, ""))


def test_bursts_take_workers_in_turn(at_once: StackProbe) -> None:
    """And are one for the next take."""
    for _ in range(4):
        at_once._due_at = 0.0
        at_once.look([7, 8, 9])
        at_once.look([7, 8, 9])
    assert Recording.pids == [1, 7, 1, 8, 1, 9, 1, 7]
    figures = at_once.take()
    assert figures is not None
    assert figures.looks == 8
    assert at_once.take() is None


def test_bursts_keep_their_budget(at_once: StackProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of a second in advance, then 0.9 % of a core: with looks and verdicts below 2 %."""
    spent, clock = itertools.count(), [1000.0]
    monkeypatch.setattr(stacks, "_spent_s", lambda: 0.025 * next(spent))  # before a look and after it
    monkeypatch.setattr("iofast.monitor.probe.stacks.random.uniform", lambda least, most: (least + most) / 2)
    monkeypatch.setattr(stacks, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    waits = []
    for _ in range(8):
        clock[0] = max(clock[0], at_once._due_at)
        at_once.look([])
        at_once.look([])
        waits.append(at_once._due_at - clock[0])
    assert waits[:3] == [0.25] * 3, "the first four cost 0.2 s together"
    assert waits[6:] == pytest.approx([0.05 / 0.009] * 2)


def test_lines_of_source_are_read_and_nothing_else(tmp_path: Path) -> None:
    source = Feeds(os.getpid())
    program = tmp_path / "train.py"
    program.write_bytes(b"a = 1\nloss.item()  # \xff\n")
    os.mkfifo(tmp_path / "pipe.py")
    assert source.line(call("main", str(program), 2)) == "loss.item()  # \ufffd"
    for path, line in ((program, 9), (program, 0), (tmp_path / "pipe.py", 1), (tmp_path, 1), (tmp_path / "no.py", 1)):
        assert source.line(call("main", str(path), line)) == ""
    assert source.line(call("main", "train.py", 1)) == ""
    assert source.line(call("main", "/a\0b", 1)) == ""
    program.write_text("edited = 1")
    assert source.line(call("main", str(program), 1)) == "a = 1", "as the program has read it"
    assert Feeds(os.getpid()).line(call("main", str(program), 1)) == "edited = 1"
