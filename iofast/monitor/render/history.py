"""History of one job in bounded memory: days take as much as an hour."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from iofast.monitor.findings import Bound, Cause, Severity, Verdict
from iofast.monitor.render.figures import NAMES, Figures
from iofast.monitor.snapshot import Snapshot

RECENT = 240  # intervals kept in full: the widest sparkline
POINTS = 512  # of a timeline; when it is full, each two neighbours become one
SPANS = 200  # newest changes of the verdict


@dataclass(frozen=True, slots=True)
class Point:
    """A stretch of a timeline: means of the known values."""

    start_s: float
    seconds: float
    values: tuple[float | None, ...]  # in the order of figures.NAMES

    def joined(self, other: Point) -> Point:
        """Join both stretches, with values weighted by their time."""
        seconds = self.seconds + other.seconds
        pairs = zip(self.values, other.values, strict=True)
        return Point(self.start_s, seconds, tuple(_mean(a, b, self.seconds, other.seconds) for a, b in pairs))


def _mean(a: float | None, b: float | None, weight_a: float, weight_b: float) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return (a * weight_a + b * weight_b) / max(weight_a + weight_b, 1e-9)


class Timeline:
    """At most `points` points of equally many intervals; when it is full, each two become one."""

    def __init__(self, points: int = POINTS) -> None:
        self._limit = points
        self._points: list[Point] = []
        self._open: Point | None = None
        self._intervals, self._stride = 0, 1

    def add(self, point: Point) -> None:
        """Add one interval."""
        self._open = point if self._open is None else self._open.joined(point)
        self._intervals += 1
        if self._intervals < self._stride:
            return
        self._points.append(self._open)
        self._open, self._intervals = None, 0
        if len(self._points) >= self._limit:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [first.joined(second) for first, second in pairs]
            self._stride *= 2

    def points(self) -> list[Point]:
        """All points, oldest first, with the incomplete last one."""
        return [*self._points, *([] if self._open is None else [self._open])]


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
    held_s: dict[tuple[Bound, Cause | None], float] = field(default_factory=dict)
    intervals: int = 0

    def add(self, snapshot: Snapshot, now: Figures, verdict: Verdict) -> None:
        """Add an interval, its figures, and the verdict at its end."""
        start = snapshot.time_s - snapshot.seconds - self.started_s
        self.recent.append(now)
        self.timeline.add(Point(start, snapshot.seconds, tuple(getattr(now, name) for name in NAMES)))
        self.intervals += 1
        key = (verdict.bound, verdict.cause)
        self.held_s[key] = self.held_s.get(key, 0.0) + snapshot.seconds
        self._note(verdict, start, snapshot.time_s - self.started_s)

    def _note(self, verdict: Verdict, start: float, end: float) -> None:
        low = None if verdict.stall is None else verdict.stall.low
        high = None if verdict.stall is None else verdict.stall.high
        span = Span(start, end, verdict.bound, verdict.cause, verdict.severity, low, high)
        last = self.spans[-1] if self.spans else None
        if last is None or (last.bound, last.cause) != (span.bound, span.cause):
            self.spans.append(span)
            return
        lows = [value for value in (last.low, low) if value is not None]
        highs = [value for value in (last.high, high) if value is not None]
        bounds = (min(lows, default=None), max(highs, default=None))
        self.spans[-1] = replace(span, start_s=last.start_s, low=bounds[0], high=bounds[1])

    @property
    def seconds(self) -> float:
        """Seconds since watching began."""
        return self.spans[-1].end_s if self.spans else 0.0

    def prevailing(self) -> Bound:
        """The verdict that held longest, unknown and idle aside; unknown without any."""
        held: dict[Bound, float] = {}
        for (bound, _), seconds in self.held_s.items():
            if bound.sure:
                held[bound] = held.get(bound, 0.0) + seconds
        return max(held, key=held.__getitem__, default=Bound.UNKNOWN)
