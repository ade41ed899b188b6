"""A job's processes and threads, from /proc: no tracing, no root, the same user.

A state costs about 20 µs, for after a pause nothing of it is in the processor's caches (2 µs in a loop). Looks are
of the training thread, its autograd threads, and four others, in turn: more workers do not make a look dearer.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from iofast.errors import IofastError
from iofast.monitor.probe.family import Family, Kin
from iofast.monitor.probe.machine_facts import numa_nodes
from iofast.monitor.probe.states import PROC, Gone, ProcFiles, Thread, parse_stat, shares
from iofast.monitor.snapshot import Doing, Job, Looks, ProcessFigures, ThreadFigures

AUTOGRAD: Final = "pt_autograd_"
PIN: Final = "pt_data_pin"
LOADER_THREADS: Final = ("iofast-", PIN)
_NAMED: Final = (AUTOGRAD, *LOADER_THREADS)
_IN_TURN: Final = 4  # workers and loader threads in one look
_MOST_OPEN: Final = 256  # threads whose files are kept open; there may be 1024 descriptors in all
_AGAIN_S: Final = 0.2  # the family is not searched more often than this, however often it changes,
_SETTLED_S: Final = 10.0  # at every take so long after a change, for processes name themselves late,
_SELDOM_S: Final = 5.0  # and then as seldom as this


class JobEnded(IofastError, ProcessLookupError):  # noqa: N818 (no failure: jobs end)
    """The watched process has ended, or its number belongs to another one now."""


class Look(NamedTuple):
    """What the training thread was at.

    `backward`: an autograd thread ran at the time. `blind`: it slept, and the kernel would not say in what.
    """

    time_s: float
    doing: Doing
    backward: bool = False
    blind: bool = False


class _Process:
    """One process and what it had used at the last take."""

    def __init__(self, kin: Kin, folder: Path, *, new: bool) -> None:
        self.kin = kin
        self.files = ProcFiles(folder)
        self.thread = Thread(kin.pid, folder / "task" / str(kin.pid), new=new)
        self.gone = False
        self._stat = parse_stat(self.files.read("stat"))
        self._io = self._counted()
        self._waited = self._runnable()
        self._cpu_s, self._faults = (0.0, 0) if new else (self._stat.cpu_s, self._stat.major_faults)
        if new:
            self._io, self._waited = None if self._io is None else {}, None if self._waited is None else 0.0

    def take(self) -> ProcessFigures:
        """What it used since the last take; of one that is gone what is known of that."""
        thread_cpu_s, states, _ = self.thread.take()
        with contextlib.suppress(Gone):
            self._stat = parse_stat(self.files.read("stat"))
        stat, io, waited = self._stat, self._counted(), self._runnable()
        figures = ProcessFigures(
            pid=self.kin.pid,
            start_time=self.kin.start_time,
            role=self.kin.role,
            name=stat.name,
            cpu_s=max(stat.cpu_s - self._cpu_s, thread_cpu_s),
            runnable_s=None if waited is None or self._waited is None else max(0.0, waited - self._waited),
            states=states,
            read_bytes=_more(io, self._io, b"read_bytes:"),
            read_calls_bytes=_more(io, self._io, b"rchar:"),
            write_bytes=_more(io, self._io, b"write_bytes:"),
            major_faults=max(0, stat.major_faults - self._faults),
            threads=stat.threads,
            numa_node=None if stat.processor is None else numa_nodes().get(stat.processor),
        )
        self._cpu_s, self._faults, self._io, self._waited = stat.cpu_s, stat.major_faults, io, waited
        return figures

    def _counted(self) -> dict[bytes, int] | None:
        try:
            words = self.files.read("io").split()
            return dict(zip(words[::2], map(int, words[1::2]), strict=True))
        except (OSError, ValueError, Gone):
            return None

    def _runnable(self) -> float | None:
        scheduled = self.thread.scheduled()
        return None if scheduled is None else scheduled[1]

    def close(self) -> None:
        self.files.close()
        self.thread.close()


class ProcProbe:
    """Looks at a job. Raises JobEnded, here and in its methods, where the job is not there or no longer."""

    def __init__(self, job: Job, proc: Path = PROC) -> None:
        self.job = job
        self.notes: dict[str, str] = {}  # by subject, what could not be looked at
        self._proc = proc
        self._folder = proc / str(job.pid)
        self._family = Family(job.pid, proc)
        self._kin: dict[tuple[int, int], _Process] = {}
        self._threads: dict[int, tuple[str, Thread]] = {}
        self._young: set[int] = set()  # threads that may not have given themselves a name yet
        self._tids: set[int] = set()
        self._ended: list[_Process] = []
        self._turns: deque[Thread] = deque()
        self._children = b""
        self._taken_at: float | None = None
        with self._ending():
            self._check()
            own = Kin(job.pid, 0, job.start_time, "", "main")
            self._main = _Process(own, self._folder, new=False)
        self._scheduled = self._main.thread.scheduled()
        self._searched_at = self._changed_at = time.monotonic()
        self._search()
        self._taken_at = time.monotonic()

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except Gone:
            self.close()
            raise JobEnded(f"the training process has ended: {self.job.pid}") from None

    def _check(self) -> None:
        stat = parse_stat(ProcFiles(self._folder).read("stat"))
        if stat.start_time != self.job.start_time or stat.state in "ZX":
            raise Gone

    @property
    def workers(self) -> tuple[int, ...]:
        """Process ids of the loader's workers."""
        return tuple(each.kin.pid for each in self._kin.values() if each.kin.role == "worker")

    @property
    def loader_threads(self) -> bool:
        """Whether the process has threads that load or pin."""
        return any(name.startswith(LOADER_THREADS) for name, _ in self._threads.values())

    def look(self) -> Look:
        """What the training thread is at, and a state more for some of the others."""
        now = time.monotonic()
        with self._ending():
            main = self._main.thread
            doing = main.look()
            backward = False
            for tid, (name, thread) in list(self._threads.items()):
                if name.startswith(AUTOGRAD):
                    try:
                        backward |= thread.state() == "R"
                    except Gone:
                        self._forget(tid)
            self._look_round()
            with contextlib.suppress(OSError):
                children = main.files.read("children")
                if children != self._children and now - self._searched_at >= _AGAIN_S:
                    self._children, self._changed_at = children, now
                    self._search()
        if main.blind and doing is Doing.ASLEEP:
            self.notes["wchan"] = (
                f"what the training thread waits in cannot be seen: /proc/{self.job.pid}/wchan says nothing "
                "(another user's process, or a kernel without kallsyms), so its sleep may be waiting for data"
            )
        return Look(now, doing, backward, main.blind and doing is Doing.ASLEEP)

    def _look_round(self) -> None:
        for _ in range(min(_IN_TURN, len(self._turns))):
            thread = self._turns.popleft()
            try:
                thread.state()
            except Gone:
                self._forget(thread.tid)
            else:
                self._turns.append(thread)

    def _forget(self, tid: int) -> None:
        """A thread or process below is gone."""
        self._threads.pop(tid, None)
        for key in [key for key in self._kin if key[0] == tid]:
            self._ended.append(self._kin.pop(key))

    def _search(self) -> None:
        """Who is there now: processes below, and threads with names that we know."""
        with self._ending():
            self._check()
            found = {(kin.pid, kin.start_time): kin for kin in self._family.kin()}
        self._searched_at = time.monotonic()
        for key in self._kin.keys() - found.keys():
            self._ended.append(self._kin.pop(key))
        for key, kin in found.items():
            if key in self._kin:
                self._kin[key].kin = kin
            elif len(self._kin) + len(self._threads) < _MOST_OPEN:
                with contextlib.suppress(Gone, OSError):
                    self._kin[key] = _Process(kin, self._proc / str(kin.pid), new=self._taken_at is not None)
            else:
                self.notes["many"] = f"only {_MOST_OPEN} of the job's processes and threads are looked at"
        self._search_threads()

    def _queue_up(self) -> None:
        """Whom to look at in turn: those who were waiting for theirs come first."""
        kept = {thread.tid for thread in self._turns}
        workers = [each.thread for each in self._kin.values() if each.kin.role == "worker"]
        threads = [thread for name, thread in self._threads.values() if not name.startswith(AUTOGRAD)]
        self._turns = deque(thread for thread in self._turns if thread in workers or thread in threads)
        self._turns.extend(thread for thread in [*workers, *threads] if thread.tid not in kept)

    def _search_threads(self) -> None:
        tasks = self._folder / "task"
        try:
            tids = {int(name) for name in os.listdir(tasks)} - {self.job.pid}
        except OSError:
            return
        if tids == self._tids and not self._young:
            self._queue_up()
            return
        for tid in self._threads.keys() - tids:
            del self._threads[tid]
        unnamed = (tids - self._tids) | (self._young & tids)
        self._young = tids - self._tids
        self._tids = tids
        for tid in unnamed - self._threads.keys():
            with contextlib.suppress(Gone, OSError):
                name = (tasks / str(tid) / "comm").read_text(errors="replace").rstrip("\n")
                if name.startswith(_NAMED) and len(self._kin) + len(self._threads) < _MOST_OPEN:
                    thread = Thread(tid, tasks / str(tid), new=self._taken_at is not None)
                    self._threads[tid] = name, thread
        self._queue_up()

    def take(self, seconds: float) -> tuple[Looks, tuple[ProcessFigures, ...], tuple[ThreadFigures, ...]]:
        """What accumulated in the `seconds` since the last take: the main process comes first, ended ones last."""
        now = time.monotonic()
        if now - self._changed_at < _SETTLED_S or now - self._searched_at > _SELDOM_S:
            self._search()
        else:
            self._search_threads()
        main = self._main.thread
        looks, scheduled = dict(main.doings), main.scheduled()
        before, self._scheduled = self._scheduled, scheduled
        ran = waited = None
        if before is not None and scheduled is not None:
            ran, waited = (max(0.0, now - then) for now, then in zip(scheduled, before, strict=True))
        ended, self._ended = self._ended, []
        with self._ending():
            processes = tuple(each.take() for each in (self._main, *self._kin.values(), *ended))
        for each in ended:
            each.close()
        threads = []
        for name, thread in self._threads.values():
            cpu_s, states, _ = thread.take()
            threads.append(ThreadFigures(thread.tid, name, cpu_s, states))
        if processes[0].read_bytes is None:
            self.notes["io"] = f"bytes read and written cannot be seen: /proc/{self.job.pid}/io may not be read"
        self._taken_at = time.monotonic()
        total = Looks(sum(looks.values()), shares(looks), _at_most(ran, seconds), _at_most(waited, seconds))
        return total, processes, tuple(threads)

    def close(self) -> None:
        """Close the files."""
        for each in (*self._kin.values(), *self._ended, *([self._main] if hasattr(self, "_main") else [])):
            each.close()
        for _, thread in self._threads.values():
            thread.close()
        self._kin, self._ended, self._threads = {}, [], {}
        self._turns.clear()


def _more(io: dict[bytes, int] | None, before: dict[bytes, int] | None, name: bytes) -> int | None:
    if io is None or before is None or name not in io:
        return None
    return max(0, io[name] - before.get(name, 0))


def _at_most(value: float | None, most: float) -> float | None:
    return None if value is None else min(value, most)
