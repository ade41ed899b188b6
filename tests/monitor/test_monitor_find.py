"""Which processes train, to which training one belongs, which jobs are watched, and how several are judged in turn."""

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from monitor_jobs import Watcher, made
from proc_folder import TRAIN, ProcFolder

from iofast.monitor import live
from iofast.monitor.find import MonitorError, find_jobs, job_of
from iofast.monitor.findings import Verdict
from iofast.monitor.live import Jobs, Sources, machine
from iofast.monitor.probe.proc import ProcProbe, peers_of, rank_of
from iofast.monitor.request import Request
from iofast.monitor.snapshot import Job, Snapshot

LAUNCHER = b"python\0/bin/torchrun\0--nproc-per-node=2\0train.py\0"
MAPPED = "7f00-7f01 r-xp 00000000 08:01 1 /lib/python/torch/lib/libtorch_cpu.so\n"


@pytest.fixture
def proc(proc: ProcFolder, monkeypatch: pytest.MonkeyPatch) -> ProcFolder:
    monkeypatch.setattr("iofast.monitor.find.pages", list)
    monkeypatch.setattr("iofast.monitor.find._TRIAL_S", 0.0)
    return proc


def found(*on_gpu: int) -> list[int]:
    return [job.pid for job in find_jobs(on_gpu)]


# --- find_jobs


SHELL, SERVER = b"bash\0train.sh\0", b"python\0-c\0from multiprocessing.forkserver import main\0"
SPAWNED = b"python\0-c\0from multiprocessing.spawn import spawn_main\0"
WORKER, PYTHON = "pt_data_worker", "python"


@pytest.mark.parametrize(
    ("tree", "on_gpu", "trainings"),
    [
        ([(10, "bash", 1, SHELL), (11, PYTHON, 1, b"python\0serve.py\0")], (), []),
        # 77: another user's, or of the machine while this is a container
        ([(10, PYTHON, 1, TRAIN), (11, "blender", 1, b"/bin/blender\0"), (12, PYTHON, 1, TRAIN)], (10, 11, 77),
         [10, 11]),
        ([(10, PYTHON, 1, TRAIN), (11, WORKER, 10, TRAIN)], (), [10]),
        ([(20, PYTHON, 1, TRAIN), (21, PYTHON, 20, SERVER), (22, WORKER, 21, SERVER)], (), [20]),
    ],
    ids=["none", "gpu", "workers", "fork server"],
)  # fmt: skip
def test_by_gpu_and_by_workers(proc: ProcFolder, tree: Any, on_gpu: tuple[int, ...], trainings: list[int]) -> None:
    proc.tree(*tree)
    assert found(*on_gpu) == trainings


def test_by_threads(proc: ProcFolder) -> None:
    for pid, name in ((10, "pt_data_pin"), (11, "iofast-2"), (12, "pt_elastic")):
        proc.process(pid)
        proc.thread(pid, pid + 10, name)
    assert found() == [10, 11]


def test_never_this_process_nor_what_it_runs_in(proc: ProcFolder) -> None:
    proc.process(10)
    proc.process(os.getpid(), parent=10)
    proc.thread(10, 20, "pt_autograd_0")
    assert found(os.getpid()) == []


def test_by_torch_that_computes(proc: ProcFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (10, 11, 12):
        (proc.process(pid) / "maps").write_text(MAPPED if pid < 12 else "")
    monkeypatch.setattr("time.sleep", lambda _: proc.stat(proc.path / "10", 10, "python", ticks=50))
    monkeypatch.setattr("iofast.monitor.find._TRIAL_S", 1.0)
    assert found() == [10]


def test_a_program_that_may_end_at_once(proc: ProcFolder) -> None:
    """It is no training yet, unless it has workers; a program that the monitor started may be one."""
    now = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    for pid in (10, 11):
        proc.process(pid, start=now)
        proc.thread(pid, pid + 10, "pt_autograd_0")
    proc.process(12, WORKER, 11, line=TRAIN)
    assert found() == [11]
    assert [job.pid for job in find_jobs(least_age_s=0.0)] == [10, 11]


def test_ranks_and_not_their_launcher(proc: ProcFolder) -> None:
    proc.process(5, line=LAUNCHER)
    for pid, rank in ((10, 0), (20, 1)):
        folder = proc.process(pid, parent=5)
        (folder / "environ").write_bytes(f"A=1\0RANK={rank}\0WORLD_SIZE=2\0".encode())
        proc.process(pid + 1, "pt_data_worker", pid)
    assert find_jobs() == [Job(10, 100, "python train.py", 0, 2), Job(20, 100, "python train.py", 1, 2)]


@pytest.mark.parametrize(
    ("line", "trains"),
    [
        (b"python\0/bin/jupyter-lab\0", False),
        (b"python\0-m\0ipykernel_launcher\0-f\0kernel.json\0", False),
        (b"python\0-m\0tensorboard.main\0--logdir\0runs\0", False),
        (b"python\0-m\0iofast\0monitor\0", False),
        (b"python\0/bin/tensorboard\0--logdir\0runs\0", False),
        (b"python\0-c\0from multiprocessing.resource_tracker import main;main(4)\0", False),
        (b"python\0/bin/pytest\0tests\0", False),
        (b"python\0-u\0-c\0import sys;exec(eval(sys.stdin.readline()))\0", False),  # of pytest-xdist
        (b"python\0pytest.py\0", True),
        (b"python\0train.py\0--tensorboard\0jupyter\0", True),  # words of options do not matter
        (b"python\0tensorboard_training.py\0", True),
        (b"python\0-W\0error\0train.py\0", True),
        (b"python\0-m\0iofast\0bench\0", True),
    ],
)
def test_programs_that_never_train(proc: ProcFolder, line: bytes, trains: bool) -> None:
    proc.process(10, line=line)
    proc.thread(10, 20, "pt_autograd_0")
    assert found(10) == ([10] if trains else [])


def test_only_this_users(proc: ProcFolder) -> None:
    if os.geteuid():
        pytest.skip("only root can make files of another user")
    os.chown(proc.process(10), 65534, 65534)
    assert found(10) == []


# --- job_of


def test_a_worker_leads_to_its_training(proc: ProcFolder) -> None:
    proc.tree((10, PYTHON, 1, TRAIN), (11, WORKER, 10, TRAIN), (12, PYTHON, 10, TRAIN), (13, PYTHON, 10, SPAWNED))
    assert {job_of(pid).pid for pid in (10, 11, 12, 13)} == {10}


def test_a_spawned_rank_is_no_worker(proc: ProcFolder) -> None:
    proc.process(5)
    for pid in (10, 20):
        proc.tree((pid, PYTHON, 5, SPAWNED), (pid + 1, WORKER, pid, TRAIN))
    assert found() == [10, 20]
    assert job_of(11).pid == 10
    assert job_of(20).pid == 20
    with pytest.raises(MonitorError, match="2 trainings: name one of 10, 20"):
        job_of(5)


def test_a_shell_leads_to_its_training(proc: ProcFolder) -> None:
    proc.process(5, "bash", line=SHELL)
    assert job_of(5).pid == 5
    proc.process(4, "timeout", line=b"timeout\x0070\0python\0train.py\0")
    proc.process(7, parent=4)
    assert job_of(4).pid == 7, "it may begin to train"
    proc.tree((6, "uv", 5, b"uv\0run\0"), (10, PYTHON, 6, TRAIN))
    proc.thread(10, 20, "pt_data_pin")
    assert job_of(5).pid == 10


@pytest.mark.parametrize(
    ("pid", "user", "message"),
    [
        (9, 0, "there is no process 9"),
        (10, 0, "there is no process 10"),  # a zombie
        (11, 0, "the kernel's"),
        (12, 1, "belongs to user"),
    ],
)
def test_what_cannot_be_watched(
    proc: ProcFolder, monkeypatch: pytest.MonkeyPatch, pid: int, user: int, message: str
) -> None:
    proc.process(10, state="Z")
    proc.process(11, "kworker/0:1", 2, line=b"")
    owner = proc.process(12).stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + user)
    with pytest.raises(MonitorError, match=message):
        job_of(pid)


def test_commands_are_bounded(proc: ProcFolder) -> None:
    proc.process(10, line=b"python\0" + b"x" * 100_000)
    proc.process(11, line=b"python\0\xff\xfe\0")
    assert len(job_of(10).command) == 1000
    assert job_of(11).command == "python ��"


# --- ranks


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        (b"RANK=3\0WORLD_SIZE=8\0", (3, 8)),
        (b"OMPI_COMM_WORLD_RANK=1\0OMPI_COMM_WORLD_SIZE=2\0", (1, 2)),
        (b"SLURM_PROCID=0\0SLURM_STEP_NUM_TASKS=4\0", (0, 4)),
        (b"RANK=8\0WORLD_SIZE=8\0", None),
        (b"RANK=3\0", None),
        (b"junk\0\xff=1\0", None),
    ],
)
def test_ranks(proc: ProcFolder, environ: bytes, rank: tuple[int, int] | None) -> None:
    (proc.process(10) / "environ").write_bytes(environ)
    assert rank_of(10) == rank
    assert rank_of(11) is None


def test_peers(proc: ProcFolder) -> None:
    proc.process(5, line=LAUNCHER)
    for pid, rank in ((10, 0), (20, 1), (30, 2)):
        (proc.process(pid, parent=5) / "environ").write_bytes(f"RANK={rank}\0WORLD_SIZE=3\0".encode())
    (proc.process(40, parent=5) / "environ").write_bytes(b"RANK=1\0WORLD_SIZE=2\0")  # of another launch
    probe = ProcProbe(Job(10, 100, "python train.py", 0, 3))
    proc.state(20, "S", "poll_schedule_timeout")
    proc.state(30, "R")
    for _ in range(4):
        probe.look()
    probe.take()
    assert probe.peers == {1: 1.0, 2: 0.0}
    proc.end(20)
    probe.look()
    probe.take()
    assert probe.peers == {2: 0.0}
    assert peers_of(Job(10, 100, "python train.py")) == {}


# --- which jobs are watched: what was named, one GPU, a started program, everybody; several at once, judged in turn


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

    missing, notes = "", ()

    def __init__(self, gpus: dict[int, set[int]]) -> None:
        self._gpus = gpus

    def processes(self) -> dict[int, set[int]]:
        return self._gpus


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The trainings that a search finds, and the driver that there is."""
    there: dict[str, Any] = {"jobs": JOBS, "nvml": Gpus({})}
    monkeypatch.setattr(live, "find_jobs", lambda _nvml, _age: there["jobs"])
    monkeypatch.setattr(live, "NvmlProbe", lambda: there["nvml"])
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


def test_a_gpu_that_cannot_be_seen(seen: dict[str, Any]) -> None:
    seen["nvml"].missing = "GPUs are not seen: the driver is not loaded"
    with pytest.raises(MonitorError, match=r"^--gpu 1: GPUs are not seen: .* is not loaded$"):
        machine(Request(gpu=1))


def test_what_was_named(seen: dict[str, Any]) -> None:
    """It is looked up once, and watched as asked: the GPU too, which in a container the driver does not name."""
    seen["nvml"] = Gpus({})
    request = Request(pids=(os.getpid(),), gpu=1, interval=0.5, stacks="off")
    made = machine(request)
    (job,) = made.find()
    assert job.pid == os.getpid()
    watch = made.watch(job)
    options = watch.options
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
