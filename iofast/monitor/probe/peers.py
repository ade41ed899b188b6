"""Other ranks of a job on this machine: how much each waits, so that a slow one is not taken for a slow device.

Those with a telemetry page say it themselves (PagesProbe); of the others the training thread is looked at now and then.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from iofast.monitor.probe.family import command_line
from iofast.monitor.probe.states import PROC, Gone, Thread, read_stat
from iofast.monitor.snapshot import Doing, Job

_MOST: Final = 8
_NAMES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def rank_of(pid: int, proc: Path = PROC) -> tuple[int, int] | None:
    """(rank, world size) as the launcher wrote them into the environment of a process of this user."""
    try:
        words = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    given = dict(word.decode(errors="replace").split("=", 1) for word in words if b"=" in word)
    for rank, size in _NAMES:
        found, world = given.get(rank, ""), given.get(size, "")
        if found.isascii() and world.isascii() and found.isdigit() and world.isdigit() and int(found) < int(world):
            return int(found), int(world)
    return None


class Peers:
    """Training threads of the ranks that the same launcher started; none where the job's rank is not known."""

    def __init__(self, job: Job, proc: Path = PROC) -> None:
        self._threads: dict[int, Thread] = {}
        if job.rank is None or job.world_size is None or job.world_size < 2:
            return
        for pid in _siblings(job.pid, proc):
            found = rank_of(pid, proc)
            if found is not None and found[0] != job.rank and found[1] == job.world_size and len(self._threads) < _MOST:
                with contextlib.suppress(Gone, OSError):
                    self._threads[found[0]] = Thread(pid, proc / str(pid) / "task" / str(pid))

    def look(self) -> None:
        """One look at each."""
        for rank, thread in list(self._threads.items()):
            try:
                thread.look()
            except Gone:
                del self._threads[rank]

    def take(self) -> dict[int, float]:
        """Share of the looks since the last take in which a rank waited for a queue, by rank."""
        return {rank: thread.take()[2].get(Doing.QUEUE, 0.0) for rank, thread in self._threads.items() if thread.doings}

    def close(self) -> None:
        """Close the files."""
        for thread in self._threads.values():
            thread.close()
        self._threads = {}


def _siblings(pid: int, proc: Path) -> list[int]:
    """Children of the same parent with the same command, as a launcher starts ranks."""
    try:
        parent, command = read_stat(pid, proc).parent, command_line(pid, proc)
    except Gone:
        return []
    found = []
    for entry in proc.iterdir():
        if entry.name.isdigit() and int(entry.name) != pid:
            with contextlib.suppress(Gone):
                if read_stat(int(entry.name), proc).parent == parent and command_line(int(entry.name), proc) == command:
                    found.append(int(entry.name))
    return sorted(found)
