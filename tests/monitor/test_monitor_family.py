"""The processes below a training process, and which of them load."""

from __future__ import annotations

from proc_folder import TRAIN, ProcFolder, job

from iofast.monitor.probe.family import Family
from iofast.monitor.probe.proc import ProcProbe

SPAWNED = b"python\0-c\0from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)\0"
SERVER = b"python\0-c\0from multiprocessing.forkserver import main; main(5, 6, ['__main__'])\0"
TRACKER = b"python\0-c\0from multiprocessing.resource_tracker import main;main(4)\0"
COMPILING = b"python\0/lib/torch/_inductor/compile_worker/__main__.py\0--workers=2\0"


def roles(proc: ProcFolder, pid: int = 10) -> dict[int, str]:
    return {kin.pid: kin.role for kin in Family(pid).kin()}


def test_torch_names_its_workers(proc: ProcFolder) -> None:
    proc.process(10)
    proc.process(11, "pt_data_worker", 10)
    proc.process(12, "pt_data_worker", 10, line=SPAWNED)
    proc.process(13, "python", 10)  # a forked process of something else, a manager
    proc.process(14, "nvidia-smi", 10, line=b"nvidia-smi\0")
    assert roles(proc) == {11: "worker", 12: "worker", 13: "other", 14: "other"}


def test_workers_without_a_name(proc: ProcFolder) -> None:
    proc.process(10)
    proc.process(11, parent=10)
    proc.process(12, parent=10, line=SPAWNED)
    proc.process(13, parent=10, line=TRACKER)
    proc.process(14, parent=10, line=b"python\0other.py\0")
    assert roles(proc) == {11: "worker", 12: "worker", 13: "other", 14: "other"}


def test_workers_of_a_fork_server(proc: ProcFolder) -> None:
    proc.process(10)
    proc.process(11, parent=10, line=SERVER)
    proc.process(12, parent=11, line=SERVER)
    proc.process(13, parent=11, line=SERVER)
    assert roles(proc) == {11: "other", 12: "worker", 13: "worker"}


def test_compiling_is_not_loading(proc: ProcFolder) -> None:
    proc.process(10)
    proc.process(11, parent=10, line=COMPILING)
    proc.process(12, "pt_data_worker", 11, line=COMPILING)  # whatever it is called
    proc.process(13, parent=11)
    assert roles(proc) == {11: "other", 12: "other", 13: "other"}


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
    proc.process(10)
    proc.process(11, parent=10, line=SPAWNED)
    proc.process(12, parent=10)
    probe = ProcProbe(job(10))
    assert probe.workers == (11, 12)
    proc.stat(proc.path / "11", 11, "pt_data_worker", 10)
    probe.take(1.0)
    assert probe.workers == (11,)


def test_what_a_command_line_was_is_remembered(proc: ProcFolder) -> None:
    proc.process(10)
    proc.process(11, parent=10)
    family = Family(10)
    for _ in range(3):
        family.kin()
    (proc.path / "11" / "cmdline").unlink()
    assert [kin.role for kin in family.kin()] == ["worker"]
    assert TRAIN in {line for line, _ in family._lines.values()}
