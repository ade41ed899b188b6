"""The least threads and depth that keep the consumer from waiting: a pure function, and its driver.

The load is the number of threads that the work needs: their time per result over the consumer's own time per result. A
wait is answered at once, in proportion to the load. Less is tried only after many windows without a wait; after a
failed try the next one comes twice as late. A pause of the consumer (validation, a checkpoint) is one outlier among
sixteen loads, which their median ignores.
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
LATE = 0.1  # share of one window that is no accident; less has to come twice in a row
FULL = 0.97  # of the threads' time: above that a queue never fills again
PATIENCE = 16  # windows without a wait before less is tried
WINDOW_BATCHES = 16
WINDOW_S = 0.25  # shortest window; in a shorter one a garbage collection would look like a stall
MEMORY_SHARE = 1 / 8  # of free memory for batches made ahead; training has yet to take its own


@dataclass(frozen=True)
class Setting:
    """The size of a `Prefetch`."""

    num_workers: int
    depth: int


@dataclass(frozen=True)
class Limits:
    """The largest setting, or the only one if it is `fixed`.

    A result is cut into `slices`; more than slices x depth threads would idle.
    """

    max_workers: int
    max_depth: int
    slices: int = 1
    fixed: bool = False

    def least_depth(self, num_workers: int) -> int:
        """Return the depth that keeps `num_workers` threads busy while one result waits to be taken."""
        return max(1, min(self.max_depth, max(2, 1 + math.ceil(num_workers / max(1, self.slices)))))


@dataclass(frozen=True)
class State:
    """A setting, and the memory of the search.

    loads     of the windows without a wait since the last change, up to `PATIENCE`; `calm` is their number
    settling  whether to ignore the next window: an empty queue has to fill first
    patience  windows without a wait before less is tried
    trying    whether the last change was to less, and has yet to prove itself
    waited    whether the last window had a wait
    """

    setting: Setting
    loads: tuple[float, ...] = ()
    calm: int = 0
    settling: bool = False
    patience: int = PATIENCE
    trying: bool = False
    waited: bool = False

    def changed(self, setting: Setting, patience: int, *, trying: bool = False) -> State:
        """The state with another setting, or the same, from which windows are collected anew."""
        return State(setting, settling=setting != self.setting, patience=patience, trying=trying)


def first(limits: Limits) -> State:
    """Return the first state, with all threads: the first epoch is the coldest, and too few cost more than too many."""
    return State(
        Setting(limits.max_workers, limits.max_depth if limits.fixed else limits.least_depth(limits.max_workers))
    )


def adapt(state: State, wait: float, load: float, limits: Limits) -> State:
    """Return the state after a window, within `limits`, with at least 1 thread and a depth of min(2, max_depth).

    `wait` is the share of time that the consumer waited, 0 to 1; `load` may be inf.
    """
    if state.settling:
        return replace(state, settling=False)
    if wait > LATE or (wait > WAITING and state.waited):
        return state.changed(_more(state.setting, load, limits), state.patience * (1 + state.trying))
    state = replace(state, loads=(*state.loads, load)[-PATIENCE:], calm=state.calm + 1, waited=wait > WAITING)
    if state.calm < state.patience:
        return state
    setting = _less(state.setting, statistics.median(state.loads), limits)
    patience = max(PATIENCE, state.patience // 2) if state.trying else state.patience
    return state.changed(setting, patience, trying=setting != state.setting)


def _more(now: Setting, load: float, limits: Limits) -> Setting:
    """Add the threads that the load needs; if there are enough, double the depth."""
    workers, depth = now.num_workers, now.depth
    if load > FULL * workers or depth >= limits.max_depth:
        needed = math.ceil(min(load / FULL, limits.max_workers))
        workers = min(max(workers + 1, needed), limits.max_workers)
    else:
        depth *= 2
    return Setting(workers, min(max(depth, limits.least_depth(workers)), limits.max_depth))


def _less(now: Setting, load: float, limits: Limits) -> Setting:
    """Go halfway to the threads that the load needs; with these at work, halfway to the depth that they need."""
    needed = max(1, math.ceil(load / FULL)) if math.isfinite(load) else now.num_workers
    if needed < now.num_workers:
        return replace(now, num_workers=(now.num_workers + needed) // 2)
    return replace(now, depth=(now.depth + limits.least_depth(now.num_workers)) // 2)


def most_depth(batch_bytes: int, wanted: int, free_bytes: int) -> int:
    """Return `wanted`, or the number of batches that fit into `MEMORY_SHARE` of what is free; at least one."""
    return max(1, min(wanted, int(free_bytes * MEMORY_SHARE) // max(1, batch_bytes)))


def window(times: PrefetchTimes) -> tuple[float, float]:
    """The wait and the load of a window."""
    own = max(times.wall_s - times.wait_s, 0.0) / max(times.batches, 1)
    work = times.work_s / max(times.made, 1)
    return times.wait_s / times.wall_s if times.wall_s > 0 else 0.0, work / own if own > 0 else math.inf


class Auto:
    """Resizes a `Prefetch` while it runs. `state` outlives it: the next epoch begins where the last one ended."""

    def __init__(self, prefetch: Prefetch[Any, Any], limits: Limits, state: State) -> None:
        self.prefetch, self._limits, self.state = prefetch, limits, state
        self._left = 1  # the first result always has a wait, so the first window begins behind it
        self._before: PrefetchTimes | None = None
        self._next = 0.0

    def watch(self) -> None:
        """Count a result; call in the consumer after each. Does work at most every `WINDOW_BATCHES` results."""
        self._left -= 1
        if self._limits.fixed or self._left or (now := perf_counter()) < self._next:
            self._left = self._left or 1
            return
        self._left, self._next = WINDOW_BATCHES, now + WINDOW_S
        times = self.prefetch.times()
        before, self._before = self._before, times
        if before is None:
            return
        setting = self.state.setting
        self.state = adapt(self.state, *window(times.since(before)), self._limits)
        if self.state.setting != setting:
            self.prefetch.resize(self.state.setting.num_workers, self.state.setting.depth)
            # the machine may have had fewer threads to give
            self.state = replace(self.state, setting=Setting(self.prefetch.num_workers, self.prefetch.depth))
