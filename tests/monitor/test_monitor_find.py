"""Which processes train, and to which training a process belongs."""

from __future__ import annotations

import os
import sys
import time
from glob import glob

import pytest
from proc_folder import ProcFolder, running, until

from iofast import meter as telemetry
from iofast.meter import LoaderInfo, Slot, Totals
from iofast.monitor.find import MonitorError, ProcessTable, find_jobs, job_of
from iofast.monitor.probe.peers import Peers, rank_of
from iofast.monitor.snapshot import Job

LAUNCHER = b"python\0/bin/torchrun\0--nproc-per-node=2\0train.py\0"
MAPPED = "7f00-7f01 r-xp 00000000 08:01 1 /lib/python/torch/lib/libtorch_cpu.so\n"


@pytest.fixture
def proc(proc: ProcFolder, monkeypatch: pytest.MonkeyPatch) -> ProcFolder:
    monkeypatch.setattr("iofast.monitor.find.pages", list)
    monkeypatch.setattr("iofast.monitor.find._TRIAL_S", 0.0)
    return proc


def found(proc: ProcFolder, *on_gpu: int) -> list[int]:
    return [job.pid for job in find_jobs(on_gpu)]


# --- find_jobs


def test_nothing(proc: ProcFolder) -> None:
    proc.process(10, "bash", line=b"bash\0")
    proc.process(11, line=b"python\0serve.py\0")
    assert found(proc) == []


def test_by_gpu(proc: ProcFolder) -> None:
    proc.process(10)
    proc.process(11, "blender", line=b"/usr/bin/blender\0")
    proc.process(12)
    assert found(proc, 10, 11, 77) == [10, 11]  # 77: another user's, or of the machine while this is a container


def test_by_workers(proc: ProcFolder) -> None:
    proc.process(10)
    proc.process(11, "pt_data_worker", 10)
    proc.process(20)
    proc.process(21, parent=20, line=b"python\0-c\0from multiprocessing.forkserver import main\0")
    proc.process(22, "pt_data_worker", 21, line=b"python\0-c\0from multiprocessing.forkserver import main\0")
    assert found(proc) == [10, 20]


@pytest.mark.parametrize("name", ["pt_data_pin", "pt_autograd_0", "iofast-2"])
def test_by_threads(proc: ProcFolder, name: str) -> None:
    proc.process(10)
    proc.thread(10, 20, name)
    proc.process(11)
    proc.thread(11, 21, "pt_elastic")
    assert found(proc) == [10]


def test_by_torch_that_computes(proc: ProcFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (10, 11, 12):
        (proc.process(pid) / "maps").write_text(MAPPED if pid < 12 else "")
    monkeypatch.setattr("time.sleep", lambda _: proc.stat(proc.path / "10", 10, "python", ticks=50))
    monkeypatch.setattr("iofast.monitor.find._TRIAL_S", 1.0)
    assert found(proc) == [10]


def test_ranks_and_not_their_launcher(proc: ProcFolder) -> None:
    proc.process(5, line=LAUNCHER)
    for pid, rank in ((10, 0), (20, 1)):
        folder = proc.process(pid, parent=5)
        (folder / "environ").write_bytes(f"A=1\0RANK={rank}\0WORLD_SIZE=2\0".encode())
        proc.process(pid + 1, "pt_data_worker", pid)
    jobs = find_jobs()
    assert [(job.pid, job.rank, job.world_size, job.command) for job in jobs] == [
        (10, 0, 2, "python train.py"),
        (20, 1, 2, "python train.py"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"python\0/bin/jupyter-lab\0",
        b"python\0-m\0ipykernel_launcher\0-f\0kernel.json\0",
        b"python\0-m\0notebook\0",
        b"python\0-m\0tensorboard.main\0--logdir\0runs\0",
        b"python\0-m\0iofast\0monitor\0",
        b"python\0/bin/iofast\0monitor\0--once\0",
        b"python\0/bin/tensorboard\0--logdir\0runs\0",
        b"python\0/lib/torch/_inductor/compile_worker/__main__.py\0",
        b"python\0-c\0from multiprocessing.resource_tracker import main;main(4)\0",
    ],
)
def test_never(proc: ProcFolder, line: bytes) -> None:
    proc.process(10, line=line)
    proc.thread(10, 20, "pt_autograd_0")
    assert found(proc, 10) == []


@pytest.mark.parametrize(
    "line",
    [
        b"python\0train.py\0--tensorboard\0jupyter\0",
        b"python\0train_notebook.py\0",
        b"python\0tensorboard_training.py\0",
        b"python\0notebook.py\0",
        b"python\0-u\0train.py\0monitor\0",
        b"python\0-m\0iofast\0bench\0",
    ],
)
def test_words_of_options_do_not_matter(proc: ProcFolder, line: bytes) -> None:
    proc.process(10, line=line)
    assert found(proc, 10) == [10]


def test_never_this_process_nor_what_it_runs_in(proc: ProcFolder) -> None:
    proc.process(10)
    proc.process(os.getpid(), parent=10)
    proc.thread(10, 20, "pt_autograd_0")
    assert found(proc, os.getpid()) == []


def test_only_this_users(proc: ProcFolder) -> None:
    if os.geteuid():
        pytest.skip("only root can make files of another user")
    os.chown(proc.process(10), 65534, 65534)
    assert found(proc, 10) == []


# --- job_of


def test_a_worker_leads_to_its_training(proc: ProcFolder) -> None:
    proc.process(10)
    proc.process(11, "pt_data_worker", 10)
    proc.process(12, parent=10)
    proc.process(13, parent=10, line=b"python\0-c\0from multiprocessing.spawn import spawn_main\0")
    assert {job_of(pid).pid for pid in (10, 11, 12, 13)} == {10}


def test_a_rank_that_was_spawned_is_no_worker(proc: ProcFolder) -> None:
    proc.process(5)
    for pid in (10, 20):
        proc.process(pid, parent=5, line=b"python\0-c\0from multiprocessing.spawn import spawn_main\0")
        proc.process(pid + 1, "pt_data_worker", pid)
    assert found(proc) == [10, 20]
    assert job_of(11).pid == 10
    assert job_of(20).pid == 20
    with pytest.raises(MonitorError, match="2 trainings: name one of 10, 20"):
        job_of(5)


def test_a_shell_leads_to_what_it_started(proc: ProcFolder) -> None:
    proc.process(5, "bash", line=b"bash\0train.sh\0")
    assert job_of(5).pid == 5
    proc.process(6, "uv", 5, line=b"uv\0run\0")
    proc.process(10, parent=6)
    proc.thread(10, 20, "pt_data_pin")
    assert job_of(5).pid == 10


@pytest.mark.parametrize(("state", "message"), [(None, "no process 10"), ("Z", "no process 10")])
def test_a_process_that_is_not_there(proc: ProcFolder, state: str | None, message: str) -> None:
    if state:
        proc.process(10, state=state)
    with pytest.raises(MonitorError, match=message):
        job_of(10)


def test_the_kernels_own(proc: ProcFolder) -> None:
    proc.process(10, "kworker/0:1", 2, line=b"")
    with pytest.raises(MonitorError, match="the kernel's"):
        job_of(10)


def test_another_users(proc: ProcFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = proc.process(10).stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    with pytest.raises(MonitorError, match=f"belongs to user {owner}"):
        job_of(10)


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
        (b"RANK=x\0WORLD_SIZE=8\0", None),
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
    peers = Peers(Job(10, 100, "python train.py", 0, 3))
    proc.state(20, "S", "poll_schedule_timeout")
    proc.state(30, "R")
    for _ in range(4):
        peers.look()
    assert peers.take() == {1: 1.0, 2: 0.0}
    proc.end(20)
    peers.look()
    assert peers.take() == {2: 0.0}
    peers.close()
    assert Peers(Job(10, 100, "python train.py")).take() == {}


# --- for real


def test_a_real_training() -> None:
    """A process named as torch names a worker, below one that is named like nothing."""
    program = """
        import ctypes, os, time
        child = os.fork()
        if not child:
            ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)
            time.sleep(60)
        time.sleep(0.1)
        print(child, flush=True)
        time.sleep(60)
    """
    with running(program) as process:
        threads = len(glob("/proc/[0-9]*/task/*"))
        start = time.thread_time()
        jobs = {job.pid: job for job in find_jobs()}
        assert time.thread_time() - start < 0.3 + 0.0005 * threads  # of everybody; 0.006 s for 65 processes
        assert process.pid in jobs
        (worker,) = ProcessTable(os.geteuid()).below(process.pid)
        assert job_of(worker) == job_of(process.pid) == jobs[process.pid]
        assert jobs[process.pid].command.startswith(sys.executable)
        assert os.getpid() not in jobs


def test_a_real_page() -> None:
    program = """
        from iofast.meter import LoaderInfo, Slot, Totals
        import time
        Slot(LoaderInfo("train", rank=1, world_size=4)).write(Totals(0, 1, 8, 1, 10, 5, 1, 0, 0, 1))
        print(1, flush=True)
        time.sleep(60)
    """
    with running(program) as process:
        jobs = {job.pid: job for job in find_jobs()}
        assert (jobs[process.pid].rank, jobs[process.pid].world_size) == (1, 4)
        process.kill()
        process.wait()
        assert until(lambda: process.pid not in {page.pid for page in telemetry.pages()})


def test_a_page_of_this_process_is_no_job() -> None:
    slot = Slot(LoaderInfo("mine"))
    slot.write(Totals())
    assert os.getpid() not in {job.pid for job in find_jobs()}
    slot.close()
