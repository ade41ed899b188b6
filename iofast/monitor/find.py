"""Which processes train: this user's, by GPU, telemetry page, and what PyTorch's threads and workers are called."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from iofast.errors import IofastError
from iofast.meter import pages
from iofast.monitor.probe.family import WORKER, Family, command_line
from iofast.monitor.probe.peers import rank_of
from iofast.monitor.probe.proc import AUTOGRAD, LOADER_THREADS
from iofast.monitor.probe.states import PROC, Gone, Stat, read_stat
from iofast.monitor.snapshot import Job

_NOT_TRAININGS: Final = re.compile(  # what an interpreter runs: a train_notebook.py is one
    r"(?!.*\.py$)(jupyter|ipykernel|notebook|tensorboard)([-_.].*)?$"
    r"|.*(multiprocessing\.(resource_tracker|forkserver)|compile_worker)",
    re.DOTALL,
)
_LIBRARIES: Final = (b"libtorch",)
_TRIAL_S: Final = 0.25
_USES_CPU: Final = 0.1  # of a core, in the trial
_MOST_THREADS: Final = 1024
_MOST_MAPS: Final = 4 << 20  # bytes of a list of mappings: of torch with CUDA it has 0.5 MB
_COMMAND: Final = 1000  # characters that are kept of a command


class MonitorError(IofastError, ValueError):
    """There is nothing to watch, or it may not be watched; the message says why."""


class Devices(Protocol):
    """What is asked of NvmlProbe: indices of GPUs by process."""

    def processes(self) -> Mapping[int, set[int]]: ...


@dataclass(frozen=True)
class _Listed:
    stat: Stat
    line: bytes


class ProcessTable:
    """The processes of a user at one moment; everybody's, without one."""

    def __init__(self, user: int | None, proc: Path = PROC) -> None:
        self.proc = proc
        self.processes: dict[int, _Listed] = {}
        for entry in proc.iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(Gone, OSError):
                    if user is None or entry.stat().st_uid == user:
                        pid = int(entry.name)
                        self.processes[pid] = _Listed(read_stat(pid, proc), command_line(pid, proc))

    def trainer(self, pid: int) -> int:
        """The process that a loader's worker works for; of any other process itself."""
        seen = {pid}
        while (process := self.processes.get(pid)) and (parent := process.stat.parent) not in seen:
            above = self.processes.get(parent)
            if above is None or not self._works_for(pid, process, above):
                return pid
            pid = parent
            seen.add(pid)
        return pid

    def _works_for(self, pid: int, process: _Listed, above: _Listed) -> bool:
        """A worker, a forked copy, or what multiprocessing started; but not a rank, which has workers of its own."""
        if process.stat.name == WORKER or b"multiprocessing.forkserver" in process.line:
            return True
        if b"_inductor/compile_worker" in process.line or b"multiprocessing.resource_tracker" in process.line:
            return True
        started = b"multiprocessing.spawn" in process.line or (process.line == above.line and _is_python(above))
        return started and not any(each.stat.parent == pid for each in self._named()) and not _threads(pid, self.proc)

    def _named(self) -> Iterator[_Listed]:
        return (each for each in self.processes.values() if each.stat.name == WORKER)

    def below(self, pid: int) -> set[int]:
        """Everybody below a process."""
        found: set[int] = set()
        grown = {pid}
        while grown:
            grown = {other for other, each in self.processes.items() if each.stat.parent in grown} - found
            found |= grown
        return found


def find_jobs(nvml: Devices | None = None, proc: Path = PROC) -> list[Job]:
    """Trainings of this user, by pid. Takes a quarter of a second, to see which processes compute.

    Never the monitor itself or what it runs in, nor a Jupyter; a notebook that trains can be named by its pid.
    """
    table = ProcessTable(os.geteuid(), proc)
    own = _own_line(table)
    reporting = {page.pid for page in pages()}
    on_gpu = set(nvml.processes()) if nvml is not None else set()
    sure = (reporting | on_gpu) & table.processes.keys()
    for pid, process in table.processes.items():
        if process.stat.name == WORKER:
            sure.add(table.trainer(pid))
    maybe = []
    for pid, process in table.processes.items():
        if pid in sure or pid in own or not _is_python(process) or _is_never(process):
            continue
        if _threads(pid, proc):
            sure.add(table.trainer(pid))
        elif _maps(pid, proc):
            maybe.append(pid)
    sure |= {table.trainer(pid) for pid in _computing(maybe, proc)}
    return [
        job
        for pid in sorted(sure)
        if pid in table.processes
        and pid not in own
        and not _is_never(table.processes[pid])
        and table.processes[pid].stat.name != WORKER
        and (job := _job(pid, table))
    ]


def job_of(pid: int, proc: Path = PROC) -> Job:
    """The job that a process belongs to: of a loader's worker its trainer, of a launcher the rank that it started.

    Raises MonitorError where there is no such process, it is another user's, or it has started several ranks.
    """
    folder = proc / str(pid)
    try:
        owner = folder.stat().st_uid
        stat = read_stat(pid, proc)
    except (OSError, Gone):
        raise MonitorError(f"there is no process {pid} to watch here, or it has ended") from None
    if os.geteuid() not in (0, owner):
        raise MonitorError(f"process {pid} belongs to user {owner}, this is user {os.geteuid()}: watch it as that user")
    table = ProcessTable(None if os.geteuid() == 0 else owner, proc)
    line = command_line(pid, proc)
    if not line and stat.parent in (0, 2):
        raise MonitorError(f"process {pid} is the kernel's ({stat.name}): expected a training")
    trainer = table.trainer(pid)
    if trainer == pid and not _trains(pid, table):
        ranks = sorted({table.trainer(other) for other in table.below(pid) if _trains(other, table)} - {pid})
        if len(ranks) > 1:
            listed = ", ".join(map(str, ranks[:16]))
            raise MonitorError(f"process {pid} has started {len(ranks)} trainings: name one of {listed}")
        trainer = ranks[0] if ranks else pid
    job = _job(trainer, table)
    if job is None:
        raise MonitorError(f"there is no process {pid} to watch here, or it has ended")
    return job


def _job(pid: int, table: ProcessTable) -> Job | None:
    try:
        stat = read_stat(pid, table.proc)
    except Gone:
        return None
    rank, size = rank_of(pid, table.proc) or (None, None)
    for page in pages() if rank is None else ():
        if page.pid == pid and page.start_time == stat.start_time:
            rank, size = page.rank, page.world_size or None
    words = command_line(pid, table.proc).decode(errors="replace").split("\0")
    return Job(pid, stat.start_time, " ".join(words).strip()[:_COMMAND] or stat.name, rank, size)


def _own_line(table: ProcessTable) -> set[int]:
    """This process and those that it runs in."""
    found, pid = set(), os.getpid()
    while pid and pid not in found:
        found.add(pid)
        pid = table.processes[pid].stat.parent if pid in table.processes else 0
    return found


def _trains(pid: int, table: ProcessTable) -> bool:
    """By threads, workers, or a mapped libtorch with workers or not; launchers that only import torch are idle."""
    process = table.processes.get(pid)
    if process is None or not _is_python(process) or _is_never(process):
        return False
    named = any(each.stat.parent == pid for each in table._named())
    return named or bool(_threads(pid, table.proc)) or any(page.pid == pid for page in pages())


def _threads(pid: int, proc: Path) -> set[str]:
    """Names of its threads that only a training has."""
    found = set()
    with contextlib.suppress(OSError):
        for tid in os.listdir(proc / str(pid) / "task")[:_MOST_THREADS]:
            with contextlib.suppress(OSError):
                name = (proc / str(pid) / "task" / tid / "comm").read_text(errors="replace").rstrip()
                if name.startswith((AUTOGRAD, *LOADER_THREADS)):
                    found.add(name)
    return found


def _maps(pid: int, proc: Path) -> bool:
    try:
        with open(proc / str(pid) / "maps", "rb") as file:
            text = file.read(_MOST_MAPS)
    except OSError:
        return False
    return any(library in text for library in _LIBRARIES)


def _computing(pids: list[int], proc: Path) -> list[int]:
    """Those that use a processor while we look."""

    def used() -> dict[int, float]:
        found = {}
        for pid in pids:
            with contextlib.suppress(Gone):
                found[pid] = read_stat(pid, proc).cpu_s + _of_workers(pid, proc)
        return found

    if not pids:
        return []
    before = used()
    time.sleep(_TRIAL_S)
    return [pid for pid, seconds in used().items() if seconds - before.get(pid, seconds) >= _USES_CPU * _TRIAL_S]


def _of_workers(pid: int, proc: Path) -> float:
    """CPU time of its workers: where they are slow, the training itself has nothing to do."""
    total = 0.0
    with contextlib.suppress(Gone):
        for kin in Family(pid, proc).kin():
            if kin.role == "worker":
                with contextlib.suppress(Gone):
                    total += read_stat(kin.pid, proc).cpu_s
    return total


def _is_python(process: _Listed) -> bool:
    words = process.line.split(b"\0", 1)[0]
    return b"python" in os.path.basename(words) or process.stat.name.startswith(("python", "pt_"))


def _is_never(process: _Listed) -> bool:
    words = process.line.decode(errors="replace").split("\0")
    program = _program(words)
    if program in ("iofast", "iofast.__main__"):
        return "monitor" in words
    return _NOT_TRAININGS.match(program) is not None


def _program(words: list[str]) -> str:
    """What an interpreter was told to run: the name of a script without its folder, a module, or the text after -c."""
    at = 1
    while at < len(words):
        word = words[at]
        if word in ("-m", "-c"):
            return words[at + 1] if at + 1 < len(words) else ""
        if not word.startswith("-"):
            return word if "compile_worker" in word else os.path.basename(word)
        at += 2 if word in ("-W", "-X") else 1
    return os.path.basename(words[0])
