"""What threads that work ahead, and their consumer, did with their time. Knows nothing of what they make.

Nothing here takes a lock: each figure is written by one thread and changes in one store, so that a reader in any
thread, also in a finalizer, finds the state before or after a change and never half of one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import zip_longest
from threading import get_ident

_cpu_clock_of = getattr(time, "pthread_getcpuclockid", None)  # Linux has it, macOS has not


@dataclass(frozen=True)
class Times:
    """A snapshot; the difference of two is what happened between them, the sum of several what happened in all.

    wall_s   seconds since the threads were started, up to `close`
    batches  results handed over
    made     results finished, handed over or not
    wait_s   seconds that the consumer stood waiting in `next`
    work_s   seconds that threads were at work, added up over threads: computing, or waiting for a disk
    idle_s   seconds that threads had nothing to do because `depth` results were there; parked threads do not count
    cpu_s    seconds that the threads computed, as the kernel of the system counts them
    levels   levels[n]: how often n results were ready when the consumer came
    """

    wall_s: float = 0.0
    batches: int = 0
    made: int = 0
    wait_s: float = 0.0
    work_s: float = 0.0
    idle_s: float = 0.0
    cpu_s: float = 0.0
    levels: tuple[int, ...] = ()

    def __add__(self, other: Times) -> Times:
        return self._with(other, 1)

    def __sub__(self, other: Times) -> Times:
        return self._with(other, -1)

    def _with(self, other: Times, sign: int) -> Times:
        sums = {each.name: getattr(self, each.name) + sign * getattr(other, each.name) for each in fields(Times)[:-1]}
        return Times(**sums, levels=tuple(a + sign * b for a, b in zip_longest(self.levels, other.levels, fillvalue=0)))

    @property
    def wait_share(self) -> float:
        """Share of the time that the consumer stood waiting, 0 to 1."""
        return self.wait_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def ready(self) -> float:
        """How many results were ready when the consumer came, on average."""
        came = sum(self.levels)
        return sum(level * times for level, times in enumerate(self.levels)) / came if came else 0.0

    def cpu_share(self, cores: int) -> float:
        """Share of the time of `cores` cores that the threads computed, 0 to 1."""
        return self.cpu_s / (self.wall_s * cores) if self.wall_s > 0 else 0.0


class Stopwatch:
    """Adds up stretches of time. One thread starts and stops it, any may read it."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state: tuple[float, float | None] = 0.0, None  # total of what ended, and since when it runs

    def start(self) -> None:
        self._state = self._state[0], time.perf_counter()

    def stop(self) -> None:
        """A stopped one stays as it is."""
        total, since = self._state
        if since is not None:
            self._state = total + time.perf_counter() - since, None

    def read(self) -> float:
        """Seconds, up to now where it runs."""
        total, since = self._state
        return total if since is None else total + time.perf_counter() - since


class Clock:
    """Of one thread, which alone writes it; it is still right after the thread's end."""

    __slots__ = ("_cpu_clock", "_cpu_s", "idle", "life", "parked")

    def __init__(self) -> None:
        self.life, self.idle, self.parked = Stopwatch(), Stopwatch(), Stopwatch()
        self._cpu_clock: int | None = None
        self._cpu_s = 0.0

    def begin(self) -> None:
        """First thing in the thread."""
        self.life.start()
        if _cpu_clock_of is not None:
            self._cpu_clock = _cpu_clock_of(get_ident())  # by the thread itself: asked for one that ended, it crashes

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """A stretch of work in a thread that also does other things: only this counts."""
        before = time.thread_time()
        self.life.start()
        try:
            yield
        finally:
            self.life.stop()
            self._cpu_s += time.thread_time() - before

    def end(self) -> None:
        """Last thing in the thread."""
        self._cpu_s = time.thread_time()
        self._cpu_clock = None
        for each in (self.idle, self.parked, self.life):
            each.stop()

    def work_s(self) -> float:
        """Seconds at work."""
        return max(0.0, self.life.read() - self.idle.read() - self.parked.read())

    def cpu_s(self) -> float:
        """Seconds computed. Read from outside, so that the thread spends nothing on it."""
        clock = self._cpu_clock
        if clock is not None:
            with contextlib.suppress(OSError):  # it has ended meanwhile, or this is a forked child
                return time.clock_gettime(clock)
        return self._cpu_s
