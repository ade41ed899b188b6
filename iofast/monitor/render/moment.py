"""The model that all views share: a job's newest interval, verdict and history. It takes the same memory after days."""

from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

from iofast.meter.clock import PUBLISH_NS
from iofast.monitor.bounds import exposed
from iofast.monitor.findings import Band, Bound, Cause, Verdict
from iofast.monitor.phases import RunSums
from iofast.monitor.snapshot import Job, Snapshot
from iofast.monitor.training import Training, mean, total

RECENT = 240  # intervals kept in full: the widest timeline of a screen
STRETCHES = 92  # of a timeline of the whole run: columns that `--once` and the report have for it
SPANS = 200  # newest changes of the verdict
_LOT_S = 1.5 * PUBLISH_NS / 1e9  # a loader's page is written so often, or at the end of a step


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of an interval, or of a stretch of several. Shares are 0 to 1; of several GPUs of a job, their mean."""

    device_busy: float | None
    sm_active: float | None
    stall_low: float | None  # bounds of the stall as a verdict has them, without the sampling error:
    stall_high: float | None  # an interval alone has few samples
    images_per_s: float | None
    loader_cores: float | None  # cores in use by worker processes and loader threads
    disk_bytes_per_s: float | None  # read by the job; by all processes if the job's own is not available
    main_cores: float | None


def figures(snapshot: Snapshot) -> Figures:
    """The numbers of `snapshot`."""
    seconds = max(snapshot.seconds, 1e-9)
    training = Training([snapshot], z=0.0)
    stall = exposed(training)
    images = total(loader.images for loader in snapshot.loaders)
    # Seconds that a loader's counters cover: its page is written at other times than an interval ends.
    covered = [(one.step_s or 0.0) * one.steps + one.epoch_start_s for one in snapshot.loaders if one.batches]
    reported = max(covered, default=0.0)
    reported = reported if reported and abs(reported - seconds) <= _LOT_S else seconds
    read = total(process.read_bytes for process in snapshot.processes)
    disk = snapshot.system.disk_read_bytes if read is None else read
    return Figures(
        device_busy=training.busy,
        sm_active=training.sm_active,
        stall_low=None if stall is None else stall.low,
        stall_high=None if stall is None else stall.high,
        images_per_s=None if images is None else images / reported,
        loader_cores=training.loader_cores,
        disk_bytes_per_s=None if disk is None else disk / seconds,
        main_cores=mean(process.cpu_s / seconds for process in snapshot.processes if process.role == "main"),
    )


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

    def add(self, snapshot: Snapshot, verdict: Verdict) -> "Moment":
        """Add an interval, and the verdict at its end."""
        now = figures(snapshot)
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
        return Moment(snapshot.job, snapshot, now, verdict, self)

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
