"""What a judgement consists of: verdict, cause, the bounds of the stall, evidence and advice. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from iofast.monitor.snapshot import Tier, WaitSite


class Bound(StrEnum):
    """What the training waits for most."""

    INPUT = "input-bound"
    TRANSFER = "transfer-bound"
    LAUNCH = "launch-bound"
    SYNC = "sync-bound"
    COMPUTE = "compute-bound"
    MEMORY = "memory-bound"
    COMMUNICATION = "communication-bound"
    THROTTLED = "throttled"
    IDLE = "idle"
    UNKNOWN = "unknown"

    @property
    def sure(self) -> bool:
        """Whether it says what training waits for."""
        return self not in (Bound.UNKNOWN, Bound.IDLE)


class Cause(StrEnum):
    """Why a loader is late."""

    STORAGE = "storage"
    PAGE_CACHE = "page-cache"
    WORKERS = "decode-cpu-workers"
    CPU = "decode-cpu-exhausted"
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
    """What an interval was part of. Only training counts towards the verdict."""

    WARM_UP = "warm-up"
    TRAINING = "training"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    BETWEEN = "between-epochs"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class StallBounds:
    """Bounds of the exposed stall, the share of training time that the device stands idle because a batch is late."""

    low: float
    high: float
    tier: Tier
    host_wait: bool = False  # there is no device to see: it is the host's wait

    @property
    def width(self) -> float:
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class Evidence:
    """One figure that a verdict rests on. `text` says it in a line, with the number."""

    name: str  # stable, for programs: worker_cpu, device_busy, ...
    value: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change. `gain` is the predicted speed-up of the whole training, at most (1.25: a quarter faster)."""

    name: str  # stable: pack, fastloader, num_workers, ...
    text: str  # one sentence: what and why, with the figure that triggered it
    change: str  # the exact code line or command
    trigger: str  # the name of the figure that triggered it, and
    value: float | None  # that figure; None where there is none: something was seen, and that suffices
    gain: float | None = None
    changes_accuracy: bool = False
    risk: str = ""  # what to look out for, in a few words; "" where there is nothing


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of some intervals of one job. `reason` says why, where it is unknown or idle."""

    bound: Bound
    cause: Cause | None
    stall: StallBounds | None
    severity: Severity
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[Advice, ...] = ()
    reason: str = ""
    tier: Tier = Tier.OUTSIDE
    phases: dict[Phase, float] = field(default_factory=dict)  # seconds in each
    seconds: float = 0.0  # of training that it rests on
    steps: int | None = None
    waits: WaitSite | None = None  # where the training thread waits longest, or makes a batch by itself
