"""Bounds of the exposed stall E: the share of time in which the training waits for its loader and its device idles.

Let L, D and H be the times in which the training thread waits for its loader, waits for the device, or does anything
else (launches, Python, a copy, backward's wait for its own thread); together they are all time. Let I be the time in
which the device runs nothing. What can be known from outside are their lengths, in every window, and not their overlap.

    E = |L and I| <= min(|L|, |I|)                                                                        (1)
    who waits for a device waits for one that works: |D and I| = 0, so |I| = E + |H and I|, and
    E >= |I| - |H|                                                                                        (2)

(2) contains the well-known |L| + |I| - 1, because |H| <= 1 - |L|, and is much tighter where the host waits for the
device: there |H| is small. A state that may be either L or D (FUTEX: a queue within the process, or a device) widens
neither: it counts in (1) as L, and in (2) it is not H.

Both hold in each window, and for any set G of windows that was chosen without a look at the training thread:

    sum over G of (|I| - |H|)  <=  E  <=  sum over the others of |I| + sum over G of |L|

G = "the windows in which the device idled for at least t". With windows much shorter than a step, |I| is 0 or 1 in
most of them and the two sides meet; with long ones, t = 0 is plain (1) and (2). Minima and maxima of single windows are
not taken, because a window has few looks: max(0, .) of a noisy figure is too large on average. Windows so narrow that
they hold a look or none are a sample of the time themselves, and |I| is uncertain as well. Shares that come from looks
are widened by Wilson's interval, and those from bursts of stacks by the scatter between bursts, too.

Without a device, the host's wait is the stall, and called so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import fsum, sqrt

from iofast.monitor.findings import StallBounds
from iofast.monitor.snapshot import LOADER, Doing, Frame, Tier, WaitSource, Window
from iofast.monitor.thresholds import Thresholds
from iofast.monitor.training import Training

_STEPS = (0.0, 0.02, 0.25, 0.5, 0.75, 0.98, 1.01)  # idle shares that choose G; 1.01 chooses no window
# What next() itself may use of running, when a batch has arrived (to be woken up, unpickle, map): of its waits, which
# it follows, and of all running, for batches that were there already.
_TAKING_OVER, _WAKING_UP = 0.05, 0.15
_INSIDE_ERROR = 0.01  # a page's intervals and ours begin and end apart by a step
_PICKLED = 1 << 20  # bytes a second that the training process reads beside workers: batches come through a pipe
_WITHIN = frozenset(
    {WaitSource.THREADS, WaitSource.EVENTS, WaitSource.PROCESSES}
)  # also processes: pools have threads for them
_FEW = 8  # looks at stacks, below which they do not correct the thread's states
# Looks of a burst see the same seconds: correlation within bursts, where few bursts cannot show it. From 71 recorded
# timelines: 0.04 in the median, 0.11 in nine of ten (within one second 0.08 and 0.20).
_ALIKE = 0.06
_MANY = 1.5  # looks in a window, from which on windows follow one another
_JITTERED = 0.7  # looks come one in each slot of time, which leaves less to chance than if they came anywhere
_AGREEING = 0.15  # a device's mean and its windows, of which few may hold a look
_TIMING = 0.02  # a reading and the looks that fall into it; a host that is woken up late by a device that is done


@dataclass(frozen=True, slots=True)
class Share:
    """A share that is known up to an error."""

    low: float
    high: float


def wilson(share: float, looks: float, z: float) -> Share:
    """Wilson's interval of a share that was found in so many looks; 0 to 1 without looks."""
    if looks <= 0:
        return Share(0.0, 1.0)
    share = min(1.0, max(0.0, share))
    scale = 1 + z * z / looks
    middle = (share + z * z / (2 * looks)) / scale
    half = z / scale * sqrt(share * (1 - share) / looks + z * z / (4 * looks * looks))
    return Share(max(0.0, middle - half), min(1.0, middle + half))


def frames_share(training: Training, which: Collection[Frame], z: float) -> Share:
    """Of looks at stacks. Those of a burst see the same steps: where bursts differ beyond chance, they count less."""
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


def exposed(training: Training, thresholds: Thresholds) -> StallBounds | None:
    """Bounds of the exposed stall; None where nothing was seen of the training thread nor of its loaders."""
    measured = training.exposed()
    if measured is not None:
        return StallBounds(measured, measured, Tier.INSIDE)
    waited = training.per_step(lambda loader: loader.wait_s)
    windows = training.device_windows
    if waited is not None and not windows:
        return StallBounds(waited, waited, Tier.INSIDE, host_wait=True)
    if waited is None and not training.looks and not training.stacks:
        return None
    tier = Tier.INSIDE if waited is not None else Tier.STACKS if training.stacks else Tier.OUTSIDE
    known = _Known(training, waited, thresholds)
    if not windows:
        every = training.windows or [_whole(training)]
        waits = known.loader(every)
        return StallBounds(waits.low, waits.high, tier, host_wait=True)
    low, high = _joined(known, windows, _whole_idle(training))
    if training.shared:  # another job's kernels: ours may idle although the device is busy
        high = max(high, known.loader(windows).high)
    return StallBounds(min(low, high), max(low, high), tier)


def _joined(known: _Known, windows: Sequence[Window], idle: float | None) -> tuple[float, float]:
    """The best of what (1) and (2) say of the windows; `idle` is the device's share of all time, where it is known."""
    seconds = fsum(window.seconds for window in windows)
    single = sum(window.looks for window in windows) <= _MANY * len(windows)
    lows, highs = [0.0], [1.0]
    for least in _STEPS:
        chosen = [window for window in windows if (window.idle or 0.0) >= least]
        rest = [window for window in windows if (window.idle or 0.0) < least]
        part = fsum(window.seconds for window in chosen) / seconds
        if single:
            low, high = known.sampled(windows, least, idle)
        else:
            # The totals bound each part as well: what is less than a share of all time is less within a part of it.
            low = _idle(chosen) / seconds - min(part * known.host(chosen), known.host_total)
            high = _idle(rest) / seconds + min(part * known.loader(chosen).high, known.loader_total.high)
        lows.append(low - _TIMING)
        highs.append(high + _TIMING)
    if idle is not None:
        lows.append(idle - min(known.host(windows), known.host_total) - _TIMING)
        highs.append(min(idle, known.loader(windows).high) + _TIMING)
    # E is a part of L. Where (2) claims more, somebody was woken up late by a device that had long been done.
    return min(1.0, max(lows), known.least(windows)), max(0.0, min(highs))


class _Known:
    """Which of the training thread's states are the loader's, and how much of its time at most is the host's own."""

    def __init__(self, training: Training, waited: float | None, thresholds: Thresholds) -> None:
        z = thresholds.confidence_z
        self._training, self._z = training, thresholds.chosen_z
        self._autograd = training.thread_cpu("pt_autograd") or 0.0
        queues = training.worker_count > 0
        # A pin thread, a loader of threads or a pool of futures hands batches over within the process.
        within = training.thread_cpu("pt_data_pin") is not None or training.thread_cpu("iofast") is not None
        within |= any(site.loader and site.source in _WITHIN for site in training.waits)
        # Waits of which stacks do not say whether they are the loader's.
        self._waiting = frames_share(training, {Frame.WAITING}, z).high if training.frames(Frame.WAITING) else 0.0
        running, queue = training.doing[Doing.RUNNING], training.doing[Doing.QUEUE]
        waking = 1.0 + (min(_WAKING_UP, running / queue) if queue else 0.0)
        sure = training.named_workers and self._waiting < thresholds.notice
        self._surely = {Doing.QUEUE: 1.0} if sure else {}
        if queues and not within:
            self._maybe = {Doing.QUEUE: waking, Doing.DISK: 1.0, Doing.RUNNING: _TAKING_OVER}
        elif queues or within:
            self._maybe = {Doing.QUEUE: waking, Doing.DISK: 1.0, Doing.RUNNING: _TAKING_OVER, Doing.FUTEX: 1.0}
        else:  # no worker: the thread loads by itself, or an unknown loader does
            self._maybe = dict.fromkeys(set(Doing) - {Doing.STOPPED}, 1.0)
            self._surely = {Doing.DISK: 1.0}  # reads its data; checkpoints and pauses are other phases
        # A device is waited for on a lock; on a processor too, but so does the host run.
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
        """How much of running may be next(): woken up, it waits for a processor; a pickled batch is unpacked."""
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
        """Bounds of the share of these windows that the thread waited for its loader."""
        looks, doing = self._doing(windows)
        if doing is None:  # somebody else drew the bounds
            seconds = fsum(window.seconds for window in windows) or 1.0
            low = fsum(window.seconds * window.wait_low for window in windows) / seconds
            high = fsum(window.seconds * window.wait_high for window in windows) / seconds
        else:
            low, high = _sum(doing, self._surely), _sum(doing, self._maybe)
        found = Share(wilson(low, looks, self._z).low, wilson(high, looks, self._z).high)
        whole = self.loader_total
        if len(windows) < len(self._training.windows):
            return found
        if found.low > whole.high or whole.low > found.high:  # they contradict each other: neither is dropped
            return Share(min(found.low, whole.low), max(found.high, whole.high))
        return Share(max(found.low, whole.low), min(found.high, whole.high))

    def least(self, windows: Sequence[Window]) -> float:
        """What the thread waited for its loader at least; 1 where its sleep on a lock may be that as well."""
        return 1.0 if self._maybe.get(Doing.FUTEX) else self.loader(windows).low

    def host(self, windows: Sequence[Window]) -> float:
        """At most so much of these windows the thread did anything but wait for loader or device."""
        looks, doing = self._doing(windows)
        if doing is None:
            seconds = fsum(window.seconds for window in windows) or 1.0
            low = fsum(window.seconds * window.wait_low for window in windows) / seconds
            return 1.0 - wilson(low, looks, self._z).low
        return min(1.0, wilson(_sum(doing, self._host), looks, self._z).high + self._autograd + self._waiting)

    def sampled(self, windows: Sequence[Window], least: float, idle: float | None) -> tuple[float, float]:
        """The same of windows of single looks, which are a sample of the time: most of it passed between them.

        What is summed is how far E is from |I| at most, because that varies least from window to window.
        """
        seconds = fsum(window.seconds for window in windows)
        above, below, idles = [], [], []
        for window in windows:
            share, weight = min(1.0, max(0.0, window.idle or 0.0)), window.seconds / seconds
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
        """Of a sum of such parts, from their scatter; and one part more, for what was never met."""
        mean = fsum(parts) / len(parts)
        return self._z * (sqrt(fsum((part - mean) ** 2 for part in parts)) * _JITTERED + 0.5 / len(parts))

    def _doing(self, windows: Sequence[Window]) -> tuple[float, dict[Doing, float] | None]:
        """How many looks fell into these windows, and the shares of what they saw; None where windows do not say."""
        looks = sum(window.looks for window in windows)
        if looks:
            seen: dict[Doing, list[float]] = {what: [] for what in Doing}
            for window in windows:  # few of a window's looks differ: most of what could be seen was not
                for what, share in window.doing.items():
                    seen[what].append(window.looks * share)
            return looks, {what: fsum(parts) / looks for what, parts in seen.items()}
        whole = fsum(window.seconds for window in self._training.windows) or self._training.seconds or 1.0
        return self._training.looks * fsum(window.seconds for window in windows) / whole, None


def _whole_idle(training: Training) -> float | None:
    """The device's own mean, which has no gaps; None where windows contradict it: another device, or another time."""
    busy, seen = training.device(lambda device: device.busy if device.own else None), training.idle
    if busy is None or seen is None or abs(1.0 - busy - seen) > _AGREEING:
        return None
    return min(1.0, max(0.0, 1.0 - busy))


def _whole(training: Training) -> Window:
    return Window(training.seconds, 0.0, 1.0, None, training.looks, training.doing)


def _sum(doing: dict[Doing, float], weights: dict[Doing, float]) -> float:
    return min(1.0, fsum(doing.get(what, 0.0) * weight for what, weight in weights.items()))


def _idle(windows: Sequence[Window]) -> float:
    return fsum(window.seconds * min(1.0, max(0.0, window.idle or 0.0)) for window in windows)
