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
from iofast.monitor.render.history import History
from iofast.monitor.render.moment import Moment
from iofast.monitor.snapshot import Job, Snapshot

Key = tuple[int, int]
WINDOW = 120  # snapshots that a verdict may look at
_WAITING = 64  # snapshots that were not judged yet; more are dropped
_ENDED = 16  # jobs that ended and are remembered, for the report
_PATIENCE_S = 1.0  # for a thread that is to end


class Watcher(Protocol):
    """What watches one job: `watching.Watch`."""

    def interval(self) -> Snapshot:
        """Look for an interval. Raises ProcessLookupError when the job has ended."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True)
class Sources:
    """Where jobs, snapshots and verdicts come from; tests have their own."""

    watch: Callable[[Job], Watcher]
    judge: Callable[[Sequence[Snapshot], Verdict | None], Verdict]


@dataclass(slots=True)
class _Watched:
    """What is kept of a job."""

    job: Job
    thread: threading.Thread
    snapshots: deque[Snapshot]
    history: History | None = None
    moment: Moment | None = None


class Jobs:
    """The jobs that are watched. `next` gives their moments as they come."""

    def __init__(self, sources: Sources, window: int = WINDOW) -> None:
        self._sources, self._window = sources, window
        self._seen: queue.Queue[tuple[Key, Snapshot | Exception]] = queue.Queue(_WAITING)
        self._live: dict[Key, _Watched] = {}
        self._ended: deque[Moment] = deque(maxlen=_ENDED)
        self._stop = threading.Event()

    def add(self, job: Job) -> None:
        """Watch this job too, unless it is watched already."""
        key = (job.pid, job.start_time)
        if key in self._live or any((old.job.pid, old.job.start_time) == key for old in self._ended):
            return
        thread = threading.Thread(target=self._look, args=(job,), name=f"iofast-watch-{job.pid}", daemon=True)
        self._live[key] = _Watched(job, thread, deque(maxlen=self._window))
        thread.start()

    def _look(self, job: Job) -> None:
        key = (job.pid, job.start_time)
        try:
            with contextlib.closing(self._sources.watch(job)) as watcher:
                while not self._stop.is_set():
                    snapshot = watcher.interval()
                    with contextlib.suppress(queue.Full):
                        self._seen.put_nowait((key, snapshot))
        except Exception as error:  # the thread that judges raises it, or takes it for the job's end
            self._seen.put((key, error))

    def next(self, timeout: float) -> Moment | None:
        """The next moment of any job, or None where there is none within `timeout` seconds. Raises what watching raised."""
        try:
            key, found = self._seen.get(timeout=timeout)
        except queue.Empty:
            return None
        watched = self._live[key]
        if isinstance(found, Snapshot):
            return self._judge(watched, found)
        del self._live[key]
        if not isinstance(found, ProcessLookupError):
            raise found
        if watched.moment is None:
            return None
        self._ended.append(replace(watched.moment, ended=True))
        return self._ended[-1]

    def _judge(self, watched: _Watched, snapshot: Snapshot) -> Moment:
        watched.snapshots.append(snapshot)
        before = None if watched.moment is None else watched.moment.verdict
        verdict = self._sources.judge(list(watched.snapshots), before)
        if watched.history is None:
            watched.history = History(snapshot.time_s - snapshot.seconds)
        watched.history.add(snapshot, verdict)
        watched.moment = Moment(snapshot.job, snapshot, verdict, watched.history)
        return watched.moment

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
        for watched in self._live.values():
            while watched.thread.is_alive() and time.monotonic() < end:
                with contextlib.suppress(queue.Empty):  # one that cannot hand over does not end
                    self._seen.get_nowait()
                watched.thread.join(0.05)
