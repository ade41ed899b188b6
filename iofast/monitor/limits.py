"""What holds a training up if its loader does not: copies, synchronisations, launches, other ranks, clocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import fsum
from statistics import median

from iofast.monitor.findings import Bound, Evidence, StallBounds
from iofast.monitor.phases import idle_of
from iofast.monitor.snapshot import Doing, Frame
from iofast.monitor.thresholds import Thresholds
from iofast.monitor.training import Training

_LAUNCHING = (Frame.FORWARD, Frame.BACKWARD, Frame.OPTIMIZER, Frame.OTHER)
_FEW = 8  # looks at stacks
_TWICE = 1.5  # looks: what was met once may be anything
_BY_PHASE = frozenset({Bound.COMPUTE, Bound.MEMORY, Bound.LAUNCH, Bound.SYNC})  # the program's own doing
_PHASES = 4  # that evidence names
_SEEN = 0.05  # of looks at stacks; less is not spoken of


@dataclass(frozen=True, slots=True)
class Finding:
    """A bound, and the figures that say so."""

    bound: Bound
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""


def other_than_input(training: Training, stall: StallBounds | None, thresholds: Thresholds) -> Finding:
    """The verdict on a training that is not known to be input-bound; the bounds of its stall may leave this open."""
    found = _bound(training, stall, thresholds)
    if found.bound not in _BY_PHASE or (phases := _step_phases(training)) is None:
        return found
    return replace(found, evidence=(*found.evidence, phases))


def _step_phases(training: Training) -> Evidence | None:
    """In which phases of a step the time goes, where the program names them."""
    shares, on_device = training.step_phases()
    named = [(name, share) for name, share in shares.items() if share >= 0.005][:_PHASES]
    if not named:
        return _stack_phases(training)
    (first, most), *others = named
    rest = "".join(f", {name} {share:.0%}" for name, share in others)
    clock = " (by the device's clock)" if on_device else ""
    return Evidence("step_phases", most, f"{first} takes {most:.0%} of a step{rest}{clock}")


def _stack_phases(training: Training) -> Evidence | None:
    """The same by the stacks of a program that names nothing. Not beside a device, whose time they do not show."""
    shares = {frame.value: training.frames(frame) or 0.0 for frame in (Frame.FORWARD, Frame.BACKWARD, Frame.OPTIMIZER)}
    named = sorted(((share, name) for name, share in shares.items() if share >= _SEEN), reverse=True)
    if not named or training.frame_looks < _FEW or training.idle is not None or training.devices:
        return None
    text = ", ".join(f"{name} in {share:.0%}" for share, name in named)
    return Evidence("stack_phases", named[0][0], f"the training thread is in {text} of {training.frame_looks} looks")


def _bound(training: Training, stall: StallBounds | None, thresholds: Thresholds) -> Finding:
    for look in (_transfer_measured, _communication, _throttled):
        found = look(training, thresholds)
        if found is not None:
            return found
    high = stall.high if stall is not None else 0.0
    idle = training.idle
    # most of what lies between its bounds is; and none of it is clearly above
    below = stall is not None and stall.low + high < 2 * thresholds.bound and high < thresholds.open
    if idle is None:
        if stall is not None and high >= thresholds.bound and not below:
            return _straddling(stall, thresholds)
        if (asleep := training.asleep) is not None and asleep - high >= thresholds.severe:
            reason = f"the training process sleeps {asleep:.0%} of the time, at most {high:.0%} for its loader"
            return Finding(Bound.UNKNOWN, reason=reason)
        return Finding(Bound.COMPUTE, reason="no device in sight: what is judged is the host")
    if idle < thresholds.idle:
        return _busy(training, idle, thresholds)
    host = max(0.0, idle - high)  # the device idles so long at least, and not for want of a batch
    clear = host >= thresholds.idle and (training.stacks or host >= 2 * high)
    if below and idle < thresholds.severe and not clear:
        return _busy(training, idle, thresholds)
    if stall is not None and high >= thresholds.bound and not clear:
        return _straddling(stall, thresholds)
    if host >= thresholds.idle and _lasting(training, high, thresholds):
        for look in (_transfer, _launch_or_sync):
            found = look(training, thresholds)
            if found is not None:
                return found
        if not training.stacks and training.doing[Doing.RUNNING] >= host:
            text = f"the device runs nothing {host:.0%} of the time although no batch is late and the host runs"
            return Finding(Bound.LAUNCH, (Evidence("launch", host, text),))
    if idle < thresholds.severe or not _lasting(training, high, thresholds):
        return _busy(training, idle, thresholds)  # a little of everything, or pauses now and then
    return Finding(
        Bound.UNKNOWN, reason=f"the device runs nothing {idle:.0%} of the time, at most {high:.0%} for want of a batch"
    )


def _lasting(training: Training, high: float, thresholds: Thresholds) -> bool:
    """Whether the device idles in most intervals, and not now and then (a validation, a log that is written)."""
    idles = [idle for one in training.snapshots if (idle := idle_of(one)) is not None]
    return not idles or median(idles) - high >= 0.5 * thresholds.idle


def _straddling(stall: StallBounds, thresholds: Thresholds) -> Finding:
    reason = f"the stall is between {stall.low:.0%} and {stall.high:.0%}: on both sides of {thresholds.bound:.0%}"
    return Finding(Bound.UNKNOWN, reason=reason)


def _transfer_measured(training: Training, thresholds: Thresholds) -> Finding | None:
    copied = training.per_step(lambda loader: loader.transfer_s)
    if copied is None or copied < thresholds.transfer:
        return None
    return Finding(
        Bound.TRANSFER,
        (Evidence("transfer", copied, f"the device waits {copied:.0%} of step time for a batch's copy"),),
    )


def _transfer(training: Training, thresholds: Thresholds) -> Finding | None:
    """Copies by the stacks, on a device that idles; or a link that is nearly full."""
    copying = training.frames(Frame.TRANSFER)
    if copying is None or copying < thresholds.transfer:
        return None
    evidence = [
        Evidence("transfer", copying, f"the training thread was copying to the device in {copying:.0%} of looks")
    ]
    link = _link(training)
    if link is not None:
        evidence.append(Evidence("link", link, f"copies use {link:.0%} of what the link can carry"))
    rest = max(training.frames(Frame.SYNC) or 0.0, 0.0)
    full = link is not None and link >= thresholds.link
    return Finding(Bound.TRANSFER, tuple(evidence)) if copying >= rest or full else None


def _link(training: Training) -> float | None:
    """Share of the link that copies to the device use."""
    shares = [
        device.pcie_rx_bytes / one.seconds / device.pcie_bytes_per_s
        for one in training.snapshots
        for device in one.devices
        if device.own is not False and device.pcie_rx_bytes is not None and device.pcie_bytes_per_s
    ]
    return sum(sorted(shares)) / len(shares) if shares else None


def _communication(training: Training, thresholds: Thresholds) -> Finding | None:
    talking = training.frames(Frame.COMMUNICATION)
    peers = training.snapshots[-1].peers if training.snapshots else {}
    own = training.per_step(lambda loader: loader.wait_s)
    slowest = max(peers, key=lambda rank: (peers[rank], -rank), default=None)
    own = own if own is not None else training.doing[Doing.QUEUE]
    late = peers[slowest] - own if slowest is not None else 0.0
    evidence = []
    if slowest is not None and late >= thresholds.rank_gap and peers[slowest] >= thresholds.severe:
        text = f"rank {slowest} waits {peers[slowest]:.0%} of the time for its data, and this one for rank {slowest}"
        evidence.append(Evidence("rank_gap", late, text))
    if talking is not None and talking >= max(thresholds.communication, _TWICE / max(1, training.frame_looks)):
        text = f"the training thread was waiting for other ranks in {talking:.0%} of looks"
        evidence.append(Evidence("communication", talking, text))
    return Finding(Bound.COMMUNICATION, tuple(evidence)) if evidence else None


def _throttled(training: Training, thresholds: Thresholds) -> Finding | None:
    devices = training.devices
    slowed = [device for device in devices if device.throttle_reasons]
    at_work = training.idle is None or training.idle < thresholds.severe
    if devices and at_work and len(slowed) / len(devices) > thresholds.clocks:
        reasons = ", ".join(sorted({reason for device in slowed for reason in device.throttle_reasons}))
        share = len(slowed) / len(devices)
        text = f"the device's clock was held back {share:.0%} of the time ({reasons})"
        return Finding(Bound.THROTTLED, (Evidence("clocks", share, text),))
    waits = [one.system.throttled_s / one.seconds for one in training.snapshots if one.system.throttled_s is not None]
    quota = min(1.0, sum(sorted(waits)) / len(waits)) if waits else 0.0
    host_bound = training.idle is None or training.idle >= thresholds.idle
    if quota >= max(thresholds.quota, thresholds.severe) and host_bound and training.main_cpu > 0.5 * training.cpu:
        text = f"the cgroup's CPU quota kept the training process waiting {quota:.0%} of the time"
        return Finding(Bound.THROTTLED, (Evidence("throttled", quota, text),))
    return None


def _launch_or_sync(training: Training, thresholds: Thresholds) -> Finding | None:
    """The device idles while the host works: between synchronisations, or because launching takes that long.

    Few looks at stacks say less than what the thread's state does: one that sleeps on a lock waits for the device.
    """
    lock = training.doing[Doing.FUTEX]
    within = training.thread_cpu("pt_data_pin") is not None or training.thread_cpu("iofast") is not None
    backward = (training.thread_cpu("pt_autograd") or 0.0) >= thresholds.notice
    syncing, launching = lock, training.doing[Doing.RUNNING]
    how = "slept on a lock, which no loader of its own holds,"
    if training.frame_looks >= _FEW or lock < thresholds.sync or within or backward:
        if not training.stacks:
            return None
        syncing = training.frames(Frame.SYNC) or 0.0
        launching = fsum(training.frames(frame) or 0.0 for frame in _LAUNCHING)
        launching = min(launching, 1.0 - (training.asleep or 0.0))  # a process that sleeps launches nothing
        how = "was waiting for the device"
        if (training.frames(Frame.WAITING) or 0.0) > max(syncing, launching):
            return None  # that is what it does while the device idles, whatever it waits for
    if syncing >= thresholds.sync and launching <= thresholds.launch_to_sync * syncing:
        sites = training.syncs()
        where = f", most at {sites[0].file}:{sites[0].line} ({sites[0].call})" if sites else ""
        text = f"the training thread {how} {syncing:.0%} of the time{where}"
        return Finding(Bound.SYNC, (Evidence("sync", syncing, text),))
    if launching >= thresholds.launch:
        text = f"the training thread was at work {launching:.0%} of the time while the device ran dry"
        return Finding(Bound.LAUNCH, (Evidence("launch", launching, text),))
    return None


def _busy(training: Training, idle: float, thresholds: Thresholds) -> Finding:
    """The device is at work: with what?"""
    evidence = [Evidence("device_busy", 1 - idle, f"the device is at work {1 - idle:.0%} of the time")]
    dram = training.device(lambda device: device.dram_active)
    tensor = training.device(lambda device: device.tensor_active)
    if dram is not None:
        evidence.append(Evidence("dram_active", dram, f"its memory is read or written {dram:.0%} of the time"))
        if dram >= thresholds.dram and tensor is not None and tensor < thresholds.tensor:
            return Finding(Bound.MEMORY, tuple(evidence))
    return Finding(Bound.COMPUTE, tuple(evidence))
