"""Bounds of the exposed stall E: the share of time in which training waits for its loader while its device idles.

Of the training thread's time L is spent in waiting for its loader, and H at most in its own work: launches, Python,
copies. The rest is a wait for the device. The device runs nothing for the share I. A host waits only for a device that
works, so what idles beyond H is stall:

    max(0, I - H) <= E <= min(L, I)        with W + I - 1 <= I - H, as H <= 1 - W

L and H come from the best source there is: the page of the loader (exact), else stacks (shares of samples, widened by
Wilson's interval), else the states of the thread in /proc. Without a device, the wait of the host is the stall.
"""

from collections.abc import Collection
from math import fsum, sqrt

from iofast.monitor.findings import Band, StallBounds
from iofast.monitor.probe.family import WORKER
from iofast.monitor.snapshot import LOADER, Doing, Frame, Tier, WaitSource, clamped
from iofast.monitor.training import Training

_INSIDE_ERROR = 0.01  # intervals of the loader's page and of the monitor differ by a step
_TIMING = 0.02  # a host is woken up late by a device that is done
_WITHIN = frozenset({WaitSource.THREADS, WaitSource.EVENTS, WaitSource.PROCESSES})  # pools of processes have threads
# Correlation of stack samples within a burst, for when too few bursts show it. In 71 recorded timelines the median is
# 0.04 and the 90th percentile 0.11.
_ALIKE = 0.06


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
    measured = training.exposed()
    if measured is not None:
        return StallBounds(measured, measured, Tier.INSIDE)
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
        off = (fsum(one.main.get(frame, 0.0) for frame in which) - share for one in bursts)
        scatter = fsum((one.looks * by) ** 2 for one, by in zip(bursts, off, strict=True))
        variance = scatter * len(bursts) / (len(bursts) - 1) / training.frame_looks**2
        if variance > 0:
            looks = min(looks, max(float(len(bursts)), share * (1 - share) / variance))
    return wilson(share, looks, training.thresholds.z)


def _by_states(training: Training) -> tuple[Band, float]:
    """The same by /proc. Sleep on a lock may be a wait for a device, or for a queue within the process."""
    doing, z = training.doing, training.thresholds.z
    within = training.thread_cpu("pt_data_pin") is not None or training.thread_cpu("iofast") is not None
    within |= any(site.loader and site.source in _WITHIN for site in training.waits)
    named = any(process.name == WORKER for _, process in training.processes("worker"))
    sure = doing[Doing.QUEUE] if named else 0.0
    if training.worker_count or within:
        maybe = doing[Doing.QUEUE] + doing[Doing.DISK] + doing[Doing.UNSEEN] + doing[Doing.FUTEX] * within
        maybe += min(0.15 * doing[Doing.QUEUE] + 0.05, 1.0) * doing[Doing.RUNNING]  # waking up, and taking a batch over
    else:  # no worker: the thread loads its batches itself, or an unknown loader does
        sure, maybe = doing[Doing.DISK], 1.0 - doing[Doing.STOPPED]
    host = 1.0 - doing[Doing.FUTEX] - sure
    high = wilson(host, training.looks, z).high
    if training.running is not None:  # exact, so only the rest is a sample
        high = min(high, training.running + wilson(host - doing[Doing.RUNNING], training.looks, z).high)
    high = min(1.0, high + (training.thread_cpu("pt_autograd") or 0.0))
    return Band(wilson(sure, training.looks, z).low, wilson(min(1.0, maybe), training.looks, z).high), high
