"""The processes below a training process, and which of them load."""

from __future__ import annotations

import pytest
from proc_folder import TRAIN, ProcFolder, job

from iofast.monitor.probe.family import Family
from iofast.monitor.probe.proc import ProcProbe

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
    return {kin.pid: kin.role for kin in Family(10).kin()}


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
    probe.take(1.0)
    assert probe.workers == (11,)


def test_command_lines_are_kept(proc: ProcFolder) -> None:
    proc.process(10)
    proc.process(11, parent=10)
    family = Family(10)
    for _ in range(3):
        family.kin()
    (proc.path / "11" / "cmdline").unlink()
    assert [kin.role for kin in family.kin()] == ["worker"]
