"""The processes below a training process, which of them make batches, and the other ranks of its job.

torch names a worker's process pt_data_worker since 2.5. Where no process has that name, a worker is a process that
multiprocessing started: a child with its parent's command line (fork), or with the start-up command of spawn or
forkserver.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from iofast.machine import RANKS, SLURM_RANK
from iofast.monitor.probe.states import Gone, Stat, Thread, command_line, folder, process_table, read_stat
from iofast.monitor.snapshot import Doing, Job

WORKER: Final = "pt_data_worker"
_COMPILING: Final = (b"_inductor/compile_worker", b"torch._inductor.compile_worker")
_SPAWN: Final = b"from multiprocessing.spawn import spawn_main"
_FORKSERVER: Final = b"from multiprocessing.forkserver import main"
_STEADY: Final = 3  # a command line is read so often: an exec comes right after the fork
_MOST: Final = 4096  # processes below one
_MOST_PEERS: Final = 8


class Kin(NamedTuple):
    """A process below the training process. `role` as in ProcessFigures."""

    pid: int
    start_time: int
    role: str


class Family:
    """Descendants of `pid`. Command lines are kept: reading one can wait for a process that waits for a disk."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._lines: dict[tuple[int, int, str], tuple[bytes, int]] = {}  # with the number of reads
        self._lines_before = self._lines

    def kin(self) -> list[Kin]:
        """All descendants, parents first. Raises Gone when the process itself has ended."""
        own = read_stat(self.pid)
        self._lines_before, self._lines = self._lines, {}
        own_line = self._line(self.pid, own)
        children = self._children_by_kernel()
        found: dict[int, Kin] = {}
        servers, likely, compiling = set[int](), set[int](), set[int]()
        queue = list(children(self.pid))
        for pid in queue:  # grows while it is walked
            if pid in found or len(found) >= _MOST:
                continue
            try:
                stat = read_stat(pid)
            except Gone:
                continue
            line = self._line(pid, stat)
            if stat.parent in compiling or any(part in line for part in _COMPILING):
                compiling.add(pid)
            elif _FORKSERVER in line and stat.parent not in servers:
                servers.add(pid)
            elif stat.parent in servers or (stat.parent == self.pid and (_SPAWN in line or line == own_line != b"")):
                likely.add(pid)
            role = "worker" if stat.name == WORKER and pid not in compiling else "other"
            found[pid] = Kin(pid, stat.start_time, role)
            queue += children(pid)
        if not any(kin.role == "worker" for kin in found.values()):
            found.update({pid: found[pid]._replace(role="worker") for pid in likely})
        return list(found.values())

    def _children_by_kernel(self) -> Callable[[int], Iterable[int]]:
        """How to get a process's children: a kernel may be built without the files that list them."""
        if (folder(self.pid) / "task" / str(self.pid) / "children").exists():
            return self._listed_children
        children: dict[int, list[int]] = {}
        for pid, stat in process_table().items():
            children.setdefault(stat.parent, []).append(pid)
        return lambda pid: children.get(pid, ())

    def _listed_children(self, pid: int) -> Iterator[int]:
        """Children of all threads: a child belongs to the thread that forked it."""
        with contextlib.suppress(OSError):
            for task in (folder(pid) / "task").iterdir():
                with contextlib.suppress(OSError, ValueError):
                    yield from map(int, (task / "children").read_bytes().split())

    def _line(self, pid: int, stat: Stat) -> bytes:
        key = pid, stat.start_time, stat.name
        line, reads = self._lines_before.get(key, (b"", 0))
        if reads < _STEADY:
            line, reads = command_line(pid), reads + 1
        self._lines[key] = line, reads
        return line


def rank_of(pid: int) -> tuple[int, int] | None:
    """(rank, world size) that the launcher wrote into the environment of a process; None where it cannot be read."""
    try:
        words = (folder(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    values = dict(word.decode(errors="replace").split("=", 1) for word in words if b"=" in word)
    for names in (*RANKS, SLURM_RANK):
        rank, size = (values.get(name, "") for name in names)
        if f"{rank}{size}".isascii() and rank.isdigit() and size.isdigit() and int(rank) < int(size):
            return int(rank), int(size)
    return None


class Peers:
    """Training threads of the ranks that the same launcher started; none where the job's rank is unknown.

    So a slow rank is not taken for a slow device. Ranks with a telemetry page report themselves (PagesProbe).
    """

    def __init__(self, job: Job) -> None:
        self._threads: dict[int, Thread] = {}
        if job.rank is None or job.world_size is None or job.world_size < 2:
            return
        for pid in _siblings(job.pid):
            rank, size = rank_of(pid) or (job.rank, 0)
            if rank != job.rank and size == job.world_size and len(self._threads) < _MOST_PEERS:
                with contextlib.suppress(OSError):
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
        return {
            rank: thread.take().doings.get(Doing.QUEUE, 0.0) for rank, thread in self._threads.items() if thread.doings
        }


def _siblings(pid: int) -> list[int]:
    """Children of the same parent with the same command: this is how launchers start ranks."""
    table, command = process_table(), command_line(pid)
    alike = [other for other, stat in table.items() if pid in table and stat.parent == table[pid].parent]
    return sorted(other for other in alike if other != pid and command_line(other) == command)
