"""What /proc says of a training: real processes where a kernel can be made to say it, a folder like /proc where not."""

import os
import time

import pytest
from at_once import eventually
from proc_folder import TRAIN, ProcFolder, job, running

from iofast.monitor.find import job_of
from iofast.monitor.probe.proc import Family, ProcProbe
from iofast.monitor.probe.states import Gone, doing_by_function
from iofast.monitor.snapshot import Doing

# --- what a thread sleeps in


@pytest.mark.parametrize(
    ("function", "doing"),
    [
        ("poll_schedule_timeout.constprop.0", Doing.QUEUE),
        ("ep_poll", Doing.QUEUE),
        ("unix_stream_read_generic", Doing.QUEUE),
        ("pipe_read", Doing.QUEUE),
        ("pipe_wait", Doing.QUEUE),
        ("futex_wait_queue_me", Doing.FUTEX),
        ("hrtimer_nanosleep", Doing.ASLEEP),
        ("do_wait", Doing.ASLEEP),
        ("os_acquire_semaphore", Doing.ASLEEP),  # the NVIDIA driver's
    ],
)
def test_functions_of_kernels(function: str, doing: Doing) -> None:
    assert doing_by_function(function) is doing


PROGRAMS = {
    Doing.QUEUE: "import multiprocessing as m; q = m.Queue(); print(1, flush=True); q.get()",
    Doing.FUTEX: "import queue; print(1, flush=True); queue.Queue().get()",
    Doing.ASLEEP: "import time; print(1, flush=True); time.sleep(60)",
    Doing.RUNNING: "print(1, flush=True)\nwhile True: pass",
}


@pytest.mark.parametrize("doing", PROGRAMS)
def test_a_real_thread(doing: Doing) -> None:
    with running(PROGRAMS[doing]) as process:
        probe = ProcProbe(job_of(process.pid))
        assert eventually(lambda: probe.look() is doing)
        for _ in range(20):
            time.sleep(0.002)
            probe.look()
        looks, (main,), threads = probe.take()
    assert looks.shares[doing] > 0.5
    assert sum(looks.shares.values()) == pytest.approx(1)
    assert (main.role, main.pid, threads) == ("main", process.pid, ())
    assert sum(main.states.values()) == pytest.approx(1)


def test_a_kernel_that_does_not_tell_the_function(proc: ProcFolder) -> None:
    proc.process(10)
    probe = ProcProbe(job(10))
    assert probe.look() is Doing.UNSEEN
    probe.take()
    assert "wchan" in probe.notes["wchan"]


def test_a_thread_that_wakes_up_under_the_look(proc: ProcFolder) -> None:
    """Its state is S, and the kernel, which tells functions otherwise, names none."""
    proc.process(10)
    probe = ProcProbe(job(10))
    for wchan, doing in (("futex_do_wait", Doing.FUTEX), ("0", Doing.RUNNING)):
        proc.state(10, "S", wchan)
        assert probe.look() is doing
    probe.take()
    assert probe.notes == {}


@pytest.mark.parametrize(
    ("state", "doing"), [("R", Doing.RUNNING), ("D", Doing.DISK), ("T", Doing.STOPPED), ("t", Doing.STOPPED)]
)
def test_states(proc: ProcFolder, state: str, doing: Doing) -> None:
    proc.process(10)
    probe = ProcProbe(job(10))
    proc.state(10, state)
    assert probe.look() is doing


def test_a_name_may_hold_anything(proc: ProcFolder) -> None:
    proc.process(10, "evil) R 1 (x")
    probe = ProcProbe(job(10))
    (proc.path / "10" / "task" / "10" / "wchan").write_text("futex_do_wait")
    assert probe.look() is Doing.FUTEX
    assert probe.take()[1][0].name == "evil) R 1 (x"


# --- what is counted


def test_a_new_epoch_brings_new_workers(proc: ProcFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two takes; those that went are counted for the last time."""
    monkeypatch.setattr("iofast.monitor.probe.proc._AGAIN_S", 0.0)
    proc.process(10)
    old = proc.process(11, "pt_data_worker", 10)
    probe = ProcProbe(job(10))
    proc.stat(old / "task" / "11", 11, "pt_data_worker", 10, ticks=50, state="R")
    probe.look()
    proc.end(11)
    (proc.path / "10" / "task" / "10" / "children").write_text("")
    new = proc.process(12, "pt_data_worker", 10, start=300)
    proc.stat(new, 12, "pt_data_worker", 10, start=300, ticks=30)  # before it was seen: still of this interval
    probe.look()
    assert probe.workers == (12,)
    _, processes, _ = probe.take()
    assert {each.pid: each.cpu_s for each in processes} == {10: 0, 11: 0.5, 12: 0.3}
    assert {each.pid for each in probe.take()[1]} == {10, 12}


def test_io_and_run_queue(proc: ProcFolder) -> None:
    folder = proc.process(10)
    probe = ProcProbe(job(10))
    (folder / "io").write_text("rchar: 5000\nwchar: 7\nread_bytes: 4096\nwrite_bytes: 512\ncancelled_write_bytes: -3\n")
    (folder / "task" / "10" / "schedstat").write_text("250000000 50000000 17\n")
    looks, (main,), _ = probe.take()
    assert (main.read_calls_bytes, main.read_bytes, main.runnable_s) == (5000, 4096, 0.05)
    assert (looks.cpu_s, looks.runnable_s, looks.samples) == (0.25, 0.05, 0)
    (folder / "io").write_text("")
    assert probe.take()[1][0].read_bytes is None
    assert "io" in probe.notes["io"]


def test_threads_of_loaders_and_backward(proc: ProcFolder) -> None:
    proc.process(10)
    proc.thread(10, 20, "pt_data_pin")
    autograd = proc.thread(10, 21, "pt_autograd_0", state="R")
    proc.thread(10, 22, "python")
    probe = ProcProbe(job(10))
    probe.look()
    proc.stat(autograd, 21, "pt_autograd_0", ticks=20)
    probe.look()
    _, _, threads = probe.take()
    assert {each.name: each.cpu_s for each in threads} == {"pt_data_pin": 0, "pt_autograd_0": 0.2}
    proc.end_thread(10, 20)
    proc.thread(10, 23, "python")
    probe.take()
    proc.thread(10, 23, "iofast-3")  # a young thread took its name
    assert {each.name for each in probe.take()[2]} == {"pt_autograd_0", "iofast-3"}


def test_many_workers_take_turns(proc: ProcFolder) -> None:
    """A look stays as cheap as with few, and each gets its share."""
    proc.process(10)
    for pid in range(100, 140):
        proc.process(pid, "pt_data_worker", 10)
    probe = ProcProbe(job(10))
    probe.take()
    for _ in range(10):
        probe.look()
    assert sum(sum(each.states.values()) for each in probe._kin.values()) == 40
    assert {sum(each.states.values()) for each in probe._kin.values()} == {1}


# --- ends


def test_a_job_that_ends(proc: ProcFolder) -> None:
    proc.process(10, start=100)
    with pytest.raises(Gone, match="10"):
        ProcProbe(job(10, start_time=99))  # its number belongs to another process now
    probe = ProcProbe(job(10))
    proc.end(10)
    with pytest.raises(Gone):
        probe.look()
    with pytest.raises(ProcessLookupError):
        probe.take()


def test_files_are_closed(proc: ProcFolder) -> None:
    before = len(os.listdir("/proc/self/fd"))
    proc.process(10)
    proc.process(11, "pt_data_worker", 10)
    proc.thread(10, 20, "pt_data_pin")
    probe = ProcProbe(job(10))
    probe.look()
    probe.take()
    del probe
    assert len(os.listdir("/proc/self/fd")) == before


# --- the processes below, and which of them load


SPAWNED = b"python\0-c\0from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)\0"
SERVER = b"python\0-c\0from multiprocessing.forkserver import main; main(5, 6, ['__main__'])\0"
TRACKER = b"python\0-c\0from multiprocessing.resource_tracker import main;main(4)\0"
COMPILING = b"python\0/lib/torch/_inductor/compile_worker/__main__.py\0--workers=2\0"
WORKER, OTHER = "pt_data_worker", "python"

# below process 10: name, parent, command line, and what it is
TREES = {
    "torch names its workers": [
        (WORKER, 10, TRAIN, "worker"),
        (WORKER, 10, SPAWNED, "worker"),
        (OTHER, 10, TRAIN, "other"),  # a forked process of something else, a manager
        ("nvidia-smi", 10, b"nvidia-smi\0", "other"),
    ],
    "workers without a name": [
        (OTHER, 10, TRAIN, "worker"),
        (OTHER, 10, SPAWNED, "worker"),
        (OTHER, 10, TRACKER, "other"),
        (OTHER, 10, b"python\0other.py\0", "other"),
    ],
    "a fork server": [
        (OTHER, 10, SERVER, "other"),
        (OTHER, 11, SERVER, "worker"),
        (OTHER, 11, SERVER, "worker"),
    ],
    "compiling is not loading": [
        (OTHER, 10, COMPILING, "other"),
        (WORKER, 11, COMPILING, "other"),  # whatever its name
        (OTHER, 11, TRAIN, "other"),
    ],
}


def roles(proc: ProcFolder) -> dict[int, str]:
    return {pid: role for (pid, _), role in Family(10).roles().items()}


@pytest.mark.parametrize("name", TREES)
def test_roles(proc: ProcFolder, name: str) -> None:
    proc.process(10)
    proc.tree(*((pid, *each[:3]) for pid, each in enumerate(TREES[name], 11)))
    assert roles(proc) == {pid: each[3] for pid, each in enumerate(TREES[name], 11)}


def test_children_of_other_threads_and_kernels_that_do_not_list_any(proc: ProcFolder) -> None:
    proc.process(10)
    proc.thread(10, 20, "pool")
    proc.process(11, parent=10)
    (proc.path / "10" / "task" / "20" / "children").write_text("11 ")
    (proc.path / "10" / "task" / "10" / "children").write_text("")
    assert roles(proc) == {11: "worker"}
    for file in proc.path.rglob("children"):
        file.unlink()
    assert roles(proc) == {11: "worker"}


def test_a_worker_that_names_itself_late(proc: ProcFolder) -> None:
    proc.tree((10, OTHER, 1, TRAIN), (11, OTHER, 10, SPAWNED), (12, OTHER, 10, TRAIN))
    probe = ProcProbe(job(10))
    assert probe.workers == (11, 12)
    proc.stat(proc.path / "11", 11, WORKER, 10)
    probe.take()
    assert probe.workers == (11,)
