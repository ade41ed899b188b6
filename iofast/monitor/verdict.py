"""Snapshots of one job in, one verdict out. Pure: no clock, no system, the same answer for the same snapshots.

    phases -> which intervals count        bounds -> the exposed stall E        causes -> why a loader is late

What is decided, in this order: does anything train; is there enough evidence; is the stall at least 10 % whatever the
truth between its bounds (input-bound, unless the device idles far longer for launches or synchronisations); is a device
that idles waiting for something else (copies, synchronisations, launches, other ranks); is a busy one slowed down or
short of memory bandwidth; else it computes. Where bounds lie on both sides of 10 % and nothing else explains the idle
time, the verdict is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import fsum

from iofast.monitor.bounds import exposed
from iofast.monitor.causes import find_cause, longest_wait, waiting
from iofast.monitor.findings import Bound, Cause, Evidence, Phase, Severity, StallBounds, Verdict
from iofast.monitor.limits import Finding, other_than_input
from iofast.monitor.phases import phases, seconds_by_phase
from iofast.monitor.snapshot import Snapshot, Tier, WaitSite
from iofast.monitor.thresholds import THRESHOLDS, Thresholds
from iofast.monitor.training import Training


def classify(
    snapshots: Sequence[Snapshot], before: Verdict | None = None, thresholds: Thresholds = THRESHOLDS
) -> Verdict:
    """What this training waits for, by all its snapshots (oldest first).

    `before` is the last verdict on the same job: another one must win by a margin, or the later half of the snapshots
    must agree with it. Advice is for `advise` to add.
    """
    now = _judge(snapshots, thresholds)
    if before is None or now.bound is before.bound or not (now.bound.sure and before.bound.sure):
        return now
    clear = _judge(snapshots, _reluctant(thresholds, before.bound, now.bound))
    if clear.bound is now.bound:
        return now
    later = _judge(snapshots[len(snapshots) // 2 :], thresholds)
    if later.bound is now.bound:
        return now
    if before.bound is Bound.INPUT and (now.stall is None or now.stall.low < thresholds.bound):
        return now  # nothing is called input-bound below the bound, and be it for a moment
    return replace(now, bound=before.bound, cause=before.cause if before.bound is Bound.INPUT else None)


def severity(stall: StallBounds | None, thresholds: Thresholds = THRESHOLDS) -> Severity:
    """By the lower bound: what can be proved."""
    low = stall.low if stall is not None else 0.0
    if low >= thresholds.severe:
        return Severity.SEVERE
    if low >= thresholds.bound:
        return Severity.BOUND
    return Severity.NOTICE if low >= thresholds.notice else Severity.NONE


def _reluctant(thresholds: Thresholds, before: Bound, now: Bound) -> Thresholds:
    """Thresholds with the margin on the side of the verdict before."""
    by = thresholds.margin
    if now is Bound.INPUT:
        return replace(thresholds, bound=thresholds.bound + by, severe=max(thresholds.severe, thresholds.bound + by))
    if before is Bound.COMPUTE:
        return replace(
            thresholds, idle=thresholds.idle + by, sync=thresholds.sync + by, transfer=thresholds.transfer + by
        )
    return replace(thresholds, idle=max(0.0, thresholds.idle - by))


@dataclass(frozen=True, slots=True)
class _Case:
    """What is judged: the training intervals, all of them with their phases, and the stall."""

    training: Training
    spent: dict[Phase, float]
    stall: StallBounds | None
    thresholds: Thresholds

    def verdict(self, finding: Finding, cause: Cause | None = None, stall: StallBounds | None = None) -> Verdict:
        stall, site = stall or self.stall, longest_wait(self.training, self.thresholds)
        reason = finding.reason
        if finding.bound is Bound.UNKNOWN and site is not None and not site.loader:
            reason = f"{reason}: {waiting(site)}, and nothing says whether for its batches"
        return Verdict(
            bound=finding.bound,
            cause=cause,
            stall=stall,
            severity=severity(stall, self.thresholds),
            evidence=_general(self.training, stall, site) + finding.evidence,
            reason=reason,
            tier=stall.tier if stall is not None else Tier.OUTSIDE,
            phases=self.spent,
            seconds=self.training.seconds,
            steps=self.training.steps,
            waits=site,
        )


def _judge(snapshots: Sequence[Snapshot], thresholds: Thresholds) -> Verdict:
    found = phases(snapshots, thresholds)
    spent = seconds_by_phase(snapshots, found)
    counted = {Phase.TRAINING}
    if spent.get(Phase.BETWEEN, 0.0) > spent.get(Phase.TRAINING, 0.0):
        counted.add(Phase.BETWEEN)  # epochs shorter than an interval: each has a beginning in it
    training = Training([one for one, phase in zip(snapshots, found, strict=True) if phase in counted])
    case = _Case(training, spent, None, thresholds)
    if (idle := _nothing_trains(Training(snapshots), spent, thresholds)) is not None:
        return case.verdict(Finding(Bound.IDLE, reason=idle))
    case = replace(case, stall=exposed(training, thresholds))
    if (short := _too_little(case)) is not None:
        return case.verdict(Finding(Bound.UNKNOWN, reason=short))
    stall = case.stall
    if (start := _epoch_starts(snapshots, found, case)) is not None:
        return start
    other = other_than_input(training, stall, thresholds)
    if stall is not None and stall.low >= thresholds.bound and not _copies(training, stall) and not _minor(case, other):
        cause, evidence = find_cause(training, thresholds)
        return case.verdict(Finding(Bound.INPUT, evidence), cause)
    return case.verdict(other)


def _nothing_trains(every: Training, spent: dict[Phase, float], thresholds: Thresholds) -> str | None:
    """Why there is nothing to judge: None where something trains."""
    if not every.snapshots:
        return "nothing has been seen yet"
    paused = spent.get(Phase.PAUSED, 0.0)
    if paused > 0.5 * every.seconds:
        return f"the process was stopped for {paused:.0f} of {every.seconds:.0f} s"
    busy = every.device(lambda device: device.busy)
    if busy is None and every.idle is not None:
        busy = 1.0 - every.idle
    least = thresholds.idle_cpu if every.stacks else thresholds.idle_cpu_unseen
    if every.cpu >= least or (busy or 0.0) >= thresholds.idle_busy or every.steps or every.trains:
        return None
    shown = "no device at work" if busy is not None else "no device in sight"
    return f"the job used {every.cpu:.3f} cores and {shown}"


def _too_little(case: _Case) -> str | None:
    """Why the evidence is too short for a verdict; None where it is enough."""
    training, stall, thresholds = case.training, case.stall, case.thresholds
    if not training.snapshots:
        spent = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in case.spent.items())
        return f"no interval was training: {spent}"
    steps = training.steps
    if training.seconds < thresholds.min_seconds and (steps is None or steps < thresholds.min_steps):
        count = "" if steps is None else f" and {steps} of {thresholds.min_steps} steps"
        return f"only {int(training.seconds)} of {thresholds.min_seconds:.0f} s of training{count} seen so far"
    if stall is None:
        return "nothing could be seen of the training thread"
    # Wide bounds say nothing about the stall; a device that never idles says enough all the same.
    if stall.width > thresholds.max_width and stall.low < thresholds.bound:
        more = "" if training.stacks else "; Python stacks would tell (py-spy, and the right to trace)"
        return f"the stall is somewhere between {stall.low:.0%} and {stall.high:.0%}{more}"
    return None


def _copies(training: Training, stall: StallBounds) -> bool:
    """Whether most of a measured stall is the copy to the device, and not the wait for the batch."""
    copied = training.per_step(lambda loader: loader.transfer_s)
    return stall.tier is Tier.INSIDE and copied is not None and copied > max(0.0, stall.low - copied)


def _minor(case: _Case, other: Finding) -> bool:
    """Whether the stall is the small part of why the device idles, and it is known for what it does the rest.

    A step of tiny kernels has a next() that counts: with 87 % idle and a stall of 17 %, a loader without any wait makes
    training 1.2 times as fast, a captured graph up to 3.3 times.
    """
    idle, stall = case.training.idle, case.stall
    if idle is None or stall is None or other.bound not in (Bound.LAUNCH, Bound.SYNC):
        return False
    return idle - stall.high >= case.thresholds.minor * stall.high


def _epoch_starts(snapshots: Sequence[Snapshot], found: Sequence[Phase], case: _Case) -> Verdict | None:
    """Input-bound by the starts of epochs, which cost more than all that is waited for within them."""
    thresholds, steady = case.thresholds, case.stall
    told = case.training.starts
    both = [one for one, its in zip(snapshots, found, strict=True) if its in (Phase.TRAINING, Phase.BETWEEN)]
    joined = Training(both)
    if steady is None or not joined.seconds:
        return None
    if (said := joined.starts) is not None:  # by the loader itself
        share = said
    else:
        share = case.spent.get(Phase.BETWEEN, 0.0) / joined.seconds
    if share < thresholds.gap:
        return None
    stall = (exposed(joined, thresholds) or steady) if said is None else _with_starts(steady, said)
    before = _middle(steady) * (case.training.seconds / joined.seconds if told is None else 1.0)
    if stall.low < thresholds.bound or stall.width > thresholds.max_width:
        return None
    if not _short_epochs(case) and before > 0.5 * _middle(stall):
        return None
    what = "starts and ends of epochs take" if said is not None else "intervals in which an epoch begins take"
    evidence = Evidence("gap", share, f"{what} {share:.0%} of the time")
    return case.verdict(Finding(Bound.INPUT, (evidence,)), Cause.EPOCH_START, stall)


def _with_starts(steady: StallBounds, share: float) -> StallBounds:
    """A stall within epochs, and the starts of epochs, in which a device has nothing to do either."""
    return replace(steady, low=steady.low * (1 - share) + share, high=min(1.0, steady.high * (1 - share) + share))


def _short_epochs(case: _Case) -> bool:
    return case.spent.get(Phase.BETWEEN, 0.0) > case.spent.get(Phase.TRAINING, 0.0)


def _middle(stall: StallBounds) -> float:
    return (stall.low + stall.high) / 2


_Text = Callable[[float], str]


def _general(training: Training, stall: StallBounds | None, site: WaitSite | None) -> tuple[Evidence, ...]:
    """What every verdict shows where it is known."""
    found = []
    if stall is not None:
        what = "the host waits for its loader" if stall.host_wait else "the device idles for want of a batch"
        span = f"{stall.low:.0%}" if stall.width < 0.005 else f"{stall.low:.0%} to {stall.high:.0%}"
        found.append(Evidence("stall", fsum((stall.low, stall.high)) / 2, f"{what} {span} of the time"))
    if site is not None:
        found.append(Evidence("waits_at", site.share, waiting(site)))
    cores = training.system(lambda one: one.system.cores)
    of = "" if cores is None else f" of {cores:g}"
    figures: tuple[tuple[str, float | None, _Text], ...] = (
        ("device_idle", training.idle, lambda share: f"the device runs nothing {share:.0%} of the time"),
        ("sm_active", training.device(lambda one: one.sm_active), lambda share: f"{share:.0%} of the SMs are at work"),
        (
            "tensor_active",
            training.device(lambda one: one.tensor_active),
            lambda share: f"tensor cores are at work {share:.0%} of the time",
        ),
        (
            "main_cpu",
            training.main_cpu if training.snapshots else None,
            lambda cpu: f"the training process uses {cpu:.2f}{of} cores",
        ),
    )
    found += [Evidence(name, value, text(value)) for name, value, text in figures if value is not None]
    return tuple(found)
