"""The model that all views share: a job's newest interval, verdict and history. It takes the same memory after days."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

from iofast.monitor.findings import Band, Bound, Cause, Verdict
from iofast.monitor.render.figures import Figures
from iofast.monitor.snapshot import Job, Snapshot
from iofast.monitor.sums import RunSums
from iofast.monitor.training import mean

RECENT = 240  # intervals kept in full: the widest timeline of a screen
STRETCHES = 92  # of a timeline of the whole run: columns that `--once` and the report have for it
SPANS = 200  # newest changes of the verdict


class Timeline:
    """A run in at most `limit` stretches of equally many intervals; when they are full, each two become one."""

    def __init__(self, limit: int = STRETCHES) -> None:
        self.stretches: list[Figures] = []
        self._limit, self._stride = limit, 1
        self._open: list[Figures] = []  # intervals of an incomplete stretch

    def add(self, now: Figures) -> None:
        """Add one interval."""
        self._open.append(now)
        if len(self._open) == self._stride:
            self.stretches.append(_joined(self._open))
            self._open = []
        if len(self.stretches) == self._limit:
            self.stretches = [_joined(self.stretches[at : at + 2]) for at in range(0, self._limit, 2)]
            self._stride *= 2


def _joined(stretches: list[Figures]) -> Figures:
    """Means of the known values."""
    return Figures(*(mean(values) for values in zip(*map(astuple, stretches), strict=True)))


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch with one verdict, in seconds since watching began, and the widest bounds of its stall."""

    start_s: float
    end_s: float
    bound: Bound
    cause: Cause | None
    stall: Band | None


@dataclass(slots=True)
class History:
    """Timelines and verdicts of one job."""

    started_s: float
    recent: deque[Figures] = field(default_factory=lambda: deque(maxlen=RECENT))
    timeline: Timeline = field(default_factory=Timeline)
    spans: deque[Span] = field(default_factory=lambda: deque(maxlen=SPANS))
    held_s: dict[Bound, float] = field(default_factory=dict)
    intervals: int = 0
    sums: RunSums | None = None  # up to the last judgement

    def add(self, snapshot: Snapshot, now: Figures, verdict: Verdict) -> None:
        """Add an interval, its figures, and the verdict at its end."""
        end = snapshot.time_s - self.started_s
        start = end - snapshot.seconds
        self.recent.append(now)
        self.timeline.add(now)
        self.intervals += 1
        self.held_s[verdict.bound] = self.held_s.get(verdict.bound, 0.0) + snapshot.seconds
        bounds: list[Band] = [] if verdict.stall is None else [verdict.stall]
        last = self.spans[-1] if self.spans else None
        if last is not None and (last.bound, last.cause) == (verdict.bound, verdict.cause):
            start, bounds = self.spans.pop().start_s, [*bounds, *([last.stall] if last.stall else [])]
        widest = Band(min(one.low for one in bounds), max(one.high for one in bounds)) if bounds else None
        self.spans.append(Span(start, end, verdict.bound, verdict.cause, widest))

    @property
    def seconds(self) -> float:
        """Seconds since watching began."""
        return self.spans[-1].end_s if self.spans else 0.0

    def prevailing(self) -> Bound:
        """The verdict that held longest, unknown and idle aside; unknown without any."""
        held = {bound: seconds for bound, seconds in self.held_s.items() if bound.sure}
        return max(held, key=held.__getitem__, default=Bound.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Moment:
    """The newest interval of one job with its figures, its verdict, and the history before it."""

    job: Job
    snapshot: Snapshot
    figures: Figures
    verdict: Verdict
    history: History  # it grows, so a view must read it at once
    ended: bool = False


class MomentView:
    """Base class of all views: ignores every call. All calls come from one thread."""

    def update(self, moment: Moment, /) -> None:
        """Show one more interval of a job."""

    def waiting(self, message: str, /) -> None:
        """Show `message` while no job is watched."""

    def close(self, moments: Sequence[Moment], /) -> None:
        """End the view; `moments` has the last moment of every job."""
