"""History of one job in bounded memory: days take as much as an hour."""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, dataclass, field, replace
from math import fsum

from iofast.monitor.findings import Bound, Cause, Severity, Verdict
from iofast.monitor.render.figures import Figures
from iofast.monitor.snapshot import Snapshot
from iofast.monitor.sums import RunSums

RECENT = 240  # intervals kept in full: the widest sparkline
POINTS = 512  # of a timeline; when it is full, each two neighbours become one
SPANS = 200  # newest changes of the verdict


@dataclass(frozen=True, slots=True)
class Point:
    """A stretch of a timeline: means of the known values."""

    start_s: float
    seconds: float
    values: tuple[float | None, ...]  # in the order of figures.NAMES


def joined(points: list[Point]) -> Point:
    """Join neighbouring stretches, with values weighted by their time."""
    values = []
    for column in zip(*(point.values for point in points), strict=True):
        known = [(value, point.seconds) for value, point in zip(column, points, strict=True) if value is not None]
        whole = max(1e-9, fsum(seconds for _, seconds in known))
        values.append(fsum(value * seconds for value, seconds in known) / whole if known else None)
    return Point(points[0].start_s, fsum(point.seconds for point in points), tuple(values))


class Timeline:
    """At most `limit` points of equally many intervals; when it is full, each two become one."""

    def __init__(self, limit: int = POINTS) -> None:
        self._limit, self._stride = limit, 1
        self._points: list[Point] = []
        self._open: list[Point] = []  # intervals of an incomplete point

    def add(self, point: Point) -> None:
        """Add one interval."""
        self._open.append(point)
        if len(self._open) < self._stride:
            return
        self._points.append(joined(self._open))
        self._open = []
        if len(self._points) >= self._limit:
            self._points = [joined(self._points[at : at + 2]) for at in range(0, len(self._points), 2)]
            self._stride *= 2

    def points(self) -> list[Point]:
        """All points, oldest first, with the incomplete last one."""
        return [*self._points, *([joined(self._open)] if self._open else [])]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch with one verdict, in seconds since watching began, and the widest bounds of its stall."""

    start_s: float
    end_s: float
    bound: Bound
    cause: Cause | None
    severity: Severity
    low: float | None
    high: float | None


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
        self.timeline.add(Point(start, snapshot.seconds, astuple(now)))
        self.intervals += 1
        self.held_s[verdict.bound] = self.held_s.get(verdict.bound, 0.0) + snapshot.seconds
        low = None if verdict.stall is None else verdict.stall.low
        high = None if verdict.stall is None else verdict.stall.high
        span = Span(start, end, verdict.bound, verdict.cause, verdict.severity, low, high)
        last = self.spans[-1] if self.spans else None
        if last is None or (last.bound, last.cause) != (span.bound, span.cause):
            self.spans.append(span)
            return
        low = min((value for value in (last.low, low) if value is not None), default=None)
        high = max((value for value in (last.high, high) if value is not None), default=None)
        self.spans[-1] = replace(span, start_s=last.start_s, low=low, high=high)

    @property
    def seconds(self) -> float:
        """Seconds since watching began."""
        return self.spans[-1].end_s if self.spans else 0.0

    def prevailing(self) -> Bound:
        """The verdict that held longest, unknown and idle aside; unknown without any."""
        held = {bound: seconds for bound, seconds in self.held_s.items() if bound.sure}
        return max(held, key=held.__getitem__, default=Bound.UNKNOWN)
