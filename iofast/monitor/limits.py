"""Limits of a training other than its input: copies, synchronisations, launches, other ranks, clocks, and a hang.

A training hangs if for 30 seconds no batch came, nothing was read, and nothing computed but a loop that waits.
Evidence of limits within a step are its phases, as the program names them (`meter.step`), else as stacks show them.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import fsum
from statistics import median

from iofast.monitor import thresholds
from iofast.monitor.findings import Bound, Cause, Evidence, StallBounds
from iofast.monitor.snapshot import LOADER, Doing, Frame, LoaderFigures, Snapshot, idle_of
from iofast.monitor.training import FEW, TWICE, Training

_LAUNCHING = (Frame.FORWARD, Frame.BACKWARD, Frame.OPTIMIZER, Frame.OTHER)
_BY_PHASE = frozenset({Bound.COMPUTE, Bound.MEMORY, Bound.LAUNCH, Bound.SYNC})  # limits within the program's own step
_MOST = 4  # phases of a step that the evidence names
_STATES = {"T": "stopped (state T)", "t": "stopped by a debugger", "D": "waiting for a disk (state D)"}
_AT_REST = 0.0005  # cores of a process that hangs, at most: waits with a timeout use a tenth of it
_TICKS = 0.02  # seconds by which the times of a process and of its thread differ
_NAMED = 4  # workers at one place; of more, the number is given


@dataclass(frozen=True, slots=True)
class Finding:
    """A bound, and the figures that say so."""

    bound: Bound
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    cause: Cause | None = None


def other_than_input(training: Training, stall: StallBounds) -> Finding:
    """Judge a training that is not proved to be input-bound. The bounds of its stall may leave that open."""
    found = _communication(training) or _throttled(training) or _by_device(training, stall)
    if found.bound not in _BY_PHASE:
        return found
    by_phase = _named_phases(training.loaders) or _seen_phases(training)
    return replace(found, evidence=found.evidence + ((by_phase,) if by_phase is not None else ()))


def _by_device(training: Training, stall: StallBounds) -> Finding:
    """Judge by how much the device idles, and for what."""
    high, idle = stall.high, training.idle
    copied = training.copied
    if copied is not None and copied >= training.bound:
        text = f"the device waits {copied:.0%} of step time for the copy of a batch"
        return Finding(Bound.TRANSFER, (Evidence("transfer", copied, text),))
    # Most of the range is below the bound, and none of it is clearly above.
    below = stall.middle < training.bound and high < 1.5 * training.bound
    if idle is None:
        return _host(training, stall) if below else _straddling(stall, training.bound)
    host = max(0.0, idle - high)  # lower bound of the idle time that is not for want of a batch
    clear = host >= training.bound and (training.stacks or host >= 2 * high)
    if idle < training.bound or (below and idle < thresholds.SEVERE and not clear):
        return _busy(training, idle)
    if high >= training.bound and not clear:
        return _straddling(stall, training.bound)
    idles = [each for one in training.snapshots if (each := idle_of(one)) is not None]
    # in most intervals: a validation or the writing of a log is rare
    lasting = not idles or median(idles) - high >= thresholds.NOTICE
    if host >= training.bound and lasting and (finding := _by_host(training, host)) is not None:
        return finding
    if idle < thresholds.SEVERE or not lasting:
        return _busy(training, idle)  # many small reasons, or rare pauses
    reason = f"the device runs nothing {idle:.0%} of the time, at most {high:.0%} for want of a batch"
    return Finding(Bound.UNKNOWN, reason=reason)


def _host(training: Training, stall: StallBounds) -> Finding:
    """A training without a device, or with one that cannot be seen."""
    asleep = training.asleep
    if asleep is not None and asleep - stall.high >= thresholds.SEVERE:
        reason = f"the training process sleeps {asleep:.0%} of the time, at most {stall.high:.0%} for its loader"
        return Finding(Bound.UNKNOWN, reason=reason)
    ready = training.running or 0.0
    queued = training.taken is not None and ready > 0 and (training.queued or 0.0) >= thresholds.PART * ready
    reason = "no device in sight: what is judged is the host"
    return Finding(Bound.COMPUTE, reason=reason, cause=Cause.TAKEN if queued else None)


def _straddling(stall: StallBounds, bound: float) -> Finding:
    reason = f"the stall is between {stall.low:.0%} and {stall.high:.0%}: on both sides of {bound:.0%}"
    return Finding(Bound.UNKNOWN, reason=reason)


def _communication(training: Training) -> Finding | None:
    talking = training.frames(Frame.COMMUNICATION)
    peers = training.snapshots[-1].peers if training.snapshots else {}
    slowest = max(peers, key=lambda rank: (peers[rank], -rank), default=None)
    late = peers[slowest] - training.waiting if slowest is not None else 0.0
    evidence = []
    if slowest is not None and late >= training.bound and peers[slowest] >= thresholds.SEVERE:
        text = f"rank {slowest} waits {peers[slowest]:.0%} of the time for its data, and this one for rank {slowest}"
        evidence.append(Evidence("rank_gap", late, text))
    if talking is not None and talking >= max(training.bound, TWICE / max(1, training.frame_looks)):
        text = f"the training thread was waiting for other ranks in {talking:.0%} of stack samples"
        evidence.append(Evidence("communication", talking, text))
    return Finding(Bound.COMMUNICATION, tuple(evidence)) if evidence else None


def _throttled(training: Training) -> Finding | None:
    """By clocks that are held back while the device works, or by a quota that holds the training itself back."""
    devices, idle = training.devices, training.idle
    slowed = [device for device in devices if device.throttle_reasons]
    if devices and (idle is None or idle < thresholds.SEVERE) and len(slowed) > thresholds.HALF * len(devices):
        reasons = ", ".join(sorted({reason for device in slowed for reason in device.throttle_reasons}))
        share = len(slowed) / len(devices)
        text = f"the device's clock was held back {share:.0%} of the time ({reasons})"
        return Finding(Bound.THROTTLED, (Evidence("clocks", share, text),))
    quota = training.throttled
    host_bound = idle is None or idle >= training.bound
    if quota >= thresholds.PART and host_bound and training.main_cpu > 0.5 * training.cpu:
        text = f"the cgroup's CPU quota kept the training process waiting {quota:.0%} of the time"
        return Finding(Bound.THROTTLED, (Evidence("throttled", quota, text),))
    return None


def _by_host(training: Training, host: float) -> Finding | None:
    """The device idles while the host copies, waits for the device too often, or takes long to launch.

    With few stack samples the state of the thread decides: a thread asleep on a lock waits for the device.
    """
    doing = training.doing
    copying = training.frames(Frame.TRANSFER) or 0.0
    if copying >= training.bound and copying >= (training.frames(Frame.SYNC) or 0.0):
        text = f"the training thread was copying to the device in {copying:.0%} of stack samples"
        return Finding(Bound.TRANSFER, (Evidence("transfer", copying, text),))
    syncing, launching = doing[Doing.FUTEX], doing[Doing.RUNNING]
    how = "slept on a lock that no loader of its own holds"
    if training.frame_looks >= FEW:
        syncing = training.frames(Frame.SYNC) or 0.0
        launching = fsum(training.frames(frame) or 0.0 for frame in _LAUNCHING)
        launching = min(launching, 1.0 - (training.asleep or 0.0))
        how = "was waiting for the device"
        if (training.frames(Frame.WAITING) or 0.0) > max(syncing, launching):
            return None  # the host waits for something unknown while the device idles
    if syncing >= training.bound and launching <= 3 * syncing:
        sites = training.syncs
        where = f", most at {sites[0].file}:{sites[0].line} ({sites[0].call})" if sites else ""
        text = f"the training thread {how} {syncing:.0%} of the time{where}"
        return Finding(Bound.SYNC, (Evidence("sync", syncing, text),))
    if launching >= min(host, training.bound):
        text = f"the training thread was at work {launching:.0%} of the time while the device ran dry"
        return Finding(Bound.LAUNCH, (Evidence("launch", launching, text),))
    return None


def _busy(training: Training, idle: float) -> Finding:
    """The device is at work: limited by its memory, or computing."""
    evidence = [Evidence("device_busy", 1 - idle, f"the device is at work {1 - idle:.0%} of the time")]
    dram, tensor = training.dram_active, training.tensor_active
    if dram is not None:
        evidence.append(Evidence("dram_active", dram, f"its memory is read or written {dram:.0%} of the time"))
        if dram >= 0.70 and tensor is not None and tensor < thresholds.HALF:  # as XProf
            return Finding(Bound.MEMORY, tuple(evidence))
    return Finding(Bound.COMPUTE, tuple(evidence))


def _named_phases(loaders: Iterable[LoaderFigures]) -> Evidence | None:
    """Phases of `meter.step`; of several loaders with phases, the one whose steps took most of the time counts."""
    reports = defaultdict[str, list[LoaderFigures]](list)
    for one in loaders:
        if one.phases and one.step_s:
            reports[one.name].append(one)
    times = {name: fsum((one.step_s or 0.0) * one.batches for one in each) for name, each in reports.items()}
    if not times:
        return None
    longest = max(sorted(times), key=times.__getitem__)
    parts, names = reports[longest], {name for one in reports[longest] for name in one.phases}
    shares = [(fsum(one.phases.get(name, 0.0) for one in parts) / times[longest], name) for name in names]
    shown = sorted((-share, name) for share, name in shares if share >= 0.005)[:_MOST]
    if not shown:
        return None
    (most, first), *others = shown
    rest = "".join(f", {name} {-share:.0%}" for share, name in others)
    clock = " (by the device's clock)" if any(one.phases_on_device for one in parts) else ""
    return Evidence("step_phases", -most, f"{first} takes {-most:.0%} of a step{rest}{clock}")


def _seen_phases(training: Training) -> Evidence | None:
    """The same by stacks, which show none of a device's time."""
    frames = (Frame.FORWARD, Frame.BACKWARD, Frame.OPTIMIZER)
    seen = sorted(((training.frames(frame) or 0.0, frame.value) for frame in frames), reverse=True)
    seen = [(share, name) for share, name in seen if share >= thresholds.NOTICE]
    if not seen or training.frame_looks < FEW or training.devices:
        return None
    text = ", ".join(f"{name} in {share:.0%}" for share, name in seen)
    text = f"the training thread is in {text} of {training.frame_looks} stack samples"
    return Evidence("stack_phases", seen[0][0], text)


def stalled(every: Training, least_s: float) -> Finding | None:
    """STALLED after `least_s` without a batch, with where each process stands; None if it goes on, or was none.

    UNKNOWN after a third of the time: the waits of a hang look like those for a slow storage.
    """
    return _hanging(every, least_s, spins=False) or _hanging(every, least_s, spins=True)


def _hanging(every: Training, least_s: float, *, spins: bool) -> Finding | None:
    """The same for a training thread that sleeps, or one that `spins`: it asks its loader again and again."""
    silent: list[Snapshot] = []
    for one in reversed(every.snapshots):
        if not is_silent(one, thresholds.IDLE_CPU, spins=spins):
            break
        silent.insert(0, one)
    quiet = Training(silent)
    reports = any(loader.live for one in silent for loader in one.loaders)
    # Of a thread that works in its loader only the loader's own report says that no batch comes.
    waiting = LOADER if reports else (Frame.LOADER_WAIT,)
    if spins and (quiet.frame_looks < FEW or quiet.frames(*waiting) != 1.0):
        return None
    if quiet.seconds < least_s / 3 or quiet.doing[Doing.STOPPED] >= thresholds.HALF:
        return None
    used = fsum(_cpu(one, spins=spins) for one in silent) - _TICKS * spins
    if not reports and used >= _AT_REST * quiet.seconds * (1 + quiet.worker_count):
        return None  # a slow loop, whose batches nobody counts
    waits = quiet.trains or bool(quiet.frames(Frame.COMMUNICATION)) or (quiet.worker_count and not quiet.stacks)
    if not (reports or waits):
        return None
    bound = Bound.STALLED if quiet.seconds >= least_s else Bound.UNKNOWN
    return Finding(bound, reason=f"no batch for {quiet.seconds:.0f} s: {_places(quiet)}")


def is_silent(one: Snapshot, least_cpu: float, *, spins: bool = False) -> bool:
    """Whether an interval has no batch, next to no work, and no byte read."""
    job = [process for process in one.processes if process.role != "other"]
    read = sum((process.read_bytes or 0) + (process.read_calls_bytes or 0) for process in job)
    busy = any((device.busy or 0.0) > 0 for device in one.devices if device.own is not False)
    idle = _cpu(one, spins=spins) <= least_cpu * one.seconds
    return idle and not (read or busy or any(loader.batches for loader in one.loaders))


def _cpu(one: Snapshot, *, spins: bool) -> float:
    """Processor time of the job, without that of a training thread that spins."""
    used = fsum(process.cpu_s for process in one.processes if process.role != "other")
    return used - (one.main.cpu_s or 0.0) * spins


def _places(quiet: Training) -> str:
    """Where the training thread and each worker stand; workers at one place together."""
    seen = {pid: site for one in quiet.stacks for pid, site in one.stands.items()}
    main, workers = "", dict[str, list[str]]()
    for process in sorted(quiet.snapshots[-1].processes, key=lambda one: one.pid):
        state = max(process.states, key=process.states.__getitem__, default="")
        at = [_STATES[state]] if state in _STATES else []
        at += [f"in {seen[process.pid].place}"] if process.pid in seen else []
        where = " ".join(at) or "asleep"
        if process.role == "main":
            main = f"the training thread {where}"
        elif process.role == "worker":
            workers.setdefault(where, []).append(str(process.pid))
    return "; ".join([main, *(f"{_named(pids)} {where}" for where, pids in workers.items())])


def _named(pids: list[str]) -> str:
    more = f" and {len(pids) - _NAMED} more" if len(pids) > _NAMED else ""
    return f"worker{'s' * (len(pids) > 1)} {', '.join(pids[:_NAMED])}{more}"
