"""Other ranks of a job on this machine: how long each waits, so that a slow rank is not taken for a slow device.

Ranks with a telemetry page report it themselves (PagesProbe). Of the others the training thread is looked at.
"""

from __future__ import annotations

import contextlib
from typing import Final

from iofast.monitor.probe.states import Gone, Thread, command_line, folder, process_ids, read_stat
from iofast.monitor.snapshot import Doing, Job

_MOST: Final = 8
_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def rank_of(pid: int) -> tuple[int, int] | None:
    """(rank, world size) that the launcher wrote into the environment of a process; None where it cannot be read."""
    try:
        words = (folder(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    values = dict(word.decode(errors="replace").split("=", 1) for word in words if b"=" in word)
    for names in _VARIABLES:
        rank, size = (values.get(name, "") for name in names)
        if f"{rank}{size}".isascii() and rank.isdigit() and size.isdigit() and int(rank) < int(size):
            return int(rank), int(size)
    return None


class Peers:
    """Training threads of the ranks that the same launcher started; none where the job's rank is unknown."""

    def __init__(self, job: Job) -> None:
        self._threads: dict[int, Thread] = {}
        if job.rank is None or job.world_size is None or job.world_size < 2:
            return
        for pid in _siblings(job.pid):
            rank, size = rank_of(pid) or (job.rank, 0)
            if rank != job.rank and size == job.world_size and len(self._threads) < _MOST:
                with contextlib.suppress(Gone, OSError):
                    self._threads[rank] = Thread(pid, folder(pid) / "task" / str(pid))

    def look(self) -> None:
        """Look once at each rank."""
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


def _siblings(pid: int) -> list[int]:
    """Children of the same parent with the same command: this is how launchers start ranks."""
    found = []
    with contextlib.suppress(Gone):
        parent, command = read_stat(pid).parent, command_line(pid)
        for other in process_ids():
            with contextlib.suppress(Gone):
                if other != pid and read_stat(other).parent == parent and command_line(other) == command:
                    found.append(other)
    return sorted(found)
