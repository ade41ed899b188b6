"""Watch several jobs at once: a thread per job takes snapshots, the main thread judges and shows them.

Snapshots go through a bounded queue to the main thread, which owns verdicts, histories and views, so nothing needs a
lock. If a terminal blocks the main thread, intervals are lost and memory stays bounded.
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from iofast.monitor.find import LEAST_AGE_S, MonitorError, ProcessTable, find_jobs, job_of
from iofast.monitor.findings import Verdict
from iofast.monitor.phases import Ledger
from iofast.monitor.probe.nvml import NvmlProbe
from iofast.monitor.render.moment import History, Moment
from iofast.monitor.request import Request
from iofast.monitor.snapshot import Job, Snapshot
from iofast.monitor.verdict import classify
from iofast.monitor.watching import Watch

Key = tuple[int, int]  # pid and start time of a process
SEARCH_S = (1.0, 15.0)  # between searches: while no job is watched, and while some are
WINDOW = 120  # snapshots in a verdict
_WAITING = 64  # pieces of news in the queue; further snapshots are dropped
_ENDED = 16  # ended jobs kept for the report
_PATIENCE_S = 1.0  # for threads to end
_STANDS = 5  # snapshots for which a verdict stands: one on 120 snapshots takes 2 to 4 ms,
_YOUNG = 60  # but an unknown one is judged again each time for so many
_PROVES_ITSELF_S = 8.0  # a started program without any sign of training is watched from then on


@dataclass(frozen=True)
class Sources:
    """Where jobs, snapshots and verdicts come from."""

    find: Callable[[], Sequence[Job]]
    watch: Callable[[Job], Watch]
    judge: Callable[[Sequence[Snapshot], Verdict | None], Verdict]


def machine(request: Request, program: int | None = None) -> Sources:
    """Processes, GPUs and pages of this machine. `program` is the pid of a started program.

    Raises MonitorError when a pid or GPU is missing.
    """
    nvml, since = NvmlProbe(), time.monotonic()
    if request.gpu is not None and nvml.missing:
        raise MonitorError(f"--gpu {request.gpu}: {nvml.missing}")
    named = [job_of(pid) for pid in request.pids]

    def find() -> Sequence[Job]:
        """What was named, those on a GPU, those below the program, or all of this user."""
        if named:
            return named
        gpus = nvml.processes()
        jobs = find_jobs(gpus, LEAST_AGE_S if program is None else 0.0)
        if program is None:  # in a container the driver may name no processes: then all
            return [job for job in jobs if request.gpu is None or not gpus or request.gpu in gpus.get(job.pid, ())]
        # It may be a launcher, with the training far below, and a set-uid starter in between.
        family = {program} | ProcessTable(None).below(program)
        found = [job for job in jobs if job.pid in family]
        if not found and time.monotonic() - since >= _PROVES_ITSELF_S:
            with contextlib.suppress(MonitorError):  # it has ended, or has started several that do not train yet
                return [job_of(program)]
        return found

    return Sources(find, lambda job: Watch(job, request, nvml), classify)


@dataclass(slots=True)
class _Watched:
    """State of one watched job."""

    thread: threading.Thread
    ledger: Ledger
    moment: Moment | None = None
    since: int = 0  # snapshots after the last verdict


class Jobs:
    """The watched jobs. `next` returns their moments as they come.

    A verdict rests on up to `window` snapshots and stands for some. When a job ends, and at `settle`, it rests on the
    newest snapshot too.
    """

    def __init__(self, sources: Sources, window: int = WINDOW) -> None:
        self._sources, self._window = sources, window
        self._news: queue.Queue[Callable[[], Moment | None]] = queue.Queue(_WAITING)  # what a thread has for `next`
        self._live: dict[Key, _Watched] = {}
        self._ended: deque[Moment] = deque(maxlen=_ENDED)
        self._stop = threading.Event()
        self.searches = 0  # finished

    def add(self, job: Job) -> None:
        """Watch this job, unless it is or was watched."""
        key = (job.pid, job.start_time)
        if key in self._live or any((old.job.pid, old.job.start_time) == key for old in self._ended):
            return
        thread = threading.Thread(target=self._watch, args=(job,), name=f"iofast-watch-{job.pid}", daemon=True)
        self._live[key] = _Watched(thread, Ledger(self._window))
        thread.start()

    def search(self) -> None:
        """Start the thread that looks for jobs: a search takes a quarter of a second."""
        threading.Thread(target=self._search, name="iofast-search", daemon=True).start()

    def _watch(self, job: Job) -> None:
        key = (job.pid, job.start_time)
        try:
            with contextlib.closing(self._sources.watch(job)) as watcher:
                while not self._stop.is_set():
                    news = partial(self._judge, self._live[key], watcher.interval())
                    with contextlib.suppress(queue.Full):
                        self._news.put_nowait(news)
        except Exception as error:  # `next` raises it, or treats it as the end of the job
            self._news.put(partial(self._over, key, error))

    def _search(self) -> None:
        while not self._stop.is_set():
            try:
                self._news.put(partial(self._found, self._sources.find()))
            except Exception as error:
                self._news.put(partial(self._over, None, error))
                return
            self._stop.wait(SEARCH_S[bool(self._live)])

    def next(self, timeout: float) -> Moment | None:
        """The next moment of a job, None after `timeout` seconds. Raises errors of watching."""
        try:
            news = self._news.get(timeout=timeout)
        except queue.Empty:
            return None
        return news()

    def _found(self, jobs: Sequence[Job]) -> None:
        self.searches += 1
        for job in jobs:
            self.add(job)

    def _judge(self, watched: _Watched, snapshot: Snapshot) -> Moment:
        watched.ledger.add(snapshot)
        watched.since += 1
        last = watched.moment
        history = History(snapshot.time_s - snapshot.seconds) if last is None else last.history
        verdict = None if last is None else last.verdict
        young = len(watched.ledger.window) < _YOUNG and verdict is not None and not verdict.bound.sure
        if verdict is None or young or watched.since >= _STANDS:
            verdict = self._verdict(watched, history)
        watched.moment = history.add(snapshot, verdict)
        return watched.moment

    def _verdict(self, watched: _Watched, history: History) -> Verdict:
        watched.since, history.sums = 0, watched.ledger.sums()
        before = None if watched.moment is None else watched.moment.verdict
        return self._sources.judge(list(watched.ledger.window), before)

    def _over(self, key: Key | None, error: Exception) -> Moment | None:
        """The last moment of a job, with a note if watching failed. Raises the error if nothing else is watched."""
        watched = None if key is None else self._live.pop(key)
        gone = isinstance(error, ProcessLookupError)
        if watched is None or (not gone and watched.moment is None and not self._live):
            raise error
        if (moment := self._settled(watched)) is None:
            return None
        if not gone:
            notes = (*moment.snapshot.notes, f"watching it failed: {error}")
            moment = replace(moment, snapshot=replace(moment.snapshot, notes=notes))
        self._ended.append(replace(moment, ended=True))
        return self._ended[-1]

    def settle(self) -> None:
        """Judge every job by its newest snapshots, before the end."""
        for watched in self._live.values():
            watched.moment = self._settled(watched)

    def _settled(self, watched: _Watched) -> Moment | None:
        moment = watched.moment
        if moment is None or not watched.since:
            return moment
        return replace(moment, verdict=self._verdict(watched, moment.history))

    def __len__(self) -> int:
        """Number of jobs watched now."""
        return len(self._live)

    def moments(self) -> list[Moment]:
        """The last moment of each job, ended jobs first."""
        return [*self._ended, *(w.moment for w in self._live.values() if w.moment is not None)]

    def close(self) -> None:
        """Stop all threads; intervals under way are not awaited."""
        self._stop.set()
        end = time.monotonic() + _PATIENCE_S
        while any(w.thread.is_alive() for w in self._live.values()) and time.monotonic() < end:
            with contextlib.suppress(queue.Empty):  # a thread blocked by a full queue does not end
                self._news.get(timeout=0.05)
