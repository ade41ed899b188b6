"""How many threads and how much depth: the least that keeps the consumer from waiting. A pure function, and its driver.

Two figures decide. `load` is how many threads the work needs: their time at work per result, over the consumer's own
time per result. `wait` is the share of time that the consumer stood waiting. It is acted on at once, by as much as the
load says; less is tried only after many windows without a wait, and after a try that failed the next one comes twice
as late. A pause of the consumer (validation, a checkpoint) is one odd load of sixteen, which their median does not see.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from iofast.prefetch.jobs import Prefetch
from iofast.prefetch.times import Times

WAITING = 0.02  # share of the time; below it lies what a scheduler does to a thread now and then
LONG = 0.10  # a single wait counts from here on
FULL = 0.97  # of the threads' time: with more work than this a queue never fills again
PATIENCE = 16  # windows without a wait before less is tried
OTHER = 0.25  # a load that differs by so much is another one: the median of 16 windows varies by a few per cent
WINDOW_BATCHES = 16
WINDOW_S = 0.25  # of short steps more go into a window, or a garbage collection would look like a stall
MEMORY_SHARE = 1 / 8  # of free memory, for batches made ahead: the rest is for the training that has yet to begin


@dataclass(frozen=True)
class Setting:
    """What a `Prefetch` is told."""

    num_workers: int
    depth: int


@dataclass(frozen=True)
class Limits:
    """`slices`: into how many a result is cut; threads beyond slices x depth would find nothing to do."""

    max_workers: int
    max_depth: int
    slices: int = 1

    def least_depth(self, num_workers: int) -> int:
        """That `num_workers` threads are busy while one result waits to be taken."""
        return max(1, min(self.max_depth, max(2, 1 + math.ceil(num_workers / max(1, self.slices)))))


@dataclass(frozen=True)
class WaitWindow:
    """What happened while some results were consumed.

    wait   share of the time that the consumer stood waiting, 0 to 1
    empty  how often it found nothing ready
    least  the fewest results it found ready
    load   threads that its speed, without waits, would keep busy; inf where it does nothing but wait
    """

    wait: float
    empty: int
    least: int
    load: float

    @classmethod
    def of(cls, times: Times) -> WaitWindow:
        """From the difference of two snapshots."""
        own = max(times.wall_s - times.wait_s, 0.0) / max(times.batches, 1)
        work = times.work_s / max(times.made, 1)
        found = [level for level, count in enumerate(times.levels) if count > 0]
        return cls(
            wait=times.wait_share,
            empty=times.levels[0] if times.levels else 0,
            least=found[0] if found else 0,
            load=work / own if own > 0 else math.inf,
        )

    @property
    def short(self) -> bool:
        """Whether the consumer waited: for long, or more than once."""
        return self.wait > LONG or (self.wait > WAITING and self.empty > 1)


@dataclass(frozen=True)
class State:
    """A setting, and what is remembered for the next.

    loads, least  of the windows since the last change or the last wait
    settling      windows that are not judged: a queue that was empty has to fill first
    patience      windows without a wait before less is tried
    tried         windows since less was tried, None once it has proved itself
    failed        the load at which less was too little, once it is known well
    """

    setting: Setting
    loads: tuple[float, ...] = ()
    least: int = 1 << 30
    settling: int = 0
    patience: int = PATIENCE
    tried: int | None = None
    failed: float | None = None
    calm: int = 0


def first(limits: Limits) -> State:
    """All threads: the first epoch is the coldest, and too few cost more than too many."""
    return State(Setting(limits.max_workers, limits.least_depth(limits.max_workers)))


def adapt(state: State, window: WaitWindow, limits: Limits) -> State:
    """What comes after a window: never above `limits`, never below 1 thread and a depth of 2 (1 where that is most)."""
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
    now = state.setting
    workers, depth = now.num_workers, now.depth
    if window.load > FULL * workers or depth >= limits.max_depth:
        wanted = window.load / FULL
        workers = limits.max_workers if wanted > limits.max_workers else max(workers + 1, math.ceil(wanted))
        workers = min(workers, limits.max_workers)
    else:
        depth *= 2
    depth = min(max(depth, limits.least_depth(workers)), limits.max_depth)
    if state.tried is not None:
        state = replace(state, patience=2 * state.patience, tried=None)
    setting = Setting(workers, depth)
    return replace(state, setting=setting, loads=(), least=1 << 30, calm=0, settling=int(setting != now))


def _less(state: State, load: float, limits: Limits) -> State:
    """Halfway to the threads that the load needs; where these are the ones at work, halfway to the depth it needs."""
    now = state.setting
    needed = max(1, math.ceil(load / FULL)) if math.isfinite(load) else now.num_workers
    spare = state.least - 1  # results that were ready and never the last one
    setting = now
    if needed < now.num_workers:
        setting = replace(now, num_workers=now.num_workers - -(-(now.num_workers - needed) // 2))
    elif spare > 0 and now.depth > limits.least_depth(now.num_workers):
        floor = limits.least_depth(now.num_workers)
        setting = replace(now, depth=max(floor, now.depth - -(-spare // 2)))
    state = replace(state, setting=setting, loads=(), least=1 << 30, calm=0)
    return state if setting == now else replace(state, tried=0, settling=1)


def most_depth(batch_bytes: int, wanted: int, free_bytes: int) -> int:
    """`wanted`, or as many batches as fit into an eighth of what is free; one at least."""
    return max(1, min(wanted, int(free_bytes * MEMORY_SHARE) // max(1, batch_bytes)))


class Auto:
    """Watches a `Prefetch` and resizes it. `state` outlives it: the next epoch begins where the last one ended."""

    def __init__(self, prefetch: Prefetch[Any, Any], limits: Limits, state: State | None = None) -> None:
        self._prefetch = prefetch
        self.limits, self.state = limits, state or first(limits)
        self._left = 1  # the first result is waited for in any case, and begins the first window
        self._before: Times | None = None
        self._next = 0.0

    def watch(self) -> None:
        """To be called by the consumer after each result; does something every sixteenth time at most."""
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
            # what the machine gave: it may have no more threads
            self.state = replace(self.state, setting=Setting(self._prefetch.num_workers, self._prefetch.depth))
