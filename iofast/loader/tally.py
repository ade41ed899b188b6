"""What a loader's epochs have done: their threads' kernel contexts and times, added up over epochs."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from iofast import kernel
from iofast.loader.prefetch import Prefetch
from iofast.loader.times import Times
from iofast.telemetry import Stages

DEVICE = "device"  # the way of images that no kernel of ours decoded


class Contexts:
    """One kernel context per thread of an epoch, spare ones for work that belongs to no thread, and the counters."""

    def __init__(self, options: kernel.DecodeOptions, stages: Stages) -> None:
        self._options, self.stages = options, stages
        self._contexts: dict[int, kernel.Context] = {}
        self._spare: deque[kernel.Context] = deque()
        self.on_device = 0  # images that the device has decoded; one thread counts them
        self._numbers = itertools.count(-1, -1)  # of the spare ones; threads count from 0

    def context(self, number: int) -> kernel.Context:
        if number not in self._contexts:
            self._contexts[number] = kernel.Context(self._options, timed="read")
        return self._contexts[number]

    @contextlib.contextmanager
    def spare(self) -> Iterator[kernel.Context]:
        """A context that nobody else uses meanwhile."""
        try:
            context = self._spare.pop()
        except IndexError:
            context = self.context(next(self._numbers))
        try:
            yield context
        finally:
            self._spare.append(context)

    def ways(self) -> Counter[str]:
        """Images by the way they were decoded, so far."""
        ways = sum((Counter(context.counts().ways) for context in list(self._contexts.values())), Counter[str]())
        return ways + Counter({DEVICE: self.on_device})


class Sum(NamedTuple):
    """Of one epoch or several: images by the way they were decoded, and the threads' and the consumer's times."""

    ways: Counter[str]
    times: Times

    def plus(self, other: Sum) -> Sum:
        return Sum(self.ways + other.ways, self.times + other.times)


class Epoch:
    """One that goes on. The threads end when nobody holds the `Prefetch` any more, so it is not held here."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self._made_by: tuple[weakref.ref[Prefetch[Any, Any]], ...] = ()

    def made_by(self, *made_by: Prefetch[Any, Any]) -> None:
        """From now on the times of the first one's threads count, and what those of others compute, who finish it."""
        self._made_by = tuple(map(weakref.ref, made_by))

    def sum(self) -> Sum:
        times = [Times() if (made := each()) is None else made.times() for each in self._made_by] or [Times()]
        return Sum(self._contexts.ways(), replace(times[0], cpu_s=sum(each.cpu_s for each in times)))


class Tally:
    """What all epochs of a loader have done: those that ended, and those that are going on.

    `end` runs in finalizers, which may come at any point of any thread, also between two lines of `sum`: it takes no
    lock and only replaces a value under a key that is there.
    """

    def __init__(self) -> None:
        self._ended = Sum(Counter(), Times())
        self._epochs: dict[int, Epoch | Sum] = {}  # going on, or ended and not yet added up
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def begin(self, epoch: Epoch) -> int:
        """Count an epoch in; the number is for `end`."""
        number = next(self._numbers)
        with self._lock:
            self._add_up()
            self._epochs[number] = epoch
        return number

    def end(self, number: int) -> None:
        """Once the threads that used the contexts have ended."""
        epoch = self._epochs[number]
        if isinstance(epoch, Epoch):
            self._epochs[number] = epoch.sum()

    def sum(self) -> Sum:
        with self._lock:
            self._add_up()
            total = self._ended
            for each in list(self._epochs.values()):
                total = total.plus(each.sum() if isinstance(each, Epoch) else each)
        return total

    def _add_up(self) -> None:
        for number, each in list(self._epochs.items()):
            if isinstance(each, Sum):
                self._ended = self._ended.plus(each)
                del self._epochs[number]
