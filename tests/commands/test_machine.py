"""Rank and cores of this process, from the variables of launchers and from the system."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iofast import machine
from iofast.errors import OptionError

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM", "OMPI", "PMI", "MPI_LOCAL")
BATCH_SCRIPT, INTERACTIVE = str(0xFFFFFFFB), str(0xFFFFFFFA)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variables of a launcher, wherever the tests run."""
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)


def put(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    for word in text.split():
        name, _, value = word.partition("=")
        monkeypatch.setenv(name, value)


SRUN = "SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4"
RANKS = {
    "": None,
    "RANK=2 WORLD_SIZE=8": (2, 8),
    "RANK= WORLD_SIZE=": None,
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2": (1, 2),
    "PMI_RANK=5 PMI_SIZE=6": (5, 6),
    SRUN: (3, 4),
    "SLURM_STEP_ID=12 SLURM_PROCID=0 SLURM_NTASKS=2": (0, 2),
    "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=16 SLURM_STEP_NUM_TASKS=2": (0, 2),  # srun -n 2 in a job of 16
    # shells with a job's variables that are not its tasks
    "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0": None,
    f"SLURM_STEP_ID={BATCH_SCRIPT} SLURM_NTASKS=4 SLURM_PROCID=0": None,
    f"SLURM_STEP_ID={INTERACTIVE} SLURM_NTASKS=4 SLURM_PROCID=0": None,
    "SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_PTY_PORT=40000": None,
    # nested launchers: the inner one counts
    SRUN + " RANK=9 WORLD_SIZE=16": (9, 16),
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 RANK=9 WORLD_SIZE=16": (9, 16),
}


@pytest.mark.parametrize("text", RANKS)
def test_the_launchers_rank(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    put(monkeypatch, text)
    assert machine.launcher_rank() == RANKS[text]


BAD = {
    "RANK=0": "WORLD_SIZE is not set: expected it beside RANK=0",
    "WORLD_SIZE=4": "RANK is not set: expected it beside WORLD_SIZE=4",
    "RANK=4 WORLD_SIZE=4": "RANK must be below WORLD_SIZE=4, found RANK=4",
    "RANK=-1 WORLD_SIZE=4": "RANK must be a whole number of at least 0, found RANK='-1'",
    "RANK=1 WORLD_SIZE=0": "WORLD_SIZE must be a whole number of at least 1, found WORLD_SIZE='0'",
    "RANK=² WORLD_SIZE=4": "found RANK='²'",
    "PMI_RANK=2": "PMI_SIZE is not set: expected it beside PMI_RANK=2",
    "SLURM_STEP_ID=0 SLURM_PROCID=0": "SLURM_NTASKS is not set: expected it beside SLURM_PROCID=0",
}


@pytest.mark.parametrize("text", BAD)
def test_invalid_variables(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    put(monkeypatch, text)
    with pytest.raises(OptionError) as caught:
        machine.launcher_rank()
    assert BAD[text] in str(caught.value)
    assert "\n" not in str(caught.value)


LOCAL = {
    "": 1,
    "LOCAL_WORLD_SIZE=4": 4,
    "OMPI_COMM_WORLD_LOCAL_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=0": 3,
    "MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1": 2,
    SRUN + " SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_NODEID=2": 2,
    SRUN + " SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_NODEID=3": 1,
    SRUN + " SLURM_TASKS_PER_NODE=8": 8,
    SRUN + " SLURM_STEP_TASKS_PER_NODE=1 LOCAL_WORLD_SIZE=8": 8,  # srun starts one torchrun a machine
    "SLURM_TASKS_PER_NODE=8 SLURM_NTASKS=8": 1,  # a shell
}


@pytest.mark.parametrize("text", LOCAL)
def test_ranks_of_this_machine(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    put(monkeypatch, text)
    assert machine.local_ranks() == LOCAL[text]


@pytest.mark.parametrize(
    "text",
    [
        "LOCAL_WORLD_SIZE=none",
        "LOCAL_WORLD_SIZE=2 LOCAL_RANK=2",
        SRUN + " SLURM_STEP_TASKS_PER_NODE=some",
        SRUN + " SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_NODEID=2",
    ],
)
def test_invalid_variables_of_this_machine(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    put(monkeypatch, text)
    with pytest.raises(OptionError, match="found"):
        machine.cores_of_rank()


class TestCores:
    """A machine with 64 cores."""

    @pytest.fixture(autouse=True)
    def big(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch, self.tree = monkeypatch, tmp_path
        monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
        monkeypatch.setattr(machine, "_PROC_CGROUP", tmp_path / "self")
        (tmp_path / "self").write_text("0::/\n")
        monkeypatch.setattr(os, "cpu_count", lambda: 64)
        self.affinities(range(64), range(64))

    def affinities(self, mine: range, launcher: range) -> None:
        self.patch.setattr(os, "sched_getaffinity", lambda pid: set(mine if pid == 0 else launcher))

    def cores(self, text: str = "") -> int:
        put(self.patch, text)
        return machine.cores_of_rank()

    @pytest.mark.parametrize(
        ("mine", "launcher", "ranks", "each"),
        [
            (range(64), range(64), 6, 10),
            (range(64), range(64), 100, 1),
            (range(8, 16), range(64), 8, 8),  # pinned apart
            (range(8), range(8), 8, 1),  # taskset -c 0-7 torchrun: the whole job is pinned
            (range(32), range(64), 8, 4),  # not enough cores for 8 ranks of 32
        ],
    )
    def test_shares(self, mine: range, launcher: range, ranks: int, each: int) -> None:
        self.affinities(mine, launcher)
        assert self.cores(f"LOCAL_WORLD_SIZE={ranks}") == each

    def test_a_container_with_a_set_of_cores(self) -> None:
        self.affinities(range(16), range(64))
        assert self.cores("LOCAL_WORLD_SIZE=4") == 16
        (self.tree / "cpuset.cpus.effective").write_text("0-11,16-19\n")
        assert self.cores() == 4

    def test_slurm_without_binding(self) -> None:
        self.affinities(range(16), range(64))  # the step daemon is outside of the job
        text = f"{SRUN} SLURM_STEP_TASKS_PER_NODE=4"
        assert self.cores(f"{text} SLURM_CPUS_ON_NODE=16") == 4
        assert self.cores(f"{text} SLURM_CPUS_ON_NODE=64") == 16

    def test_ranks_share_a_quota(self) -> None:
        (self.tree / "cpu.max").write_text("650000 100000\n")
        assert self.cores() == 7
        assert self.cores("LOCAL_WORLD_SIZE=2") == 3
        self.affinities(range(8), range(64))
        assert self.cores() == 3
        assert self.cores("LOCAL_WORLD_SIZE=8") == 1


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be divided")
def test_real_processes() -> None:
    """Two ranks, without and with a core of their own, started by a wrapper that has their variables too."""
    cores = sorted(os.sched_getaffinity(0))
    environment = {**os.environ, "LOCAL_WORLD_SIZE": "2"}

    def rank(pin: str) -> int:
        shares = "from iofast.machine import cores_of_rank; print(cores_of_rank())"
        wrapper = f"import os, subprocess, sys; {pin}; subprocess.call([sys.executable, '-c', {shares!r}])"
        command = [sys.executable, "-c", wrapper]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        return int(done.stdout)

    assert rank("pass") == max(1, machine.cores() // 2)
    assert rank(f"os.sched_setaffinity(0, {{{cores[0]}}})") == 1


def test_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    psutil = pytest.importorskip("psutil")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert machine.free_memory() > 0


def test_a_name_of_the_package_that_is_first_used_at_exit() -> None:
    """In `__del__`, when nothing can be imported any more."""
    script = """
import builtins, iofast
class Late:
    def __del__(self):
        iofast.FastLoader
builtins.late = Late()
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "ImportError" not in run.stderr
    assert "RuntimeError: iofast.FastLoader cannot be loaded while the interpreter exits" in run.stderr
