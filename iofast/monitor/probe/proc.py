"""A job's processes and threads, from /proc: no tracing, no root, the same user.

After a pause a look at one state takes about 20 µs, as nothing of it is in the processor's caches (2 µs in a loop). So
a look covers the training thread and four others in turn, however many there are.

torch names a worker's process pt_data_worker since 2.5. Where no process has that name, a worker is a process that
multiprocessing started: a child with its parent's command line (fork), or with the start-up command of spawn or
forkserver.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from iofast.machine import RANKS, SLURM_RANK
from iofast.monitor.probe.states import (
    Gone,
    Stat,
    Thread,
    command_line,
    folder,
    grown,
    parse_stat,
    process_table,
    read_stat,
)
from iofast.monitor.snapshot import Doing, Job, Looks, ProcessFigures, ThreadFigures

WORKER: Final = "pt_data_worker"
_COMPILING: Final = (b"_inductor/compile_worker", b"torch._inductor.compile_worker")
_SPAWN: Final = b"from multiprocessing.spawn import spawn_main"
_FORKSERVER: Final = b"from multiprocessing.forkserver import main"
_STEADY: Final = 3  # a command line is read so often: an exec comes right after the fork
_MOST: Final = 4096  # processes below one
_MOST_PEERS: Final = 8
LOADER_THREADS: Final = ("iofast-", "pt_data_pin")
TRAINING_THREADS: Final = ("pt_autograd_", *LOADER_THREADS)
_IN_TURN: Final = 4  # workers and other ranks in one look
_MOST_OPEN: Final = 256  # threads with open files, of perhaps 1024 descriptors in all
_AGAIN_S: Final = 0.2  # between two searches for processes, at least
_SETTLED_S: Final = 10.0  # every take searches for so long after a change, as processes name themselves late,
_SELDOM_S: Final = 5.0  # and then one take in so many seconds


class _Process(Thread):
    """One process: its main thread, and counts of all its threads at the last take."""

    def __init__(self, key: tuple[int, int], role: str, *, new: bool) -> None:
        """`key`: pid and start time; `new`: it began after the last take. Raises Gone."""
        self.pid, self.start_time = key
        self.role = role
        super().__init__(self.pid, folder(self.pid) / "task" / str(self.pid), new=new)
        self._of_all = parse_stat(self.read("../../stat"))
        self._counts = self._count()
        if new:
            self._counts = dict.fromkeys(self._counts, 0)

    def figures(self, main: Looks) -> ProcessFigures:
        """Figures since the last call, with those of its main thread; of an ended process what was read last."""
        before, self._counts = self._counts, self._count()
        counts = grown(self._counts, before)
        return ProcessFigures(
            pid=self.pid,
            start_time=self.start_time,
            role=self.role,
            name=self._of_all.name,
            cpu_s=max(counts["cpu_s"], main.ticks_s),
            runnable_s=main.runnable_s,
            states=main.states,
            read_bytes=counts.get("read_bytes:"),
            read_calls_bytes=counts.get("rchar:"),
            major_faults=counts["major_faults"],
        )

    def _count(self) -> dict[str, Any]:
        """Counts since its start, as far as they can be read."""
        with contextlib.suppress(Gone):
            self._of_all = parse_stat(self.read("../../stat"))
        counts = {"cpu_s": self._of_all.cpu_s, "major_faults": self._of_all.major_faults}
        with contextlib.suppress(OSError, ValueError):
            words = self.read("../../io").decode().split()
            counts |= dict(zip(words[::2], map(int, words[1::2]), strict=True))
        return counts


class ProcProbe:
    """Looks at a job. The constructor and the methods raise Gone when the job has ended."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.notes: dict[str, str] = {}  # by subject: what cannot be seen
        self._family = Family(job.pid)
        self._kin: dict[tuple[int, int], _Process] = {}  # by pid and start time
        self._ended: list[_Process] = []
        self._threads: dict[int, tuple[str, Thread]] = {}  # those with names that we know
        self._tids = set[int]()
        self._young = set[int]()  # threads that may not have named themselves yet
        self._ranks = peers_of(job)
        self.peers: dict[int, float] = {}  # share of looks in which other ranks waited for a queue, by rank
        self._in_turn: list[tuple[Thread, Callable[[], object]]] = []  # each with its look
        self._turn = 0
        self._children = b""
        self._started = False
        self._main = _Process((job.pid, job.start_time), "main", new=False)
        self._changed_at = time.monotonic()
        self._search()
        self._started = True

    @property
    def workers(self) -> tuple[int, ...]:
        """Process ids of the loader's workers."""
        return tuple(each.pid for each in self._kin.values() if each.role == "worker")

    def look(self) -> Doing:
        """Look at the training thread, and at the states of some others."""
        now, doing = time.monotonic(), self._main.look()
        for _ in range(min(_IN_TURN, len(self._in_turn))):
            self._turn += 1
            thread, look = self._in_turn[self._turn % len(self._in_turn)]
            try:
                look()
            except Gone:
                self._end(key for key in self._kin if key[0] == thread.tid)
        with contextlib.suppress(OSError):
            children = self._main.read("children")
            if children != self._children and now - self._searched_at >= _AGAIN_S:
                self._children, self._changed_at = children, now
                self._search()
        return doing

    def _end(self, keys: Iterable[tuple[int, int]]) -> None:
        self._ended += [self._kin.pop(key) for key in list(keys)]

    def _search(self) -> None:
        """Find the processes below, and the threads with names that we know."""
        if read_stat(self.job.pid).start_time != self.job.start_time:
            raise Gone(f"process {self.job.pid} has ended: its number is another's now")
        found = self._family.roles()
        self._searched_at = time.monotonic()
        self._end(self._kin.keys() - found.keys())
        for key, role in found.items():
            if key in self._kin:
                self._kin[key].role = role
            elif len(self._kin) + len(self._threads) < _MOST_OPEN:
                with contextlib.suppress(OSError):
                    self._kin[key] = _Process(key, role, new=self._started)
            else:
                self.notes["many"] = f"only {_MOST_OPEN} of the job's processes and threads are looked at"
        self._search_threads()

    def _search_threads(self) -> None:
        tasks = self._main.folder.parent
        try:
            tids = {int(name) for name in os.listdir(tasks)} - {self.job.pid}
        except OSError:
            return
        self._threads = {tid: named for tid, named in self._threads.items() if tid in tids}
        fresh = tids - self._tids
        for tid in ((fresh | self._young) & tids) - self._threads.keys():
            with contextlib.suppress(OSError):
                name = (tasks / str(tid) / "comm").read_text(errors="replace").rstrip("\n")
                if name.startswith(TRAINING_THREADS) and len(self._kin) + len(self._threads) < _MOST_OPEN:
                    self._threads[tid] = name, Thread(tid, tasks / str(tid), new=self._started)
        self._tids, self._young = tids, fresh
        self._in_turn = [(each, each.state) for each in self._kin.values() if each.role == "worker"]
        self._in_turn += [(thread, thread.look) for thread in self._ranks.values()]

    def take(self) -> tuple[Looks, tuple[ProcessFigures, ...], tuple[ThreadFigures, ...]]:
        """Figures since the last take: the main process comes first, ended ones last."""
        now = time.monotonic()
        if now - self._changed_at < _SETTLED_S or now - self._searched_at > _SELDOM_S:
            self._search()
        else:
            self._search_threads()
        main = self._main.take()
        processes = [self._main.figures(main)]
        processes += [each.figures(each.take()) for each in (*self._kin.values(), *self._ended)]
        self._ended = []
        threads = tuple(ThreadFigures(tid, name, each.take().ticks_s) for tid, (name, each) in self._threads.items())
        ranks = {rank: thread.take() for rank, thread in self._ranks.items()}
        self.peers = {rank: each.shares.get(Doing.QUEUE, 0.0) for rank, each in ranks.items() if each.samples}
        if Doing.UNSEEN in main.shares and not self._main.told:
            self.notes["wchan"] = (
                f"what the training thread waits in cannot be seen: /proc/{self.job.pid}/wchan says nothing "
                "(another user's process, or a kernel without kallsyms), so its sleep may be waiting for data"
            )
        if processes[0].read_bytes is None:
            self.notes["io"] = f"bytes read and written cannot be seen: /proc/{self.job.pid}/io may not be read"
        return main, tuple(processes), threads


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
