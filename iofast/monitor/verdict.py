"""Judge the snapshots of one job: phases -> bounds of the stall -> verdict and cause -> advice. Pure, without a clock.

The order of decisions:
0. No batch for 30 seconds, and nothing computed or read: stalled.
1. Nothing trains: idle.
2. Too few steps or seconds, or bounds too wide: unknown.
3. Starts of epochs cost more than the waits within them: input-bound, epoch-start.
4. The lower bound of the stall is at least 10 %, or at least 5 % and the middle 12 %: input-bound, unless most of it is
   the copy to the device, or the device idles far longer for launches or synchronisations.
5. Otherwise what `limits` finds: another reason to idle, a slow device, or computing. If the bounds lie on both sides
   of 10 % and nothing else explains the idle time, the verdict is unknown.
"""

from collections.abc import Sequence
from dataclasses import replace

from iofast.monitor import thresholds
from iofast.monitor.advice import advise
from iofast.monitor.bounds import exposed, interference
from iofast.monitor.causes import find_cause, waiting
from iofast.monitor.findings import Band, Bound, Cause, Evidence, Phase, Severity, StallBounds, Verdict, longer
from iofast.monitor.limits import Finding, other_than_input, stalled
from iofast.monitor.phases import phases, seconds_by_phase
from iofast.monitor.snapshot import Snapshot, Tier, WaitSite
from iofast.monitor.training import Training
from iofast.monitor.what_if import Situation, what_if


def classify(
    snapshots: Sequence[Snapshot], before: Verdict | None = None, min_seconds: float = thresholds.MIN_SECONDS
) -> Verdict:
    """Judge all snapshots of one job, oldest first.

    `before` is the job's last verdict: another one has to exceed its threshold by a margin. `min_seconds` of training
    are enough if steps cannot be counted.
    """
    last = before.bound if before is not None and before.bound.sure and before.bound is not Bound.STALLED else None
    case = _Case(snapshots, last, min_seconds)
    verdict = _decide(case)
    if not verdict.bound.sure or verdict.bound is Bound.STALLED:
        return verdict
    based_on = case.both if verdict.cause is Cause.EPOCH_START else case.training
    now = Situation(case.every, based_on, verdict)
    predicted = what_if(now)
    return replace(verdict, advice=advise(now, predicted), what_if=predicted)


def severity(stall: StallBounds | None) -> Severity:
    """Severity by the lower bound of the stall: by what is proved."""
    low = stall.low if stall is not None else 0.0
    levels = thresholds.NOTICE, thresholds.BOUND, thresholds.SEVERE
    return list(Severity)[sum(low >= level for level in levels)]


_IDLE_BUSY = 0.01  # of a device, below which nothing trains on it
_BUSY = frozenset({Bound.COMPUTE, Bound.MEMORY})  # verdicts on a device that hardly idles,
_IDLING = frozenset({Bound.TRANSFER, Bound.LAUNCH, Bound.SYNC})  # and on one that does


class _Case:
    """`every`: all intervals; `training`: those that count; `both`: with those in which an epoch begins.

    `training` and `both` have a bound that leans towards `last`, the last verdict.
    """

    def __init__(self, snapshots: Sequence[Snapshot], last: Bound | None, min_seconds: float) -> None:
        phase_of = phases(snapshots)
        by = thresholds.MARGIN if last in _BUSY else -thresholds.MARGIN if last in _IDLING else 0.0

        def of(*which: Phase) -> Training:
            chosen = [one for one, phase in zip(snapshots, phase_of, strict=True) if phase in which]
            return Training(chosen, bound=thresholds.BOUND + by)

        self.last, self.min_seconds, self.every = last, min_seconds, Training(snapshots)
        self.spent = seconds_by_phase(snapshots, phase_of)
        between = self.spent.get(Phase.BETWEEN, 0.0)
        self.short_epochs = between > self.spent.get(Phase.TRAINING, 0.0)  # most intervals have the start of one
        self.both = of(Phase.TRAINING, Phase.BETWEEN)
        self.training = self.both if self.short_epochs or not between else of(Phase.TRAINING)


def _decide(case: _Case) -> Verdict:
    if (hangs := stalled(case.every, case.min_seconds)) is not None:
        tier = Tier.STACKS if case.every.stacks else Tier.OUTSIDE
        severe = Severity.SEVERE if hangs.bound is Bound.STALLED else Severity.NONE
        return replace(_verdict(case, hangs, None), severity=severe, tier=tier)
    if (reason := _nothing_trains(case)) is not None:
        return _verdict(case, Finding(Bound.IDLE, reason=reason), None)
    training = case.training
    stall = exposed(training)
    if (reason := _too_little(case, stall)) is not None or stall is None:
        return _verdict(case, Finding(Bound.UNKNOWN, reason=reason or ""), stall)
    if (start := _epoch_starts(case, stall)) is not None:
        return start
    other, copied = other_than_input(training, stall), training.copied or 0.0
    bound, margin = thresholds.BOUND, thresholds.MARGIN
    proved = stall.low >= bound or (stall.low >= thresholds.NOTICE and stall.middle >= bound + margin)
    copies = stall.tier is Tier.INSIDE and copied > max(0.0, stall.low - copied)  # most of the stall is the copy
    if not proved or copies or _minor(training, stall, other):
        return _verdict(case, other, stall)
    if case.last not in (None, Bound.INPUT) and stall.low < bound + margin:
        return _verdict(case, Finding(case.last), stall)  # within the margin the last verdict remains
    cause, evidence = find_cause(training)
    return _verdict(case, Finding(Bound.INPUT, evidence, cause=cause), stall)


def _verdict(case: _Case, finding: Finding, stall: StallBounds | None) -> Verdict:
    training, reason = case.training, finding.reason
    site, beside = training.longest_wait, interference(case.training, stall)
    if finding.bound is Bound.UNKNOWN and site is not None and not site.loader:
        reason = f"{reason}: {waiting(site)}, and it is unknown whether for its batches"
    return Verdict(
        bound=finding.bound,
        cause=finding.cause,
        stall=stall,
        severity=severity(stall),
        interference=beside,
        evidence=_general(training, stall, site, beside) + finding.evidence,
        reason=reason,
        tier=stall.tier if stall is not None else Tier.OUTSIDE,
        phases=case.spent,
        seconds=training.seconds,
        steps=training.steps,
        waits=site,
    )


def _nothing_trains(case: _Case) -> str | None:
    """Why there is nothing to judge; None if something trains."""
    every = case.every
    if not every.snapshots:
        return "nothing has been seen yet"
    paused = case.spent.get(Phase.PAUSED, 0.0)
    if paused > 0.5 * every.seconds:
        return f"the process was stopped for {paused:.0f} of {every.seconds:.0f} s"
    busy = 1.0 - every.idle if every.busy is None and every.idle is not None else every.busy
    least = thresholds.IDLE_CPU if every.stacks else 0.1 * thresholds.IDLE_CPU
    if every.cpu >= least or (busy or 0.0) >= _IDLE_BUSY or every.steps or every.trains:
        return None
    device = "no device at work" if busy is not None else "no device in sight"
    return f"the job used {every.cpu:.3f} cores and {device}"


def _too_little(case: _Case, stall: StallBounds | None) -> str | None:
    """Why the evidence is too little for a verdict; None if it is enough."""
    training = case.training
    if not training.snapshots:
        spent = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in case.spent.items())
        return f"no interval was training: {spent}"
    steps = training.steps
    if training.seconds < case.min_seconds and (steps is None or steps < thresholds.MIN_STEPS):
        count = "" if steps is None else f" and {steps} of {thresholds.MIN_STEPS} steps"
        return f"only {int(training.seconds)} of {case.min_seconds:.0f} s of training{count} seen so far"
    if stall is None:
        return "nothing could be seen of the training thread"
    # Wide bounds say nothing about the stall; a device that never idles says enough all the same.
    if stall.width > thresholds.MAX_WIDTH and stall.low < thresholds.BOUND:
        more = "" if case.every.stacks else "; Python stacks would tell (py-spy, and the right to trace)"
        return f"the stall is somewhere between {stall.low:.0%} and {stall.high:.0%}{more}"
    return None


def _minor(training: Training, stall: StallBounds, other: Finding) -> bool:
    """Whether the stall is the small part of the device's idle time, and the reason for the large part is known.

    A step of tiny kernels makes even a fast next() count: with 87 % idle and a stall of 17 %, a loader without any wait
    makes training 1.2 times as fast, a captured graph up to 3.3 times.
    """
    if training.idle is None or other.bound not in (Bound.LAUNCH, Bound.SYNC):
        return False
    return training.idle - stall.high >= 2 * stall.high


def _epoch_starts(case: _Case, steady: StallBounds) -> Verdict | None:
    """Input-bound by the starts of epochs, if they cost more than all waits within epochs."""
    training, both = case.training, case.both
    reported = both.starts  # by the loader itself
    share = case.spent.get(Phase.BETWEEN, 0.0) / both.seconds if reported is None else reported
    if share < thresholds.BOUND:
        return None
    if reported is None:
        stall = exposed(both) or steady
        what = "intervals in which an epoch begins take"
    else:  # a device has nothing to do at the start of an epoch either
        low, high = (bound * (1 - share) + share for bound in (steady.low, steady.high))
        stall = replace(steady, low=low, high=min(1.0, high))
        what = "starts and ends of epochs take"
    if stall.low < thresholds.BOUND or stall.width > thresholds.MAX_WIDTH:
        return None
    within = steady.middle * (1.0 if training.starts is not None else training.seconds / both.seconds)
    if not case.short_epochs and within > 0.5 * stall.middle:
        return None
    evidence = Evidence("gap", share, f"{what} {share:.0%} of the time")
    return _verdict(case, Finding(Bound.INPUT, (evidence,), cause=Cause.EPOCH_START), stall)


def _general(
    training: Training, stall: StallBounds | None, site: WaitSite | None, beside: Band | None
) -> tuple[Evidence, ...]:
    """The evidence of every verdict, as far as it is known."""
    evidence = []
    if stall is not None:
        what = "the host waits for its loader" if stall.host_wait else "the device idles for want of a batch"
        span = f"{stall.low:.0%}" if stall.width < 0.005 else f"{stall.low:.0%} to {stall.high:.0%}"
        evidence.append(Evidence("stall", stall.middle, f"{what} {span} of the time"))
    if site is not None:
        evidence.append(Evidence("waits_at", site.share, waiting(site)))
    cores = training.cores
    of = "" if cores is None else f" of {cores:g}"
    figures = (
        ("device_idle", training.idle, "the device runs nothing {:.0%} of the time"),
        ("sm_active", training.sm_active, "{:.0%} of the SMs are at work"),
        ("tensor_active", training.tensor_active, "tensor cores are at work {:.0%} of the time"),
        ("main_cpu", training.main_cpu if cores else None, f"the training process uses {{:.2f}}{of} cores"),
    )
    evidence += [Evidence(name, value, text.format(value)) for name, value, text in figures if value is not None]
    if training.taken is not None and stall is not None:
        busiest = training.snapshots[-1].system.busiest
        who = f" ({busiest})" if busiest is not None else ""
        text = f"other programs use {training.taken:.1f}{of} cores{who}"
        evidence.append(Evidence("other_cores", training.taken, text))
    if beside is not None and beside.high >= thresholds.NOTICE and training.queued is not None:
        text = f"the training thread is ready to run and has no processor {training.queued:.0%} of the time"
        evidence.append(Evidence("main_queued", training.queued, text))
        evidence.append(Evidence("interference", beside.middle, longer(beside)))
    return tuple(evidence)
