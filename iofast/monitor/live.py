"""Several jobs at once: a thread watches each, one thread judges and shows.

Threads only look: what they saw goes through a bounded queue to the thread that owns verdicts, histories and views, so
nothing here needs a lock, and a terminal that does not take our output makes us miss intervals, not memory.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from iofast.monitor.findings import Verdict
from iofast.monitor.render.figures import figures
from iofast.monitor.render.history import History
from iofast.monitor.render.moment import Moment
from iofast.monitor.snapshot import Job, Snapshot

Key = tuple[int, int]  # pid and start time: a process for good
SEARCH_S = (1.0, 15.0)  # between two searches: while nothing is watched, and while something is
WINDOW = 120  # snapshots that a verdict may look at
_WAITING = 64  # pieces of news that were not taken yet; snapshots beyond are dropped
_ENDED = 16  # jobs that ended and are remembered, for the report
_PATIENCE_S = 1.0  # for a thread that is to end
JUDGING = 0.0015  # of one core and job: a verdict on 120 snapshots takes 3 to 6 ms, and differs little from the last
_STANDS_S = 5.0  # at most, on however slow a machine
_YOUNG = 60  # snapshots, in which no verdict stands that says nothing yet


class Watcher(Protocol):
    """What watches one job: `watching.Watch`."""

    def interval(self) -> Snapshot:
        """Look for an interval. Raises ProcessLookupError when the job has ended."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True)
class Sources:
    """Where jobs, snapshots and verdicts come from; tests have their own."""

    find: Callable[[], Sequence[Job]]
    watch: Callable[[Job], Watcher]
    judge: Callable[[Sequence[Snapshot], Verdict | None], Verdict]


@dataclass(frozen=True, slots=True)
class _News:
    """What a thread has to say: an interval or the end of a job, or what a search found."""

    key: Key | None = None
    snapshot: Snapshot | None = None
    jobs: Sequence[Job] = ()
    error: Exception | None = None


@dataclass(slots=True)
class _Watched:
    """What is kept of a job."""

    thread: threading.Thread
    snapshots: deque[Snapshot]
    history: History | None = None
    moment: Moment | None = None
    judge_at: float = 0.0  # by the snapshots' clock; the last verdict stands until then
    judged: Snapshot | None = None  # the last one that it is on


class Jobs:
    """The jobs that are watched. `next` gives their moments as they come.

    A verdict looks at `window` snapshots, and judging a job takes `judging` of a core: where it is dear, a verdict
    stands for some snapshots more. The last one of a job that ended, and of all at `settle`, is on everything.
    """

    def __init__(self, sources: Sources, window: int = WINDOW, judging: float = JUDGING) -> None:
        self._sources, self._window, self._judging = sources, window, judging
        self._news: queue.Queue[_News] = queue.Queue(_WAITING)
        self._live: dict[Key, _Watched] = {}
        self._ended: deque[Moment] = deque(maxlen=_ENDED)
        self._stop = threading.Event()
        self.searches = 0  # that have ended

    def add(self, job: Job) -> None:
        """Watch this job too, unless it is, or was."""
        key = (job.pid, job.start_time)
        if key in self._live or any((old.job.pid, old.job.start_time) == key for old in self._ended):
            return
        thread = threading.Thread(target=self._watch, args=(job,), name=f"iofast-watch-{job.pid}", daemon=True)
        self._live[key] = _Watched(thread, deque(maxlen=self._window))
        thread.start()

    def search(self) -> None:
        """Look for jobs from now on, in a thread: a search takes a quarter of a second."""
        threading.Thread(target=self._search, name="iofast-search", daemon=True).start()

    def _watch(self, job: Job) -> None:
        key = (job.pid, job.start_time)
        try:
            with contextlib.closing(self._sources.watch(job)) as watcher:
                while not self._stop.is_set():
                    snapshot = watcher.interval()
                    with contextlib.suppress(queue.Full):
                        self._news.put_nowait(_News(key, snapshot))
        except Exception as error:  # who takes the news raises it, or knows it for the job's end
            self._news.put(_News(key, error=error))

    def _search(self) -> None:
        while not self._stop.is_set():
            try:
                self._news.put(_News(jobs=self._sources.find()))
            except Exception as error:
                self._news.put(_News(error=error))
                return
            self._stop.wait(SEARCH_S[bool(self._live)])

    def next(self, timeout: float) -> Moment | None:
        """A job's next moment, or None where there is none within `timeout` seconds. Raises what watching raised."""
        try:
            news = self._news.get(timeout=timeout)
        except queue.Empty:
            return None
        if news.error is not None:
            return self._over(news.key, news.error)
        if news.key is None or news.snapshot is None:
            self.searches += 1
            for job in news.jobs:
                self.add(job)
            return None
        return self._judge(self._live[news.key], news.snapshot)

    def _judge(self, watched: _Watched, snapshot: Snapshot) -> Moment:
        watched.snapshots.append(snapshot)
        verdict = None if watched.moment is None else watched.moment.verdict
        young = len(watched.snapshots) < _YOUNG and verdict is not None and not verdict.bound.sure
        if verdict is None or young or snapshot.time_s >= watched.judge_at:
            before = time.thread_time()
            verdict = self._sources.judge(list(watched.snapshots), verdict)
            cost = time.thread_time() - before
            watched.judge_at = snapshot.time_s + min(_STANDS_S, cost / self._judging)
            watched.judged = snapshot
        if watched.history is None:
            watched.history = History(snapshot.time_s - snapshot.seconds)
        now = figures(snapshot)
        watched.history.add(snapshot, now, verdict)
        watched.moment = Moment(snapshot.job, snapshot, now, verdict, watched.history)
        return watched.moment

    def _over(self, key: Key | None, error: Exception) -> Moment | None:
        """A job's last moment, with a note where watching it failed. Raises what leaves nothing to watch or show."""
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
        """Before the end: have the verdict of each job be on all that was seen of it."""
        for watched in self._live.values():
            if watched.moment is not None:
                watched.moment = self._settled(watched, watched.moment)

    def _settled(self, watched: _Watched, moment: Moment) -> Moment:
        if watched.judged is moment.snapshot:
            return moment
        watched.judged = moment.snapshot
        return replace(moment, verdict=self._sources.judge(list(watched.snapshots), moment.verdict))

    def __len__(self) -> int:
        """How many are watched now."""
        return len(self._live)

    def moments(self) -> list[Moment]:
        """The last moment of each job, ended ones first."""
        return [*self._ended, *(w.moment for w in self._live.values() if w.moment is not None)]

    def close(self) -> None:
        """End all watching; what is in the middle of an interval is not waited for."""
        self._stop.set()
        end = time.monotonic() + _PATIENCE_S
        while any(w.thread.is_alive() for w in self._live.values()) and time.monotonic() < end:
            with contextlib.suppress(queue.Empty):  # a thread that cannot hand over does not end
                self._news.get(timeout=0.05)
