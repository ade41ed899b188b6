"""How threads that work ahead, and their consumer, spend their time.

Nothing here takes a lock: one thread writes each figure, in one store, so a reader in any thread or finalizer sees the
state before or after a change, never half of one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import zip_longest
from threading import get_ident

_cpu_clock_of = getattr(time, "pthread_getcpuclockid", None)  # not on macOS


@dataclass(frozen=True)
class PrefetchTimes:
    """A snapshot; `-` gives what happened between two, `+` adds up several.

    wall_s   seconds from the start of the threads to `close`
    batches  results handed over
    made     results finished, handed over or not
    wait_s   seconds that the consumer waited in `next`
    work_s   seconds that threads computed or waited for a disk, summed over threads
    cpu_s    CPU seconds of the threads, by the kernel's clock
    levels   levels[n]: how often n results were ready when the consumer came
    """

    wall_s: float = 0.0
    batches: int = 0
    made: int = 0
    wait_s: float = 0.0
    work_s: float = 0.0
    cpu_s: float = 0.0
    levels: tuple[int, ...] = ()

    def __add__(self, other: PrefetchTimes) -> PrefetchTimes:
        return self._with(other, 1)

    def __sub__(self, other: PrefetchTimes) -> PrefetchTimes:
        return self._with(other, -1)

    def _with(self, other: PrefetchTimes, sign: int) -> PrefetchTimes:
        names = [each.name for each in fields(self)][:-1]
        sums = {name: getattr(self, name) + sign * getattr(other, name) for name in names}
        levels = tuple(a + sign * b for a, b in zip_longest(self.levels, other.levels, fillvalue=0))
        return PrefetchTimes(**sums, levels=levels)

    def cpu_share(self, cores: int) -> float:
        """Return the share of the time of `cores` cores that the threads computed, 0 to 1."""
        return self.cpu_s / (self.wall_s * cores) if self.wall_s > 0 else 0.0


class Stopwatch:
    """Adds up stretches of time. One thread starts and stops it, any thread may read it."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state: tuple[float, float | None] = 0.0, None  # total of ended stretches, start of the current one

    def start(self) -> None:
        self._state = self._state[0], time.perf_counter()

    def stop(self) -> None:
        """Stop; a stopped one does not change."""
        self._state = self.read(), None

    def read(self) -> float:
        """Return seconds, including the current stretch."""
        total, since = self._state
        return total if since is None else total + time.perf_counter() - since


class Clock:
    """The times of one thread. That thread alone writes it; any thread may read it, also after the thread's end."""

    __slots__ = ("_cpu_clock", "_cpu_s", "idle", "life")

    def __init__(self) -> None:
        self.life, self.idle = Stopwatch(), Stopwatch()  # idle: without a task, or parked
        self._cpu_clock: int | None = None
        self._cpu_s = 0.0

    def begin(self) -> None:
        """Begin; must be the first call in the thread."""
        self.life.start()
        if _cpu_clock_of is not None:
            self._cpu_clock = _cpu_clock_of(get_ident())  # in the thread itself: for an ended thread this call crashes

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Count only the time within this context, for a thread that also does other work."""
        before = time.thread_time()
        self.life.start()
        try:
            yield
        finally:
            self.life.stop()
            self._cpu_s += time.thread_time() - before

    def end(self) -> None:
        """End; must be the last call in the thread."""
        self._cpu_s = time.thread_time()
        self._cpu_clock = None
        self.idle.stop()
        self.life.stop()

    def work_s(self) -> float:
        """Return seconds at work."""
        return max(0.0, self.life.read() - self.idle.read())

    def cpu_s(self) -> float:
        """Return CPU seconds, read from outside so that the thread spends nothing on it."""
        clock = self._cpu_clock
        if clock is not None:
            with contextlib.suppress(OSError):  # the thread has just ended, or this is a forked child
                return time.clock_gettime(clock)
        return self._cpu_s
