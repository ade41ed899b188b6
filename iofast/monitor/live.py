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
from dataclasses import dataclass, field, replace
from functools import partial

from iofast.monitor.find import LEAST_AGE_S, MonitorError, ProcessTable, find_jobs, job_of
from iofast.monitor.findings import Verdict
from iofast.monitor.phases import Ledger
from iofast.monitor.probe.nvml import NvmlProbe
from iofast.monitor.render.moment import History, Moment, figures
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
    nvml = NvmlProbe.open()
    if request.gpu is not None and nvml is None:
        raise MonitorError(f"--gpu {request.gpu}: {NvmlProbe.note}")
    find: Callable[[], Sequence[Job]] = partial(_on_gpu, request.gpu, nvml)
    if request.pids:
        named = [job_of(pid) for pid in request.pids]
        find = lambda: named  # noqa: E731
    elif program is not None:
        find = partial(_started, program, nvml, time.monotonic())
    return Sources(find, lambda job: Watch(job, request, nvml), classify)


def _on_gpu(gpu: int | None, nvml: NvmlProbe | None, least_age_s: float = LEAST_AGE_S) -> Sequence[Job]:
    """All jobs, or those on one GPU. In a container the driver may name no processes: then all."""
    gpus = nvml.processes() if nvml is not None else {}
    return [job for job in find_jobs(gpus, least_age_s) if gpu is None or not gpus or gpu in gpus.get(job.pid, ())]


def _started(program: int, nvml: NvmlProbe | None, since: float) -> Sequence[Job]:
    """The trainings of a started program: it may be a launcher, with the training in a process far below."""
    family = {program} | ProcessTable(None).below(program)  # of any user: a set-uid starter may be in between
    found = [job for job in _on_gpu(None, nvml, least_age_s=0.0) if job.pid in family]
    if found or time.monotonic() - since < _PROVES_ITSELF_S:
        return found
    try:
        return [job_of(program)]
    except MonitorError:  # it has ended, or has started several that do not train yet
        return []


# News of a thread: a snapshot or the end of a job; without a key the jobs of a search.
_News = tuple[Key | None, Snapshot | Sequence[Job] | Exception]


@dataclass(slots=True)
class _Watched:
    """State of one watched job."""

    thread: threading.Thread
    snapshots: deque[Snapshot]
    history: History | None = None
    moment: Moment | None = None
    since: int = 0  # snapshots after the last verdict
    ledger: Ledger = field(default_factory=Ledger)


class Jobs:
    """The watched jobs. `next` returns their moments as they come.

    A verdict rests on up to `window` snapshots and stands for some. When a job ends, and at `settle`, it rests on the
    newest snapshot too.
    """

    def __init__(self, sources: Sources, window: int = WINDOW) -> None:
        self._sources, self._window = sources, window
        self._news: queue.Queue[_News] = queue.Queue(_WAITING)
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
        self._live[key] = _Watched(thread, deque(maxlen=self._window))
        thread.start()

    def search(self) -> None:
        """Start the thread that looks for jobs: a search takes a quarter of a second."""
        threading.Thread(target=self._search, name="iofast-search", daemon=True).start()

    def _watch(self, job: Job) -> None:
        key = (job.pid, job.start_time)
        try:
            with contextlib.closing(self._sources.watch(job)) as watcher:
                while not self._stop.is_set():
                    snapshot = watcher.interval()
                    with contextlib.suppress(queue.Full):
                        self._news.put_nowait((key, snapshot))
        except Exception as error:  # `next` raises it, or treats it as the end of the job
            self._news.put((key, error))

    def _search(self) -> None:
        while not self._stop.is_set():
            try:
                self._news.put((None, self._sources.find()))
            except Exception as error:
                self._news.put((None, error))
                return
            self._stop.wait(SEARCH_S[bool(self._live)])

    def next(self, timeout: float) -> Moment | None:
        """The next moment of a job, None after `timeout` seconds. Raises errors of watching."""
        try:
            key, news = self._news.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(news, Exception):
            return self._over(key, news)
        if key is not None and isinstance(news, Snapshot):
            return self._judge(self._live[key], news)
        self.searches += 1
        for job in news if not isinstance(news, Snapshot) else ():
            self.add(job)
        return None

    def _judge(self, watched: _Watched, snapshot: Snapshot) -> Moment:
        watched.ledger.before_adding(watched.snapshots)
        watched.snapshots.append(snapshot)
        verdict = None if watched.moment is None else watched.moment.verdict
        young = len(watched.snapshots) < _YOUNG and verdict is not None and not verdict.bound.sure
        watched.since += 1
        if watched.history is None:
            watched.history = History(snapshot.time_s - snapshot.seconds)
        if verdict is None or young or watched.since >= _STANDS:
            verdict = self._sources.judge(list(watched.snapshots), verdict)
            watched.since, watched.history.sums = 0, watched.ledger.sums(watched.snapshots)
        now = figures(snapshot)
        watched.history.add(snapshot, now, verdict)
        watched.moment = Moment(snapshot.job, snapshot, now, verdict, watched.history)
        return watched.moment

    def _over(self, key: Key | None, error: Exception) -> Moment | None:
        """The last moment of a job, with a note if watching failed. Raises the error if nothing else is watched."""
        watched = None if key is None else self._live.pop(key)
        gone = isinstance(error, ProcessLookupError)
        if watched is None or (not gone and watched.moment is None and not self._live):
            raise error
        if watched.moment is None:
            return None
        moment = replace(self._settled(watched, watched.moment), ended=True)
        if not gone:
            notes = (*moment.snapshot.notes, f"watching it failed: {error}")
            moment = replace(moment, snapshot=replace(moment.snapshot, notes=notes))
        self._ended.append(moment)
        return moment

    def settle(self) -> None:
        """Judge every job by its newest snapshots, before the end."""
        for watched in self._live.values():
            if watched.moment is not None:
                watched.moment = self._settled(watched, watched.moment)

    def _settled(self, watched: _Watched, moment: Moment) -> Moment:
        if not watched.since:
            return moment
        watched.since = 0
        moment.history.sums = watched.ledger.sums(watched.snapshots)
        return replace(moment, verdict=self._sources.judge(list(watched.snapshots), moment.verdict))

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
