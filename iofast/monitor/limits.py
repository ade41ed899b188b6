"""Limits of a training other than its input: copies, synchronisations, launches, other ranks, clocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import fsum
from statistics import median

from iofast.monitor.findings import Bound, Cause, Evidence, StallBounds
from iofast.monitor.snapshot import Doing, Frame, idle_share
from iofast.monitor.training import Training, mean

_LAUNCHING = (Frame.FORWARD, Frame.BACKWARD, Frame.OPTIMIZER, Frame.OTHER)
_FEW = 8  # stack samples
_TWICE = 1.5  # stack samples: something seen once may be chance
_BY_PHASE = frozenset({Bound.COMPUTE, Bound.MEMORY, Bound.LAUNCH, Bound.SYNC})  # limits within the program's own step
_PHASES = 4  # named in the evidence
_SEEN = 0.05  # smallest share of stack samples that evidence names


@dataclass(frozen=True, slots=True)
class Finding:
    """A bound, and the figures that say so."""

    bound: Bound
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    cause: Cause | None = None


def other_than_input(training: Training, stall: StallBounds) -> Finding:
    """Judge a training that is not proved to be input-bound. The bounds of its stall may leave that open."""
    found = _bound(training, stall)
    if found.bound not in _BY_PHASE or (phases := _step_phases(training)) is None:
        return found
    return replace(found, evidence=(*found.evidence, phases))


def _step_phases(training: Training) -> Evidence | None:
    """Time by phase of a step, if the program names them."""
    shares, _, on_device = training.step_phases()
    named = [(name, share) for name, share in shares.items() if share >= 0.005][:_PHASES]
    if not named:
        return _stack_phases(training)
    (first, most), *others = named
    rest = "".join(f", {name} {share:.0%}" for name, share in others)
    clock = " (by the device's clock)" if on_device else ""
    return Evidence("step_phases", most, f"{first} takes {most:.0%} of a step{rest}{clock}")


def _stack_phases(training: Training) -> Evidence | None:
    """The same from stacks; None beside a device, whose time stacks do not show."""
    shares = {frame.value: training.frames(frame) or 0.0 for frame in (Frame.FORWARD, Frame.BACKWARD, Frame.OPTIMIZER)}
    named = sorted(((share, name) for name, share in shares.items() if share >= _SEEN), reverse=True)
    if not named or training.frame_looks < _FEW or training.idle is not None or training.devices:
        return None
    text = ", ".join(f"{name} in {share:.0%}" for share, name in named)
    return Evidence(
        "stack_phases", named[0][0], f"the training thread is in {text} of {training.frame_looks} stack samples"
    )


def _bound(training: Training, stall: StallBounds) -> Finding:
    thresholds = training.thresholds
    for rule in (_transfer_measured, _communication, _throttled):
        finding = rule(training)
        if finding is not None:
            return finding
    high, idle = stall.high, training.idle
    # Most of the range is below the bound, and none of it is clearly above.
    below = stall.middle < thresholds.bound and high < thresholds.open
    if idle is None:
        if high >= thresholds.bound and not below:
            return _straddling(stall, thresholds.bound)
        if (asleep := training.asleep) is not None and asleep - high >= thresholds.severe:
            reason = f"the training process sleeps {asleep:.0%} of the time, at most {high:.0%} for its loader"
            return Finding(Bound.UNKNOWN, reason=reason)
        queued = training.taken is not None and (training.main_runnable or 0.0) >= thresholds.runnable
        cause = Cause.TAKEN if queued else None
        return Finding(Bound.COMPUTE, reason="no device in sight: what is judged is the host", cause=cause)
    if idle < thresholds.idle:
        return _busy(training, idle)
    host = max(0.0, idle - high)  # lower bound of the idle time that is not for want of a batch
    clear = host >= thresholds.idle and (training.stacks or host >= 2 * high)
    if below and idle < thresholds.severe and not clear:
        return _busy(training, idle)
    if high >= thresholds.bound and not clear:
        return _straddling(stall, thresholds.bound)
    if host >= thresholds.idle and _lasting(training, high):
        for rule in (_transfer, _launch_or_sync):
            finding = rule(training)
            if finding is not None:
                return finding
        if not training.stacks and training.doing[Doing.RUNNING] >= host:
            text = f"the device runs nothing {host:.0%} of the time although no batch is late and the host runs"
            return Finding(Bound.LAUNCH, (Evidence("launch", host, text),))
    if idle < thresholds.severe or not _lasting(training, high):
        return _busy(training, idle)  # many small reasons, or rare pauses
    return Finding(
        Bound.UNKNOWN, reason=f"the device runs nothing {idle:.0%} of the time, at most {high:.0%} for want of a batch"
    )


def _lasting(training: Training, high: float) -> bool:
    """Whether the device idles in most intervals; a validation or the writing of a log is rare."""
    idles = [idle for one in training.snapshots if (idle := idle_share(one.windows)) is not None]
    return not idles or median(idles) - high >= 0.5 * training.thresholds.idle


def _straddling(stall: StallBounds, bound: float) -> Finding:
    reason = f"the stall is between {stall.low:.0%} and {stall.high:.0%}: on both sides of {bound:.0%}"
    return Finding(Bound.UNKNOWN, reason=reason)


def _transfer_measured(training: Training) -> Finding | None:
    copied = training.copied
    if copied is None or copied < training.thresholds.transfer:
        return None
    text = f"the device waits {copied:.0%} of step time for the copy of a batch"
    return Finding(Bound.TRANSFER, (Evidence("transfer", copied, text),))


def _transfer(training: Training) -> Finding | None:
    """Copies seen in stacks beside a device that idles, or a link that is nearly full."""
    copying = training.frames(Frame.TRANSFER)
    if copying is None or copying < training.thresholds.transfer:
        return None
    text = f"the training thread was copying to the device in {copying:.0%} of stack samples"
    evidence = [Evidence("transfer", copying, text)]
    link = _link(training)
    if link is not None:
        evidence.append(Evidence("link", link, f"copies use {link:.0%} of what the link can carry"))
    full = link is not None and link >= training.thresholds.link
    return Finding(Bound.TRANSFER, tuple(evidence)) if copying >= (training.frames(Frame.SYNC) or 0.0) or full else None


def _link(training: Training) -> float | None:
    """Share of the link's capacity that copies to the device use."""
    return mean(
        device.pcie_rx_bytes / one.seconds / device.pcie_bytes_per_s
        for one in training.snapshots
        for device in one.devices
        if device.own is not False and device.pcie_rx_bytes is not None and device.pcie_bytes_per_s
    )


def _communication(training: Training) -> Finding | None:
    thresholds, talking = training.thresholds, training.frames(Frame.COMMUNICATION)
    peers = training.snapshots[-1].peers if training.snapshots else {}
    slowest = max(peers, key=lambda rank: (peers[rank], -rank), default=None)
    late = peers[slowest] - training.waiting if slowest is not None else 0.0
    evidence = []
    if slowest is not None and late >= thresholds.rank_gap and peers[slowest] >= thresholds.severe:
        text = f"rank {slowest} waits {peers[slowest]:.0%} of the time for its data, and this one for rank {slowest}"
        evidence.append(Evidence("rank_gap", late, text))
    if talking is not None and talking >= max(thresholds.communication, _TWICE / max(1, training.frame_looks)):
        text = f"the training thread was waiting for other ranks in {talking:.0%} of stack samples"
        evidence.append(Evidence("communication", talking, text))
    return Finding(Bound.COMMUNICATION, tuple(evidence)) if evidence else None


def _throttled(training: Training) -> Finding | None:
    thresholds, devices = training.thresholds, training.devices
    slowed = [device for device in devices if device.throttle_reasons]
    at_work = training.idle is None or training.idle < thresholds.severe
    if devices and at_work and len(slowed) / len(devices) > thresholds.clocks:
        reasons = ", ".join(sorted({reason for device in slowed for reason in device.throttle_reasons}))
        share = len(slowed) / len(devices)
        text = f"the device's clock was held back {share:.0%} of the time ({reasons})"
        return Finding(Bound.THROTTLED, (Evidence("clocks", share, text),))
    quota = training.throttled
    host_bound = training.idle is None or training.idle >= thresholds.idle
    if quota >= max(thresholds.quota, thresholds.severe) and host_bound and training.main_cpu > 0.5 * training.cpu:
        text = f"the cgroup's CPU quota kept the training process waiting {quota:.0%} of the time"
        return Finding(Bound.THROTTLED, (Evidence("throttled", quota, text),))
    return None


def _launch_or_sync(training: Training) -> Finding | None:
    """The device idles while the host works: between synchronisations, or because launching takes that long.

    With few stack samples the state of the thread decides: a thread asleep on a lock waits for the device.
    """
    thresholds = training.thresholds
    lock = training.doing[Doing.FUTEX]
    within = training.thread_cpu("pt_data_pin") is not None or training.thread_cpu("iofast") is not None
    backward = (training.thread_cpu("pt_autograd") or 0.0) >= thresholds.notice
    syncing, launching = lock, training.doing[Doing.RUNNING]
    how = "slept on a lock that no loader of its own holds"
    if training.frame_looks >= _FEW or lock < thresholds.sync or within or backward:
        if not training.stacks:
            return None
        syncing = training.frames(Frame.SYNC) or 0.0
        launching = fsum(training.frames(frame) or 0.0 for frame in _LAUNCHING)
        launching = min(launching, 1.0 - (training.asleep or 0.0))
        how = "was waiting for the device"
        if (training.frames(Frame.WAITING) or 0.0) > max(syncing, launching):
            return None  # the host waits for something unknown while the device idles
    if syncing >= thresholds.sync and launching <= thresholds.launch_to_sync * syncing:
        sites = training.syncs()
        where = f", most at {sites[0].file}:{sites[0].line} ({sites[0].call})" if sites else ""
        text = f"the training thread {how} {syncing:.0%} of the time{where}"
        return Finding(Bound.SYNC, (Evidence("sync", syncing, text),))
    if launching >= thresholds.launch:
        text = f"the training thread was at work {launching:.0%} of the time while the device ran dry"
        return Finding(Bound.LAUNCH, (Evidence("launch", launching, text),))
    return None


def _busy(training: Training, idle: float) -> Finding:
    """The device is at work: limited by its memory, or computing."""
    thresholds = training.thresholds
    evidence = [Evidence("device_busy", 1 - idle, f"the device is at work {1 - idle:.0%} of the time")]
    dram = training.device(lambda device: device.dram_active)
    tensor = training.device(lambda device: device.tensor_active)
    if dram is not None:
        evidence.append(Evidence("dram_active", dram, f"its memory is read or written {dram:.0%} of the time"))
        if dram >= thresholds.dram and tensor is not None and tensor < thresholds.tensor:
            return Finding(Bound.MEMORY, tuple(evidence))
    return Finding(Bound.COMPUTE, tuple(evidence))
