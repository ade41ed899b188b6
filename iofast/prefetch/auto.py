"""The least threads and depth that keep the consumer from waiting: a pure function, and its driver.

`load` is the number of threads that the work needs: their time per result over the consumer's own time per result.
`wait` is the share of time that the consumer waited. A wait is answered at once, in proportion to the load. Less is
tried only after many windows without a wait; after a failed try the next one comes twice as late. A pause of the
consumer (validation, a checkpoint) is one outlier among sixteen loads, which their median ignores.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from iofast.prefetch.jobs import Prefetch
from iofast.prefetch.times import PrefetchTimes

WAITING = 0.02  # share of the time; less is noise of the scheduler
LONG = 0.10  # from here on even a single wait counts
FULL = 0.97  # of the threads' time: above that a queue never fills again
PATIENCE = 16  # windows without a wait before less is tried
OTHER = 0.25  # relative change that makes a load a new one; the median of 16 windows varies by a few per cent
WINDOW_BATCHES = 16
WINDOW_S = 0.25  # shortest window; in a shorter one a garbage collection would look like a stall
MEMORY_SHARE = 1 / 8  # of free memory for batches made ahead; training has yet to take its own
_NO_LEVEL = 1 << 30


@dataclass(frozen=True)
class Setting:
    """The size of a `Prefetch`."""

    num_workers: int
    depth: int


@dataclass(frozen=True)
class Limits:
    """The largest setting. A result is cut into `slices`; more than slices x depth threads would idle."""

    max_workers: int
    max_depth: int
    slices: int = 1

    def least_depth(self, num_workers: int) -> int:
        """Return the depth that keeps `num_workers` threads busy while one result waits to be taken."""
        return max(1, min(self.max_depth, max(2, 1 + math.ceil(num_workers / max(1, self.slices)))))


@dataclass(frozen=True)
class WaitWindow:
    """What happened while some results were consumed.

    wait   share of the time that the consumer waited, 0 to 1
    empty  how often it found no result ready
    least  the fewest results it found ready
    load   threads that the consumer would keep busy if it never waited; inf if it did nothing but wait
    """

    wait: float
    empty: int
    least: int
    load: float

    @classmethod
    def of(cls, times: PrefetchTimes) -> WaitWindow:
        """Make a window from the difference of two snapshots."""
        own = max(times.wall_s - times.wait_s, 0.0) / max(times.batches, 1)
        work = times.work_s / max(times.made, 1)
        return cls(
            wait=times.wait_s / times.wall_s if times.wall_s > 0 else 0.0,
            empty=times.levels[0] if times.levels else 0,
            least=next((level for level, count in enumerate(times.levels) if count > 0), 0),
            load=work / own if own > 0 else math.inf,
        )

    @property
    def short(self) -> bool:
        """Whether the consumer waited long, or more than once."""
        return self.wait > LONG or (self.wait > WAITING and self.empty > 1)


@dataclass(frozen=True)
class State:
    """A setting, and the memory of the search.

    loads, least  of the windows since the last change or wait
    settling      windows to ignore: an empty queue has to fill first
    patience      windows without a wait before less is tried
    tried         windows since less was tried, None once it has proved itself
    failed        the load at which less was too little, once it is known well
    calm          windows without a wait
    """

    setting: Setting
    loads: tuple[float, ...] = ()
    least: int = _NO_LEVEL
    settling: int = 0
    patience: int = PATIENCE
    tried: int | None = None
    failed: float | None = None
    calm: int = 0


def first(limits: Limits) -> State:
    """Return the first state, with all threads: the first epoch is the coldest, and too few cost more than too many."""
    return State(Setting(limits.max_workers, limits.least_depth(limits.max_workers)))


def adapt(state: State, window: WaitWindow, limits: Limits) -> State:
    """Return the state after a window, within `limits`, with at least 1 thread and a depth of min(2, max_depth)."""
    tried = None if state.tried is None or state.tried >= state.patience else state.tried + 1
    state = replace(state, tried=tried)
    if state.settling:
        return replace(state, settling=state.settling - 1)
    if window.short:
        return _more(state, window, limits)
    loads = (*state.loads, window.load)[-PATIENCE:]
    state = replace(state, loads=loads, least=min(state.least, window.least), calm=state.calm + 1)
    load = statistics.median(loads)
    if len(loads) == PATIENCE and state.patience > PATIENCE:
        if state.failed is None:
            state = replace(state, failed=load)
        elif abs(load - state.failed) > OTHER * state.failed:
            state = replace(state, patience=PATIENCE, failed=None)  # another consumer or other images: try anew
    return _less(state, load, limits) if state.calm >= state.patience else state


def _more(state: State, window: WaitWindow, limits: Limits) -> State:
    """Add the threads that the load needs; if there are enough, double the depth."""
    workers, depth = state.setting.num_workers, state.setting.depth
    if window.load > FULL * workers or depth >= limits.max_depth:
        needed = min(window.load / FULL, limits.max_workers)  # the load may be inf
        workers = min(max(workers + 1, math.ceil(needed)), limits.max_workers)
    else:
        depth *= 2
    setting = Setting(workers, min(max(depth, limits.least_depth(workers)), limits.max_depth))
    if state.tried is not None:
        state = replace(state, patience=2 * state.patience, tried=None)
    return _changed(state, setting)


def _less(state: State, load: float, limits: Limits) -> State:
    """Go halfway to the threads that the load needs; with these at work, halfway to the depth that it needs."""
    now = setting = state.setting
    needed = max(1, math.ceil(load / FULL)) if math.isfinite(load) else now.num_workers
    spare, least_depth = state.least - 1, limits.least_depth(now.num_workers)  # results that were always ready
    if needed < now.num_workers:
        setting = replace(now, num_workers=now.num_workers - -(-(now.num_workers - needed) // 2))
    elif spare > 0 and now.depth > least_depth:
        setting = replace(now, depth=max(least_depth, now.depth - -(-spare // 2)))
    state = _changed(state, setting)
    return state if setting == now else replace(state, tried=0)


def _changed(state: State, setting: Setting) -> State:
    """Begin to collect windows anew. A queue of another size has to settle first."""
    settling = int(setting != state.setting)
    return replace(state, setting=setting, loads=(), least=_NO_LEVEL, calm=0, settling=settling)


def most_depth(batch_bytes: int, wanted: int, free_bytes: int) -> int:
    """Return `wanted`, or the number of batches that fit into `MEMORY_SHARE` of what is free; at least one."""
    return max(1, min(wanted, int(free_bytes * MEMORY_SHARE) // max(1, batch_bytes)))


class Auto:
    """Resizes a `Prefetch` while it runs. `state` outlives it: the next epoch begins where the last one ended."""

    def __init__(self, prefetch: Prefetch[Any, Any], limits: Limits, state: State | None = None) -> None:
        self._prefetch = prefetch
        self.limits, self.state = limits, state or first(limits)
        self._left = 1  # the first result always has a wait, so the first window begins behind it
        self._before: PrefetchTimes | None = None
        self._next = 0.0

    def watch(self) -> None:
        """Count a result; call in the consumer after each. Does work at most every `WINDOW_BATCHES` results."""
        self._left -= 1
        if self._left or (now := perf_counter()) < self._next:
            self._left = self._left or 1
            return
        self._left, self._next = WINDOW_BATCHES, now + WINDOW_S
        times = self._prefetch.times()
        before, self._before = self._before, times
        if before is None:
            return
        setting = self.state.setting
        self.state = adapt(self.state, WaitWindow.of(times - before), self.limits)
        if self.state.setting != setting:
            self._prefetch.resize(self.state.setting.num_workers, self.state.setting.depth)
            # the machine may have had fewer threads to give
            self.state = replace(self.state, setting=Setting(self._prefetch.num_workers, self._prefetch.depth))
