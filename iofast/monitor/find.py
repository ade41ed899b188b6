"""Which processes train: this user's, by GPU, telemetry page, and the names of PyTorch's threads and workers."""

import contextlib
import os
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from iofast.errors import IofastError
from iofast.meter import pages
from iofast.monitor.probe.proc import TRAINING_THREADS, WORKER, rank_of
from iofast.monitor.probe.states import (
    TICKS,
    Gone,
    Stat,
    below,
    command_line,
    folder,
    interpreted,
    process_table,
    read_stat,
)
from iofast.monitor.snapshot import Job

_NOT_TRAININGS: Final = re.compile(  # what an interpreter runs: a train_notebook.py may train
    r"(?!.*\.py$)(jupyter|ipykernel|notebook|tensorboard|pytest|py\.test|unittest|nose2?|tox|nox|coverage|mypy|ruff|pip)"
    r"([-_.].*)?$|.*(multiprocessing\.(resource_tracker|forkserver)|compile_worker|exec\(eval\(sys\.stdin)",
    re.DOTALL,
)
_STARTED: Final = (b"multiprocessing.forkserver", b"_inductor/compile_worker", b"multiprocessing.resource_tracker")
LEAST_AGE_S: Final = 10.0  # of a process without workers, a page or a GPU: most that compute with torch end sooner
_TRIAL_S: Final = 0.25
_USES_CPU: Final = 0.1  # of a core, in the trial
_MOST_THREADS: Final = 1024
_MOST_MAPS: Final = 4 << 20  # bytes of a list of mappings: torch with CUDA has 0.5 MB
_COMMAND: Final = 1000  # characters of a command that are kept


class MonitorError(IofastError, ValueError):
    """There is nothing to watch, or it must not be watched; the message gives the reason."""


@dataclass(frozen=True)
class _Candidate:
    stat: Stat
    line: bytes

    @property
    def is_worker(self) -> bool:
        return self.stat.name == WORKER

    @property
    def is_python(self) -> bool:
        program = os.path.basename(self.line.split(b"\0", 1)[0])
        return b"python" in program or self.stat.name.startswith(("python", "pt_"))

    @property
    def may_train(self) -> bool:
        return self.is_python and not self.never_trains

    @property
    def never_trains(self) -> bool:
        words = self.line.decode(errors="replace").split("\0")
        program = interpreted(words)
        program = program if "compile_worker" in program else os.path.basename(program)
        if program in ("iofast", "iofast.__main__"):
            return "monitor" in words
        return _NOT_TRAININGS.match(program) is not None


class ProcessTable:
    """The processes of a user at one moment; without a user, all processes."""

    def __init__(self, user: int | None) -> None:
        self.processes: dict[int, _Candidate] = {}
        for pid, stat in process_table().items():
            with contextlib.suppress(OSError):
                if user is None or folder(pid).stat().st_uid == user:
                    self.processes[pid] = _Candidate(stat, command_line(pid))
        self.pages = {page.pid: page for page in pages()}

    def trainer(self, pid: int) -> int:
        """The process that a loader's worker works for; for any other process, itself."""
        for _ in self.processes:  # at most: numbers may have been used again while the table was read
            process = self.processes.get(pid)
            above = process and self.processes.get(process.stat.parent)
            if process is None or above is None or not self._works_for(pid, process, above):
                break
            pid = process.stat.parent
        return pid

    def _works_for(self, pid: int, process: _Candidate, above: _Candidate) -> bool:
        """A worker, a forked copy, or a process of multiprocessing; but no rank, which has workers of its own."""
        if process.is_worker or any(part in process.line for part in _STARTED):
            return True
        copy = b"multiprocessing.spawn" in process.line or (process.line == above.line and above.may_train)
        return copy and not self._has_loader(pid)

    def _has_loader(self, pid: int) -> bool:
        """Whether it has workers, or threads that only a training has."""
        workers = any(each.is_worker and each.stat.parent == pid for each in self.processes.values())
        return workers or _has_named_threads(pid)

    def below(self, pid: int) -> set[int]:
        """All descendants of a process."""
        return below({other: each.stat for other, each in self.processes.items()}, {pid})

    def above(self, pid: int) -> set[int]:
        """A process and its ancestors."""
        found = set[int]()
        while pid in self.processes and pid not in found:
            found.add(pid)
            pid = self.processes[pid].stat.parent
        return found

    def trains(self, pid: int) -> bool:
        """Whether it has workers, threads of a loader or a telemetry page: launchers that import torch have none."""
        process = self.processes.get(pid)
        if process is None or not process.may_train:
            return False
        return pid in self.pages or self._has_loader(pid)

    def job(self, pid: int) -> Job:
        """The job of a process in the table."""
        process = self.processes[pid]
        rank, size = rank_of(pid) or (None, None)
        if rank is None and (page := self.pages.get(pid)) is not None:
            rank, size = page.rank, page.world_size or None
        command = process.line.decode(errors="replace").replace("\0", " ").strip()[:_COMMAND]
        return Job(pid, process.stat.start_time, command or process.stat.name, rank, size)


def find_jobs(on_gpu: Collection[int] = (), least_age_s: float = LEAST_AGE_S) -> list[Job]:
    """Return the trainings of this user, by pid. `on_gpu`: processes that a driver lists.

    Of younger processes than `least_age_s` only those with workers, a telemetry page or a GPU.

    Takes a quarter of a second, to see which processes compute. Never returns the monitor itself, its parents, or a
    Jupyter server; a notebook that trains can be named by its pid.
    """
    table = ProcessTable(os.geteuid())
    own = table.above(os.getpid())
    sure = table.pages.keys() | set(on_gpu)
    sure |= {table.trainer(pid) for pid, process in table.processes.items() if process.is_worker}
    likely = []
    for pid, process in table.processes.items():
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - process.stat.start_time / TICKS
        if pid in sure or pid in own or age_s < least_age_s or not process.may_train:
            continue
        if _has_named_threads(pid):
            sure.add(table.trainer(pid))
        elif _maps_torch(pid):
            likely.append((pid, process.stat.cpu_s))
    time.sleep(_TRIAL_S if likely else 0.0)
    sure |= {table.trainer(pid) for pid, cpu_s in likely if _cpu_s(pid) - cpu_s >= _USES_CPU * _TRIAL_S}
    processes = ((pid, table.processes[pid]) for pid in sorted((sure & table.processes.keys()) - own))
    return [table.job(pid) for pid, each in processes if not each.never_trains and not each.is_worker]


def job_of(pid: int) -> Job:
    """Return the job that a process belongs to: for a worker its trainer, for a launcher the rank that it started.

    Raises MonitorError when there is no such process, it is another user's, or it has started several ranks.
    """
    missing = MonitorError(f"there is no process {pid} to watch here, or it has ended")
    try:
        owner = folder(pid).stat().st_uid
    except OSError:
        raise missing from None
    if os.geteuid() not in (0, owner):
        raise MonitorError(f"process {pid} belongs to user {owner}, this is user {os.geteuid()}: watch it as that user")
    table = ProcessTable(None if os.geteuid() == 0 else owner)
    if (own := table.processes.get(pid)) is None:
        raise missing
    if own.stat.parent in (0, 2) and not own.line:
        raise MonitorError(f"process {pid} is the kernel's ({own.stat.name}): expected a training")
    trainer = table.trainer(pid)
    if trainer == pid and not table.trains(pid):
        started = table.below(pid)
        ranks = {table.trainer(other) for other in started if table.trains(other)} - {pid}
        if len(ranks) > 1:
            listed = ", ".join(map(str, sorted(ranks)[:16]))
            raise MonitorError(f"process {pid} has started {len(ranks)} trainings: name one of {listed}")
        programs = {table.trainer(one) for one in started if table.processes[one].may_train}
        if not ranks and len(programs) == 1 and not own.is_python:
            ranks = programs  # of `timeout`, or of a shell: it may train later
        trainer = next(iter(ranks), pid)
    return table.job(trainer)


def _has_named_threads(pid: int) -> bool:
    """Whether it has threads whose names only a training's threads have."""
    tasks = folder(pid) / "task"
    with contextlib.suppress(OSError):
        for tid in os.listdir(tasks)[:_MOST_THREADS]:
            with contextlib.suppress(OSError):
                if (tasks / tid / "comm").read_text(errors="replace").startswith(TRAINING_THREADS):
                    return True
    return False


def _maps_torch(pid: int) -> bool:
    try:
        with open(folder(pid) / "maps", "rb") as file:
            return b"libtorch" in file.read(_MOST_MAPS)
    except OSError:
        return False


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(Gone):
        return read_stat(pid).cpu_s
    return 0.0
