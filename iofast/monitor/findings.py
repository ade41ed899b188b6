"""Parts of a verdict as plain data: bound, cause, bounds of the stall, evidence, advice."""

from dataclasses import dataclass, field
from enum import StrEnum

from iofast.monitor.snapshot import Tier, WaitSite


class Bound(StrEnum):
    """What limits the training."""

    INPUT = "input-bound"
    TRANSFER = "transfer-bound"
    LAUNCH = "launch-bound"
    SYNC = "sync-bound"
    COMPUTE = "compute-bound"
    MEMORY = "memory-bound"
    COMMUNICATION = "communication-bound"
    THROTTLED = "throttled"
    STALLED = "stalled"
    IDLE = "idle"
    UNKNOWN = "unknown"

    @property
    def sure(self) -> bool:
        """Whether it names a limit."""
        return self not in (Bound.UNKNOWN, Bound.IDLE)


class Cause(StrEnum):
    """Why a loader is late. TAKEN is also why a compute-bound training is slow."""

    STORAGE = "storage"
    REMOTE = "storage-remote"
    PAGE_CACHE = "page-cache"
    WORKERS = "decode-cpu-workers"
    CPU = "decode-cpu-exhausted"
    TAKEN = "cores-taken"
    SINGLE = "single-process"
    COLLATE = "collate-ipc"
    PIN = "pin"
    EPOCH_START = "epoch-start"
    RANK_SKEW = "rank-skew"
    FEEDER = "feeder"


class Severity(StrEnum):
    """By the stall: below 5 % none, from 5 % notice, from 10 % bound, from 20 % severe."""

    NONE = "none"
    NOTICE = "notice"
    BOUND = "bound"
    SEVERE = "severe"


class Phase(StrEnum):
    """Part of a training that an interval belongs to. Only TRAINING counts towards the verdict."""

    WARM_UP = "warm-up"
    TRAINING = "training"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    BETWEEN = "between-epochs"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Band:
    """Bounds of a figure."""

    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class StallBounds(Band):
    """Bounds of the exposed stall: the share of training time that the device idles because a batch is late."""

    tier: Tier
    host_wait: bool = False  # no device can be seen: it is the wait of the host


def longer(interference: Band) -> str:
    """How much longer a step takes beside the loader, in a clause."""
    low, high = round(100 * interference.low), round(100 * interference.high)
    return f"a step takes {low}% {f'to {high}% ' * (low != high)}longer beside the loader"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One figure that a verdict rests on; `text` is a line with the number in it."""

    name: str  # stable: worker_cpu, device_busy, ...
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Advice:
    """One change to make. `gain` is an upper bound of the speed-up of the whole training (1.25: a quarter faster)."""

    name: str  # stable: pack, fastloader, num_workers, ...
    text: str  # one sentence: what and why, with the figure that triggered it
    change: str  # the exact line of code or command
    trigger: str  # name of the figure that triggered it
    value: float | None  # that figure; None if the trigger is no number
    gain: float | None = None
    changes_accuracy: bool = False
    risk: str = ""  # what to look out for, in a few words


@dataclass(frozen=True, slots=True)
class Prediction:
    """The rate after a change as multiples of the present one, with the assumption that it rests on."""

    name: str  # stable: workers, cores, others, storage, page_cache, pack, fastloader, device
    change: str
    low: float
    high: float
    assumption: str
    images: tuple[float, float] | None = None  # a second; None if no loader reports the present rate


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of some intervals of one job. `reason` explains a bound of unknown, idle or stalled."""

    bound: Bound
    cause: Cause | None
    stall: StallBounds | None
    severity: Severity
    # How much longer a step takes beside the loader: 0.25 is a quarter. None if none works beside it, or it is unknown.
    interference: Band | None = None
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[Advice, ...] = ()
    what_if: tuple[Prediction, ...] = ()
    reason: str = ""
    tier: Tier = Tier.OUTSIDE
    phases: dict[Phase, float] = field(default_factory=dict)  # seconds in each
    seconds: float = 0.0  # of training, that the verdict rests on
    steps: int | None = None
    waits: WaitSite | None = None  # line where the training thread waits longest, or makes a batch

    def figure(self, *names: str) -> Evidence | None:
        """The first of these that is in the evidence; None without any."""
        known = {one.name: one for one in self.evidence}
        return next((known[name] for name in names if name in known), None)
