"""The processes below a training process, which of them make batches, and the other ranks of its job.

torch names a worker's process pt_data_worker since 2.5. Where no process has that name, a worker is a process that
multiprocessing started: a child with its parent's command line (fork), or with the start-up command of spawn or
forkserver.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from iofast.machine import RANKS, SLURM_RANK
from iofast.monitor.probe.states import Gone, Stat, Thread, command_line, folder, process_table, read_stat
from iofast.monitor.snapshot import Job

WORKER: Final = "pt_data_worker"
_COMPILING: Final = (b"_inductor/compile_worker", b"torch._inductor.compile_worker")
_SPAWN: Final = b"from multiprocessing.spawn import spawn_main"
_FORKSERVER: Final = b"from multiprocessing.forkserver import main"
_STEADY: Final = 3  # a command line is read so often: an exec comes right after the fork
_MOST: Final = 4096  # processes below one
_MOST_PEERS: Final = 8


class Family:
    """Descendants of `pid`. Command lines are kept: reading one can wait for a process that waits for a disk."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._lines: dict[tuple[int, int, str], tuple[bytes, int]] = {}  # with the number of reads

    def roles(self) -> dict[tuple[int, int], str]:
        """Roles (as in ProcessFigures) of all descendants by pid and start time, parents first.

        Raises Gone when the process itself has ended.
        """
        before, self._lines = self._lines, {}

        def line_of(pid: int, stat: Stat) -> bytes:
            key = pid, stat.start_time, stat.name
            line, reads = before.get(key, (b"", 0))
            self._lines[key] = (line, reads) if reads >= _STEADY else (command_line(pid), reads + 1)
            return self._lines[key][0]

        own_line = line_of(self.pid, read_stat(self.pid))
        children = self._children_by_kernel()
        found: dict[int, tuple[int, str]] = {}  # start time and role, by pid
        servers, likely, compiling = set[int](), set[int](), set[int]()
        queue = list(children(self.pid))
        for pid in queue:  # grows while it is walked
            if pid in found or len(found) >= _MOST:
                continue
            try:
                stat = read_stat(pid)
            except Gone:
                continue
            line = line_of(pid, stat)
            if stat.parent in compiling or any(part in line for part in _COMPILING):
                compiling.add(pid)
            elif _FORKSERVER in line and stat.parent not in servers:
                servers.add(pid)
            elif stat.parent in servers or (stat.parent == self.pid and (_SPAWN in line or line == own_line != b"")):
                likely.add(pid)
            found[pid] = stat.start_time, "worker" if stat.name == WORKER and pid not in compiling else "other"
            queue += children(pid)
        named = any(role == "worker" for _, role in found.values())
        return {
            (pid, start_time): "worker" if not named and pid in likely else role
            for pid, (start_time, role) in found.items()
        }

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


def peers_of(job: Job) -> dict[int, Thread]:
    """Training threads of the ranks that the same launcher started; none where the job's rank is unknown.

    So a slow rank is not taken for a slow device. Ranks with a telemetry page report themselves (PagesProbe).
    """
    threads: dict[int, Thread] = {}
    if job.rank is None or job.world_size is None or job.world_size < 2:
        return threads
    table, command = process_table(), command_line(job.pid)
    for pid in sorted(pid for pid in table if job.pid in table and table[pid].parent == table[job.pid].parent):
        rank, size = rank_of(pid) or (job.rank, 0)
        # launchers start ranks as children with the same command
        if rank != job.rank and size == job.world_size and len(threads) < _MOST_PEERS and command_line(pid) == command:
            with contextlib.suppress(OSError):
                threads[rank] = Thread(pid, folder(pid) / "task" / str(pid))
    return threads
