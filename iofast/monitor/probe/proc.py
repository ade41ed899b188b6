"""A job's processes and threads, from /proc: no tracing, no root, the same user.

After a pause a look at one state takes about 20 µs, as nothing of it is in the processor's caches (2 µs in a loop). So
a look covers the training thread and four of the others in turn, however many there are.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from iofast.errors import IofastError
from iofast.monitor.probe.family import Family, Kin
from iofast.monitor.probe.states import Gone, ProcFiles, Stat, Thread, folder, parse_stat, read_stat, shares
from iofast.monitor.snapshot import Doing, Job, Looks, ProcessFigures, ThreadFigures

AUTOGRAD: Final = "pt_autograd_"
LOADER_THREADS: Final = ("iofast-", "pt_data_pin")
_NAMED: Final = (AUTOGRAD, *LOADER_THREADS)
_IN_TURN: Final = 4  # workers and loader threads in one look
_MOST_OPEN: Final = 256  # threads with open files, of perhaps 1024 descriptors in all
_AGAIN_S: Final = 0.2  # between two searches for processes, at least
_SETTLED_S: Final = 10.0  # every take searches for so long after a change, as processes name themselves late,
_SELDOM_S: Final = 5.0  # and then one take in so many seconds


class JobEnded(IofastError, ProcessLookupError):  # noqa: N818 (no failure: jobs end)
    """The watched process has ended, or its number belongs to another process now."""


class _Totals(NamedTuple):
    """Counts of a process since its start; None for what cannot be read."""

    stat: Stat
    runnable_s: float | None
    io: dict[bytes, int] | None


class _Process(ProcFiles):
    """One process, and its totals at the last take."""

    def __init__(self, kin: Kin, *, new: bool) -> None:
        """`new`: it began after the last take. Raises Gone."""
        super().__init__(folder(kin.pid))
        self.kin = kin
        self.thread = Thread(kin.pid, self.folder / "task" / str(kin.pid), new=new)
        self._totals = self._read(parse_stat(self.read("stat")))
        if new:
            self._totals = _Totals(self._totals.stat._replace(cpu_s=0.0, major_faults=0), 0.0, {})

    def take(self) -> ProcessFigures:
        """Figures since the last take; of an ended process what was read last."""
        before, stat = self._totals, self._totals.stat
        thread_cpu_s, states, _ = self.thread.take()
        with contextlib.suppress(Gone):
            stat = parse_stat(self.read("stat"))
        now = self._totals = self._read(stat)
        runnable_s = None
        if now.runnable_s is not None and before.runnable_s is not None:
            runnable_s = max(0.0, now.runnable_s - before.runnable_s)
        return ProcessFigures(
            pid=self.kin.pid,
            start_time=self.kin.start_time,
            role=self.kin.role,
            name=stat.name,
            cpu_s=max(stat.cpu_s - before.stat.cpu_s, thread_cpu_s),
            runnable_s=runnable_s,
            states=states,
            read_bytes=_more(now.io, before.io, b"read_bytes:"),
            read_calls_bytes=_more(now.io, before.io, b"rchar:"),
            major_faults=max(0, stat.major_faults - before.stat.major_faults),
        )

    def _read(self, stat: Stat) -> _Totals:
        scheduled, io = self.thread.scheduled(), None
        with contextlib.suppress(OSError, ValueError, Gone):
            words = self.read("io").split()
            io = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        return _Totals(stat, None if scheduled is None else scheduled[1], io)


class ProcProbe:
    """Looks at a job. The constructor and the methods raise JobEnded when the job has ended."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.notes: dict[str, str] = {}  # by subject: what cannot be seen
        self._family = Family(job.pid)
        self._kin: dict[tuple[int, int], _Process] = {}  # by pid and start time
        self._ended: list[_Process] = []
        self._threads: dict[int, tuple[str, Thread]] = {}  # those with names that we know
        self._tids = set[int]()
        self._young = set[int]()  # threads that may not have named themselves yet
        self._in_turn: list[Thread] = []
        self._turn = 0
        self._children = b""
        self._started = False
        with self._ending():
            self._main = _Process(Kin(job.pid, job.start_time, "main"), new=False)
        self._scheduled = self._main.thread.scheduled()
        self._changed_at = time.monotonic()
        self._search()
        self._started = True

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except Gone:
            raise JobEnded(f"the training process has ended: {self.job.pid}") from None

    @property
    def workers(self) -> tuple[int, ...]:
        """Process ids of the loader's workers."""
        return tuple(each.kin.pid for each in self._kin.values() if each.kin.role == "worker")

    def look(self) -> Doing:
        """Look at the training thread, and at the states of some others."""
        now, main = time.monotonic(), self._main.thread
        with self._ending():
            doing = main.look()
            for _ in range(min(_IN_TURN, len(self._in_turn))):
                self._turn += 1
                thread = self._in_turn[self._turn % len(self._in_turn)]
                try:
                    thread.state()
                except Gone:
                    self._threads.pop(thread.tid, None)
                    self._end(key for key in self._kin if key[0] == thread.tid)
            with contextlib.suppress(OSError):
                children = main.read("children")
                if children != self._children and now - self._searched_at >= _AGAIN_S:
                    self._children, self._changed_at = children, now
                    self._search()
        return doing

    def _end(self, keys: Iterable[tuple[int, int]]) -> None:
        self._ended += [self._kin.pop(key) for key in list(keys)]

    def _search(self) -> None:
        """Find the processes below, and the threads with names that we know."""
        with self._ending():
            if read_stat(self.job.pid).start_time != self.job.start_time:
                raise Gone
            found = {(kin.pid, kin.start_time): kin for kin in self._family.kin()}
        self._searched_at = time.monotonic()
        self._end(self._kin.keys() - found.keys())
        for key, kin in found.items():
            if key in self._kin:
                self._kin[key].kin = kin
            elif len(self._kin) + len(self._threads) < _MOST_OPEN:
                with contextlib.suppress(Gone, OSError):
                    self._kin[key] = _Process(kin, new=self._started)
            else:
                self.notes["many"] = f"only {_MOST_OPEN} of the job's processes and threads are looked at"
        self._search_threads()

    def _search_threads(self) -> None:
        tasks = self._main.folder / "task"
        try:
            tids = {int(name) for name in os.listdir(tasks)} - {self.job.pid}
        except OSError:
            return
        self._threads = {tid: named for tid, named in self._threads.items() if tid in tids}
        fresh = tids - self._tids
        for tid in ((fresh | self._young) & tids) - self._threads.keys():
            with contextlib.suppress(Gone, OSError):
                name = (tasks / str(tid) / "comm").read_text(errors="replace").rstrip("\n")
                if name.startswith(_NAMED) and len(self._kin) + len(self._threads) < _MOST_OPEN:
                    self._threads[tid] = name, Thread(tid, tasks / str(tid), new=self._started)
        self._tids, self._young = tids, fresh
        self._in_turn = [each.thread for each in self._kin.values() if each.kin.role == "worker"]
        self._in_turn += [thread for _, thread in self._threads.values()]

    def take(self, seconds: float) -> tuple[Looks, tuple[ProcessFigures, ...], tuple[ThreadFigures, ...]]:
        """Figures of the `seconds` since the last take: the main process comes first, ended ones last."""
        now = time.monotonic()
        if now - self._changed_at < _SETTLED_S or now - self._searched_at > _SELDOM_S:
            self._search()
        else:
            self._search_threads()
        looks = self._take_looks(seconds)
        if Doing.UNSEEN in looks.shares and not self._main.thread.told:
            self.notes["wchan"] = (
                f"what the training thread waits in cannot be seen: /proc/{self.job.pid}/wchan says nothing "
                "(another user's process, or a kernel without kallsyms), so its sleep may be waiting for data"
            )
        processes = tuple(each.take() for each in (self._main, *self._kin.values(), *self._ended))
        self._ended = []
        threads = tuple(ThreadFigures(each.tid, name, *each.take()[:2]) for name, each in self._threads.values())
        if processes[0].read_bytes is None:
            self.notes["io"] = f"bytes read and written cannot be seen: /proc/{self.job.pid}/io may not be read"
        return looks, processes, threads

    def _take_looks(self, seconds: float) -> Looks:
        main = self._main.thread
        before, after = self._scheduled, main.scheduled()
        self._scheduled = after
        ran = waited = None
        if before is not None and after is not None:
            ran, waited = (min(seconds, max(0.0, now - then)) for now, then in zip(after, before, strict=True))
        return Looks(main.doings.total(), shares(main.doings), ran, waited)


def _more(io: dict[bytes, int] | None, before: dict[bytes, int] | None, name: bytes) -> int | None:
    if io is None or before is None or name not in io:
        return None
    return max(0, io[name] - before.get(name, 0))
