"""Images, times and failures of a loader, over all of its epochs."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from iofast import kernel
from iofast.bars import html_table
from iofast.errors import ErrorBudgetError
from iofast.loader.trace import Trace
from iofast.meter import MeterStats, Stages, StageStats, TrafficStats
from iofast.prefetch import Prefetch

DEVICE = "device"  # the way of images that the device decoded
REMEMBERED = 1000  # failures kept with name and reason; all are counted
EPOCHS = 8  # epochs whose failures are counted: as many may have iterators at once

OnError = Literal["raise", "replace", "drop"]

_log = logging.getLogger("iofast")


@dataclass(frozen=True)
class LoaderStats:
    """Statistics of a loader since its construction, over all epochs.

    images       images decoded, also for batches that were never returned
    ways         how many of them were decoded in which way; see `kernel.Counts`. "device" counts those of the device
    decode       where JPEGs are decoded, and why there
    changed      files that were changed in place since they were indexed, of those read since the dataset was opened;
                 they are read as they are now
    errors       failed samples of the batches returned; each attempt counts
    stages       "read" and "decode" (images: bytes, seconds of work), "queue" (batches: seconds that the consumer
                 waited, average fill) and "transfer" to a GPU (batches: bytes, seconds of copying, seconds that the
                 training's stream waited for it, both by the GPU's clock)
    traffic      requests of this process to object stores; None if the dataset is in none
    meter        the training loop: steps, and how long it waited, as `watch` measures it
    num_workers  threads at work now
    depth        how many batches they may be ahead
    cpu_share    share of this rank's cores that the threads used, 0 to 1, the device's thread included; threads of a
                 library that decodes on the device are not
    """

    images: int
    ways: Mapping[str, int]
    decode: str
    changed: int
    errors: int
    stages: Mapping[str, StageStats]
    traffic: TrafficStats | None
    meter: MeterStats
    num_workers: int
    depth: int
    cpu_share: float

    def __repr__(self) -> str:
        return f"LoaderStats({self})"

    def _repr_html_(self) -> str:
        """In a notebook: a table of the members that are not empty."""
        return html_table(self)

    def __str__(self) -> str:
        done = f"{self.images:,} images, {self.errors:,} errors"
        threads = f"{self.num_workers} workers {self.depth} batches ahead"
        where = "" if self.decode == "on the CPU" else f", decoded {self.decode}"
        changed = f", {self.changed:,} changed files" if self.changed else ""
        stored = "" if self.traffic is None else f"; {self.traffic}"
        return f"{done}, {threads}{changed}, {self.cpu_share:.0%} of the cores{where}{stored}; {self.meter}"


@contextlib.contextmanager
def noted(where: str) -> Iterator[None]:
    """Add the note `where` to what a user's function raises."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


class Failure(NamedTuple):
    """A sample that could not be made. `name` is file and key; `attempt` counts the replacements before it."""

    epoch: int
    position: int
    attempt: int
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class FailureLog:
    """The failures of the batches that a loader has returned, each counted, logged and checked once.

    Batches made ahead and never returned do not count. `max_errors` is the budget of an epoch on this rank; an epoch
    that is resumed continues its count.
    """

    def __init__(self, action: OnError, max_errors: int | None) -> None:
        self.errors = 0
        self.recent: deque[Failure] = deque(maxlen=REMEMBERED)
        self._action, self._max_errors = action, max_errors
        self._epochs: dict[int, int] = {}  # epoch -> failures, of the newest few

    def check(self, failures: Sequence[Failure]) -> None:
        """Raise `ErrorBudgetError` if a batch with these failures would exceed the budget."""
        if not failures or self._max_errors is None:
            return
        total = self._epochs.get(failures[0].epoch, 0) + len(failures)
        if total > self._max_errors:
            raise ErrorBudgetError(
                f"{total} samples of epoch {failures[-1].epoch} could not be made: expected at most "
                f"max_errors={self._max_errors}; the last was {failures[-1]}"
            )

    def add(self, failures: Sequence[Failure]) -> None:
        """Count the failures of a batch that is handed over."""
        done = "replaced" if self._action == "replace" else "dropped"
        for failure in failures:
            _log.warning("%s (%s at position %d of epoch %d)", failure, done, failure.position, failure.epoch)
            self._epochs[failure.epoch] = self._epochs.get(failure.epoch, 0) + 1
        while len(self._epochs) > EPOCHS:
            del self._epochs[min(self._epochs)]
        self.errors += len(failures)
        self.recent.extend(failures)


class Sum(NamedTuple):
    """Of one epoch or several: images by the way they were decoded, seconds, and CPU seconds of threads."""

    ways: Counter[str]
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def plus(self, other: Sum) -> Sum:
        return Sum(self.ways + other.ways, self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


class Contexts:
    """The kernel contexts of an epoch, its counters, and a trace if one is written.

    It has weak references to the epoch's `Prefetch` objects, which end when nothing else refers to them.
    """

    def __init__(self, options: kernel.DecodeOptions, stages: Stages, trace: Trace | None = None) -> None:
        self._options, self.stages, self.trace = options, stages, trace
        self._contexts: list[kernel.Context] = []
        self._free: deque[kernel.Context] = deque()
        self.on_device = 0  # images that the device has decoded, counted by one thread
        self._made_by: tuple[weakref.ref[Prefetch[Any, Any]], ...] = ()
        self.ended: Sum | None = None

    @contextlib.contextmanager
    def one(self) -> Iterator[kernel.Context]:
        """A context that nothing else uses meanwhile."""
        try:
            context = self._free.pop()
        except IndexError:
            context = kernel.Context(self._options, timed="read")
            self._contexts.append(context)
        try:
            yield context
        finally:
            self._free.append(context)

    def made_by(self, *made_by: Prefetch[Any, Any]) -> None:
        """Count the times of the first one's threads, and only the CPU time of the others, which finish its results."""
        self._made_by = tuple(map(weakref.ref, made_by))

    def end(self) -> None:
        """Keep the sums alone, once the threads have ended.

        It runs in finalizers, at any point of any thread, also between two lines of `sum`. So it takes no lock.
        """
        self.ended = self.sum()
        self._contexts, self._free = [], deque()

    def sum(self) -> Sum:
        contexts = self._contexts  # before the next line, as `end` may come in between
        if self.ended is not None:
            return self.ended
        ways = sum((Counter(context.counts().ways) for context in list(contexts)), Counter({DEVICE: self.on_device}))
        times = [made.times() for each in self._made_by if (made := each()) is not None]
        return Sum(ways, times[0].wall_s if times else 0.0, sum(each.cpu_s for each in times))


class Tally:
    """Sums over all epochs of a loader, ended and running."""

    def __init__(self) -> None:
        self._ended = Sum(Counter())
        self._epochs: list[Contexts] = []  # running, or ended and not yet added up
        self._lock = threading.Lock()

    def begin(self, epoch: Contexts) -> None:
        """Count an epoch."""
        self.sum()
        self._epochs.append(epoch)

    def sum(self) -> Sum:
        with self._lock:
            for epoch in [each for each in self._epochs if each.ended]:
                self._ended = self._ended.plus(epoch.sum())
                self._epochs.remove(epoch)
            total = self._ended
            for epoch in self._epochs:
                total = total.plus(epoch.sum())
            return total
