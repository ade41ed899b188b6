"""Bounds of the exposed stall E: the share of time in which training waits for its loader while its device idles.

The training thread's time has three parts: L, it waits for its loader; D, it waits for the device; H, it does
anything else (launches, Python, a copy, backward's wait for its own thread). I is the time in which the device runs
nothing. From outside, the length of each can be measured in every window, but not their overlap.

    E = |L and I| <= min(|L|, |I|)                                                                        (1)
    The host waits only for a device that works, so |D and I| = 0 and |I| = E + |H and I|, therefore
    E >= |I| - |H|                                                                                        (2)

(2) contains the well-known |L| + |I| - 1, because |H| <= 1 - |L|. It is much tighter if the host waits for the device,
because then |H| is small. A state that may be L or D (FUTEX: a queue within the process, or a device) counts as L in
(1) and is not H in (2).

Both hold in each window, and for any set G of windows that was chosen without regard to the training thread:

    sum over G of (|I| - |H|)  <=  E  <=  sum over the others of |I| + sum over G of |L|

G is the windows in which the device idled for at least t. In windows much shorter than a step, |I| is mostly 0 or 1
and the two sides meet; with long windows, t = 0 gives plain (1) and (2). Minima and maxima of single windows are not
used: a window has few samples, and max(0, x) of a noisy x is too large on average. Windows with one sample or none are
themselves a sample of the time, so |I| is uncertain too. Shares of samples are widened by Wilson's interval, and those
from bursts of stacks by the scatter between bursts as well.

Without a device, the wait of the host is the stall.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import fsum, sqrt

from iofast.monitor.findings import StallBounds
from iofast.monitor.snapshot import LOADER, Doing, Frame, Tier, WaitSource, Window, clamped
from iofast.monitor.training import Training

_STEPS = (0.0, 0.02, 0.25, 0.5, 0.75, 0.98, 1.01)  # values of t; 1.01 chooses no window
# RUNNING time that may belong to next() after a batch has arrived (waking up, unpickling, mapping): a share of all
# RUNNING, for batches that were ready already, and a share of QUEUE, for batches that were waited for.
_TAKING_OVER, _WAKING_UP = 0.05, 0.15
_INSIDE_ERROR = 0.01  # intervals of the loader's page and of the monitor differ by a step
_PICKLED = 1 << 20  # bytes per second read by the training process, from which batches come through a pipe
_WITHIN = frozenset({WaitSource.THREADS, WaitSource.EVENTS, WaitSource.PROCESSES})  # pools of processes have threads
_FEW = 8  # stack samples below which they do not correct the states of the thread
# Correlation of stack samples within a burst, for when too few bursts show it. In 71 recorded timelines the median is
# 0.04 and the 90th percentile 0.11.
_ALIKE = 0.06
_MANY = 1.5  # samples per window from which windows cover the time without gaps
_JITTERED = 0.7  # one sample in each slot of time has less variance than samples at independent times
_AGREEING = 0.15  # largest difference between the mean of a device and the mean of its windows
_TIMING = 0.02  # time shift between a reading and its samples, or late wake-up of the host


@dataclass(frozen=True, slots=True)
class Share:
    """Bounds of a share."""

    low: float
    high: float


def wilson(share: float, looks: float, z: float) -> Share:
    """Wilson's interval at `z` standard errors of a share of `looks` samples; 0 to 1 without samples."""
    if looks <= 0:
        return Share(0.0, 1.0)
    share = clamped(share)
    scale = 1 + z * z / looks
    middle = (share + z * z / (2 * looks)) / scale
    half = z / scale * sqrt(share * (1 - share) / looks + z * z / (4 * looks * looks))
    return Share(max(0.0, middle - half), min(1.0, middle + half))


def frames_share(training: Training, which: Collection[Frame], z: float) -> Share:
    """Bounds of the share of stack samples in `which`. Samples of a burst are correlated and count for less."""
    share = training.frames(*which)
    if share is None:
        return Share(0.0, 1.0)
    bursts = training.stacks
    looks = training.frame_looks / (1.0 + _ALIKE * (training.frame_looks / len(bursts) - 1.0))
    if len(bursts) >= 3 and 0 < share < 1:
        off = (fsum(one.main.get(frame, 0.0) for frame in which) - share for one in bursts)
        scatter = fsum((one.looks * by) ** 2 for one, by in zip(bursts, off, strict=True))
        variance = scatter * len(bursts) / (len(bursts) - 1) / training.frame_looks**2
        if variance > 0:
            looks = min(looks, max(float(len(bursts)), share * (1 - share) / variance))
    return wilson(share, looks, z)


def exposed(training: Training) -> StallBounds | None:
    """Bounds of the exposed stall; None if neither the training thread nor its loaders could be seen.

    `confidence_z` and `chosen_z` of the thresholds set the widening for sampling errors; 0 means none.
    """
    measured = training.exposed()
    if measured is not None:
        return StallBounds(measured, measured, Tier.INSIDE)
    waited = training.waited
    windows = training.device_windows
    if waited is not None and not windows:
        return StallBounds(waited, waited, Tier.INSIDE, host_wait=True)
    if waited is None and not training.looks and not training.stacks:
        return None
    tier = Tier.INSIDE if waited is not None else Tier.STACKS if training.stacks else Tier.OUTSIDE
    host = _HostShares(training)
    if not windows:
        waits = host.loader(training.windows or [_whole(training)])
        return StallBounds(waits.low, waits.high, tier, host_wait=True)
    low, high = _combined(host, windows, _whole_idle(training))
    if training.shared:  # the kernels may be another job's: this one may idle although the device is busy
        high = max(high, host.loader(windows).high)
    return StallBounds(min(low, high), max(low, high), tier)


def _combined(host: _HostShares, windows: Sequence[Window], idle: float | None) -> tuple[float, float]:
    """The best bounds by (1) and (2) over all G; `idle` is the device's share of all time, None if unknown."""
    seconds = fsum(window.seconds for window in windows)
    single = sum(window.looks for window in windows) <= _MANY * len(windows)
    lows, highs = [0.0], [1.0]
    for least in _STEPS:
        chosen = [window for window in windows if (window.idle or 0.0) >= least]
        rest = [window for window in windows if (window.idle or 0.0) < least]
        part = fsum(window.seconds for window in chosen) / seconds
        if single:
            low, high = host.sampled(windows, least, idle)
        else:
            # An upper bound of the share of all time is one of the share within a part, too.
            low = _idle_s(chosen) / seconds - min(part * host.host(chosen), host.host_total)
            high = _idle_s(rest) / seconds + min(part * host.loader(chosen).high, host.loader_total.high)
        lows.append(low - _TIMING)
        highs.append(high + _TIMING)
    if idle is not None:
        lows.append(idle - min(host.host(windows), host.host_total) - _TIMING)
        highs.append(min(idle, host.loader(windows).high) + _TIMING)
    # E is part of L. If (2) gives more, the host was woken up late by a device that was done.
    return min(1.0, max(lows), host.least(windows)), max(0.0, min(highs))


class _HostShares:
    """Bounds of |L| and |H|: weights of the training thread's states, corrected by stacks and by the loader's page."""

    def __init__(self, training: Training) -> None:
        thresholds, waited = training.thresholds, training.waited
        z = thresholds.confidence_z
        self._training, self._z = training, thresholds.chosen_z
        self._autograd = training.thread_cpu("pt_autograd") or 0.0
        queues = training.worker_count > 0
        # A pin thread, a loader of threads and a pool of futures hand batches over within the process.
        within = training.thread_cpu("pt_data_pin") is not None or training.thread_cpu("iofast") is not None
        within |= any(site.loader and site.source in _WITHIN for site in training.waits)
        # Waits that stacks cannot attribute to the loader.
        self._waiting = frames_share(training, {Frame.WAITING}, z).high if training.frames(Frame.WAITING) else 0.0
        running, queue = training.doing[Doing.RUNNING], training.doing[Doing.QUEUE]
        waking = 1.0 + (min(_WAKING_UP, running / queue) if queue else 0.0)
        sure = training.named_workers and self._waiting < thresholds.notice
        self._surely = {Doing.QUEUE: 1.0} if sure else {}
        if queues or within:
            self._maybe = {Doing.QUEUE: waking, Doing.DISK: 1.0, Doing.RUNNING: _TAKING_OVER, Doing.UNSEEN: 1.0}
            if within:
                self._maybe[Doing.FUTEX] = 1.0
        else:  # no worker: the thread loads its batches itself, or an unknown loader does
            self._maybe = dict.fromkeys(set(Doing) - {Doing.STOPPED}, 1.0)
            self._surely = {Doing.DISK: 1.0}  # it reads data; checkpoints and pauses are other phases
        # Waiting for a device is FUTEX, or RUNNING if the wait spins; RUNNING is the host's own work as well.
        self._host = dict.fromkeys(set(Doing) - {Doing.FUTEX} - self._surely.keys(), 1.0)
        loader = frames_share(training, LOADER, z)
        if self._waiting:
            loader = Share(loader.low, frames_share(training, LOADER | {Frame.WAITING}, z).high)
        if waited is not None:
            loader = Share(max(0.0, waited - _INSIDE_ERROR), min(1.0, waited + _INSIDE_ERROR))
        busy = frames_share(training, set(Frame) - LOADER - {Frame.SYNC}, z)
        self._take_over(loader, waking - 1.0)
        self.loader_total = loader
        self.host_total = min(busy.high, 1.0 - loader.low)

    def _take_over(self, loader: Share, woken: float) -> None:
        """Set the weight of RUNNING in |L|: next() waits for a processor when woken up, and unpickles batches."""
        training, base = self._training, self._maybe.get(Doing.RUNNING, 0.0)
        running, queued = training.doing[Doing.RUNNING], training.main_runnable
        if not running or base >= 1.0:
            return
        most = base + (queued or 0.0)
        if training.main_reads >= _PICKLED:
            most = 1.0
        met = training.frames(*LOADER)
        if met is not None and training.frame_looks >= _FEW and met > _sum(training.doing, self._maybe):
            others = _sum(training.doing, {**self._maybe, Doing.RUNNING: 0.0}) - woken * training.doing[Doing.QUEUE]
            most = max(most, (loader.high - others) / running)
        self._maybe[Doing.RUNNING] = min(1.0, most)

    def loader(self, windows: Sequence[Window]) -> Share:
        """Bounds of |L| in these windows."""
        looks, doing = _doing(windows)
        low, high = _sum(doing, self._surely), _sum(doing, self._maybe)
        found = Share(wilson(low, looks, self._z).low, wilson(high, looks, self._z).high)
        whole = self.loader_total
        if len(windows) < len(self._training.windows):
            return found
        if found.low > whole.high or whole.low > found.high:  # contradiction: keep both
            return Share(min(found.low, whole.low), max(found.high, whole.high))
        return Share(max(found.low, whole.low), min(found.high, whole.high))

    def least(self, windows: Sequence[Window]) -> float:
        """Lower bound of |L|; 1 if sleep on a lock may be a wait for the loader."""
        locked = self._maybe.get(Doing.FUTEX) or self._training.doing[Doing.UNSEEN]
        return 1.0 if locked else self.loader(windows).low

    def host(self, windows: Sequence[Window]) -> float:
        """Upper bound of |H| in these windows."""
        looks, doing = _doing(windows)
        return min(1.0, wilson(_sum(doing, self._host), looks, self._z).high + self._autograd + self._waiting)

    def sampled(self, windows: Sequence[Window], least: float, idle: float | None) -> tuple[float, float]:
        """Bounds of E from windows of single samples, which are a sample of the time with gaps between them.

        The sums are of the largest distance between E and |I|, which varies least from window to window.
        """
        seconds = fsum(window.seconds for window in windows)
        above, below, idles = [], [], []
        for window in windows:
            share, weight = clamped(window.idle or 0.0), window.seconds / seconds
            host, waits = _sum(window.doing, self._host), _sum(window.doing, self._maybe)
            above.append(weight * (share - waits if share >= least else 0.0))
            host += self._autograd + self._waiting
            below.append(weight * (min(1.0, host) if share >= least else share))
            idles.append(weight * share)
        if idle is None:
            off = [share - by for share, by in zip(idles, below, strict=True)]
            low = fsum(off) - self._error(off)
            over = [share - by for share, by in zip(idles, above, strict=True)]
            return low, fsum(over) + self._error(over)
        rest = fsum(share for share, window in zip(idles, windows, strict=True) if (window.idle or 0.0) < least)
        low = idle - min(fsum(below) + self._error(below), rest + self._error(idles) + self.host_total)
        return low, min(idle - fsum(above) + self._error(above), rest + self._error(idles) + self.loader_total.high)

    def _error(self, parts: Sequence[float]) -> float:
        """Error of a sum of parts, by their scatter, plus half a part for what was never sampled."""
        mean = fsum(parts) / len(parts)
        return self._z * (sqrt(fsum((part - mean) ** 2 for part in parts)) * _JITTERED + 0.5 / len(parts))


def _whole_idle(training: Training) -> float | None:
    """Idle share by the device's own mean, which has no gaps; None if its windows contradict it."""
    busy, seen = training.device(lambda device: device.busy if device.own else None), training.idle
    if busy is None or seen is None or abs(1.0 - busy - seen) > _AGREEING:
        return None
    return clamped(1.0 - busy)


def _whole(training: Training) -> Window:
    return Window(training.seconds, None, training.looks, training.doing)


def _doing(windows: Sequence[Window]) -> tuple[int, dict[Doing, float]]:
    """Number of samples in these windows, and the shares of their states."""
    looks = sum(window.looks for window in windows)
    seen = {what: fsum(window.looks * window.doing.get(what, 0.0) for window in windows) for what in Doing}
    return looks, {what: count / max(1, looks) for what, count in seen.items()}


def _sum(doing: dict[Doing, float], weights: dict[Doing, float]) -> float:
    return min(1.0, fsum(doing.get(what, 0.0) * weight for what, weight in weights.items()))


def _idle_s(windows: Sequence[Window]) -> float:
    return fsum(window.idle_s for window in windows)
