"""Bounds of the stall and of the interference.

The exposed stall E is the share of time in which training waits for its loader while its device idles.
Of the training thread's time L is spent in waiting for its loader, and H at most in its own work: launches, Python,
copies. The rest is a wait for the device. The device runs nothing for the share I. A host waits only for a device that
works, so what idles beyond H is stall:

    max(0, I - H) <= E <= min(L, I)        with W + I - 1 <= I - H, as H <= 1 - W

L and H come from the best source there is: the page of the loader (exact), else stacks (shares of samples, widened by
Wilson's interval), else the states of the thread in /proc. Without a device, the wait of the host is the stall.

Interference is how much longer a step takes because the loader works beside it. The training thread loses time in two
ways. It is ready to run and queued for a processor: /proc counts that. Or it
sleeps within its own work until another thread releases the GIL: stacks show the share of its own work, /proc the share
in which it runs, and the rest is sleep, for the GIL at most as much as the loader's threads in this process run. The
loader is charged with its part of the processors that are used beside the training thread.

A step takes T = 1 - E of the time, with the bounds of the stall E. Without a device the lost time D is a part of it.
With one, a step grows only by what the device idles although it has its batch, N = I - E: of the time T the host loses
D and the device idles N, so max(0, D + N - T) to min(D, N) is lost to the step.
"""

from collections.abc import Collection
from math import fsum, sqrt

from iofast.monitor.findings import Band, StallBounds
from iofast.monitor.probe.proc import WORKER
from iofast.monitor.snapshot import LOADER, Doing, Frame, Tier, WaitSource, clamped
from iofast.monitor.training import Training

_INSIDE_ERROR = 0.01  # intervals of the loader's page and of the monitor differ by a step
_TIMING = 0.02  # a host is woken up late by a device that is done
_WITHIN = frozenset({WaitSource.THREADS, WaitSource.EVENTS, WaitSource.PROCESSES})  # pools of processes have threads
# Correlation of stack samples within a burst, for when too few bursts show it. In 71 recorded timelines the median is
# 0.04 and the 90th percentile 0.11.
_ALIKE = 0.06
_OWN = (Frame.FORWARD, Frame.BACKWARD, Frame.OPTIMIZER, Frame.TRANSFER, Frame.OTHER)
_SHORTEST = 0.02  # of the time, that a step takes at least


def wilson(share: float, looks: float, z: float) -> Band:
    """Wilson's interval at `z` standard errors of a share of `looks` samples; 0 to 1 without samples."""
    if looks <= 0:
        return Band(0.0, 1.0)
    share = clamped(share)
    scale = 1 + z * z / looks
    middle = (share + z * z / (2 * looks)) / scale
    half = z / scale * sqrt(share * (1 - share) / looks + z * z / (4 * looks * looks))
    return Band(max(0.0, middle - half), min(1.0, middle + half))


def exposed(training: Training) -> StallBounds | None:
    """Bounds of the exposed stall; None if neither the training thread nor its loaders could be seen."""
    if training.exposed is not None:
        return StallBounds(training.exposed, training.exposed, Tier.INSIDE)
    waited, idle = training.waited, training.idle
    if waited is None and not training.looks and not training.stacks:
        return None
    if waited is not None:
        if idle is None:
            return StallBounds(waited, waited, Tier.INSIDE, host_wait=True)
        tier, loader = Tier.INSIDE, Band(max(0.0, waited - _INSIDE_ERROR), min(1.0, waited + _INSIDE_ERROR))
        host = min(1.0 - loader.low, _by_states(training)[1], _by_stacks(training)[1])
    elif training.stacks:
        tier, (loader, host) = Tier.STACKS, _by_stacks(training)
    else:
        tier, (loader, host) = Tier.OUTSIDE, _by_states(training)
    if idle is None:
        return StallBounds(loader.low, loader.high, tier, host_wait=True)
    low, high = max(0.0, idle - host - _TIMING), min(loader.high, idle + _TIMING)
    if training.shared:  # the kernels may be another job's: this one may idle although the device is busy
        high = loader.high
    return StallBounds(min(low, high), clamped(high), tier)


def _by_stacks(training: Training) -> tuple[Band, float]:
    """Bounds of L, and the upper bound of H. A wait that may be for the loader counts in the upper bound of both."""
    loader = _frames(training, LOADER)
    waiting = LOADER | {Frame.WAITING}
    own = _frames(training, set(Frame) - LOADER - {Frame.SYNC}).high
    unknown = _frames(training, {Frame.WAITING}).high if training.frames(Frame.WAITING) else 0.0
    return Band(loader.low, _frames(training, waiting).high), min(
        own, 1.0 - loader.low, _by_states(training)[1] + unknown
    )


def _frames(training: Training, which: Collection[Frame]) -> Band:
    """Bounds of the share of stack samples in `which`. Samples of a burst are correlated and count for less."""
    share = training.frames(*which)
    if share is None:
        return Band(0.0, 1.0)
    bursts = training.stacks
    looks = training.frame_looks / (1.0 + _ALIKE * (training.frame_looks / len(bursts) - 1.0))
    if len(bursts) >= 3 and 0 < share < 1:
        scatter = fsum((sum(one.main[frame] for frame in which) - share * one.looks) ** 2 for one in bursts)
        variance = scatter * len(bursts) / (len(bursts) - 1) / training.frame_looks**2
        if variance > 0:
            looks = min(looks, max(float(len(bursts)), share * (1 - share) / variance))
    return wilson(share, looks, training.z)


def _by_states(training: Training) -> tuple[Band, float]:
    """The same by /proc. Sleep on a lock may be a wait for a device, or for a queue within the process."""
    doing, z = training.doing, training.z
    within = training.thread_cpu("pt_data_pin") is not None or training.thread_cpu("iofast") is not None
    within |= any(site.loader and site.source in _WITHIN for site in training.waits)
    named = any(process.name == WORKER for _, process in training.processes("worker"))
    sure = doing[Doing.QUEUE] if named else 0.0
    if training.worker_count or within:
        maybe = doing[Doing.QUEUE] + doing[Doing.DISK] + doing[Doing.UNSEEN] + doing[Doing.FUTEX] * within
        maybe += _taking(training) * doing[Doing.RUNNING]
    else:  # no worker: the thread loads its batches itself, or an unknown loader does
        sure, maybe = doing[Doing.DISK], 1.0 - doing[Doing.STOPPED]
    host = 1.0 - doing[Doing.FUTEX] - sure
    high = wilson(host, training.looks, z).high
    if training.running is not None:  # exact, so only the rest is a sample
        high = min(high, training.running + wilson(host - doing[Doing.RUNNING], training.looks, z).high)
    high = min(1.0, high + (training.thread_cpu("pt_autograd") or 0.0))
    return Band(wilson(sure, training.looks, z).low, wilson(min(1.0, maybe), training.looks, z).high), high


def interference(training: Training, stall: StallBounds | None) -> Band | None:
    """How much longer a step takes beside the loader; None if no loader works beside it, or it cannot be seen."""
    lost = _lost(training)
    if stall is None or lost is None:
        return None
    short, long, idle = max(_SHORTEST, 1.0 - stall.high), max(_SHORTEST, 1.0 - stall.low), training.idle
    if training.devices:
        if idle is None or training.shared:
            return None
        low = max(0.0, lost.low + max(0.0, idle - stall.high) - long)
        high = min(lost.high, max(0.0, idle - stall.low))
    else:
        low, high = lost.low, lost.high
        short = min(long, max(short, (training.running or 0.0) * (1.0 - _taking(training))))
    low, high = min(low, long / 2), min(high, short - _least(training, short))
    return Band(min(low / (long - low), high / (short - high)), high / (short - high))


def _least(training: Training, step: float) -> float:
    """Share of time that a step takes on a processor at least; half of its present length if that is unknown."""
    ran = training.running
    if training.devices or ran is None or training.queued is None:
        return step / 2
    return min(step, max(_SHORTEST, (ran - training.queued) * (1.0 - _taking(training))))


def _taking(training: Training) -> float:
    """Share of the training thread's state R that may be within next(), at most: waking up, and taking a batch over."""
    return min(1.0, 0.15 * training.doing[Doing.QUEUE] + 0.05)


def _lost(training: Training) -> Band | None:
    """Bounds of the share of time that the training thread loses to the loader."""
    loader, queued, running = training.loader_cores, training.queued, training.running
    cores, idle, others = training.cores, training.idle_cores, training.other_cores
    if loader is None or queued is None or running is None or cores is None or idle is None:
        return None
    if training.frames(Frame.LOADER_INLINE):
        return None  # it makes batches itself: that is no work beside a step
    others = max(0.0, cores - idle - training.cpu) if others is None else others
    beside = training.cpu - (running - queued) + others
    charged = min(1.0, loader / beside) if beside > 0 else 0.0
    asleep = max(0.0, (training.frames(*_OWN) or 0.0) - running)  # in its own work, for the GIL at most
    behind_lock = min(training.loader_thread_cores or 0.0, asleep)
    return Band(charged * queued * (1.0 - _taking(training)), charged * queued + behind_lock)
