"""A loader in virtual time: threads that work on slices in order, a bounded queue, a consumer. It is deterministic."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from iofast.prefetch.auto import WINDOW_BATCHES, Limits, Setting, State, adapt, first, window
from iofast.prefetch.times import PrefetchTimes

Cost = Callable[[random.Random, int], float]  # of batch `number`, in seconds


class Simulation:
    """`cost`: seconds of work in a batch, over all threads. `step`: seconds the consumer takes for one."""

    def __init__(self, cost: Cost, step: Cost, limits: Limits, seed: int = 0) -> None:
        self.cost, self.step, self.limits = cost, step, limits
        self.random = random.Random(seed)
        self.state: State = first(limits)
        self.now, self.number, self.asked = 0.0, 0, 0
        self.wait = self.done_work = 0.0
        self.free: list[float] = [0.0] * self.state.setting.num_workers  # when each thread has finished its slices
        self.running: list[tuple[float, float]] = []  # (end, start) of slices
        self.ends: dict[int, float] = {}
        self.history: list[Setting] = []
        self.waits: list[float] = []
        self.before = self.times()

    def run(self, windows: int) -> Simulation:
        """Simulate windows of batches, and adapt the setting after each."""
        for _ in range(windows):
            for _ in range(WINDOW_BATCHES):
                self.batch()
            times = self.times()
            (wait, load), self.before = window(times.since(self.before)), times
            self.waits.append(wait)
            self.resize(adapt(self.state, wait, load, self.limits))
            self.history.append(self.state.setting)
        return self

    def batch(self) -> None:
        self.ask(self.number + self.state.setting.depth)  # a greater depth applies at once
        end = self.ends[self.number]
        self.wait += max(0.0, end - self.now)
        self.now = max(self.now, end)
        del self.ends[self.number]
        self.number += 1
        self.ask(self.number + self.state.setting.depth)
        self.now += self.step(self.random, self.number)

    def ask(self, stop: int) -> None:
        while self.asked < stop:
            cost, last = self.cost(self.random, self.asked) / self.limits.slices, 0.0
            for _ in range(self.limits.slices):
                start = max(self.now, heapq.heappop(self.free))
                last = max(last, start + cost)
                heapq.heappush(self.free, start + cost)
                heapq.heappush(self.running, (start + cost, start))
            self.ends[self.asked] = last
            self.asked += 1

    def resize(self, state: State) -> None:
        self.state = state
        while len(self.free) > state.setting.num_workers:
            self.free.remove(max(self.free))
        while len(self.free) < state.setting.num_workers:
            self.free.append(self.now)
        heapq.heapify(self.free)

    def times(self) -> PrefetchTimes:
        while self.running and self.running[0][0] <= self.now:
            end, start = heapq.heappop(self.running)
            self.done_work += end - start
        work = self.done_work + sum(max(0.0, self.now - start) for _, start in self.running)
        made = self.number + sum(end <= self.now for end in self.ends.values())
        return PrefetchTimes(self.now, self.number, made, self.wait, work)

    @property
    def changes(self) -> int:
        return sum(a != b for a, b in zip(self.history, self.history[1:], strict=False))

    def wait_share(self, windows: int) -> float:
        """The mean share of waiting in the last `windows`."""
        return sum(self.waits[-windows:]) / windows


def around(mean: float, spread: float = 0.1) -> Cost:
    """Log-normal costs around `mean`; `spread` is roughly their relative standard deviation."""
    return lambda random, number: mean * random.lognormvariate(-spread * spread / 2, spread)
