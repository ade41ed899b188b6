"""What is known of samples before anything is read: which they are, where they lie, what is cut out of them.

Several batches are planned together: NumPy's calls take nearly as long for 64 rows as for 1,024, and no other thread
can run Python meanwhile.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.containers.base import Located
from iofast.errors import IofastError
from iofast.loader.epochs import EpochOrder
from iofast.loader.resident import Resident
from iofast.loader.resources import Resources
from iofast.loader.spec import BatchSpec


class LoaderParts(NamedTuple):
    """What batches are made of: their contents, the order of samples, threads and memory, and with `cache="device"`
    the dataset's pixels."""

    spec: BatchSpec
    epochs: EpochOrder
    resources: Resources
    resident: Resident | None = None


class SamplePlan(NamedTuple):
    """N samples of an epoch.

    positions  int64 (N,); `attempt`: 0, or which replacements of the samples there they are
    indices    int64 (N,): the samples
    located    where their images lie
    cut        boxes, int32 (N, 8), and flips, uint8 (N,), from `Pipeline.plan`
    """

    epoch: int
    attempt: int
    positions: NDArray[np.int64]
    indices: NDArray[np.int64]
    located: Located
    cut: tuple[NDArray[np.int32], NDArray[np.uint8]]

    def rows(self, start: int, stop: int) -> SamplePlan:
        """Some of the samples; the columns are views."""
        some = slice(start, stop)
        cut = self.cut[0][some], self.cut[1][some]
        return self._replace(
            positions=self.positions[some], indices=self.indices[some], located=self.located.rows(some), cut=cut
        )


def plan_samples(parts: LoaderParts, epoch: int, positions: NDArray[np.int64], attempt: int = 0) -> SamplePlan:
    """Plan the samples at `positions` (int64, (N,)) of an epoch, or their `attempt`-th replacements."""
    return _planned(parts, epoch, positions, parts.epochs.indices(epoch, positions, attempt), attempt)


def _planned(
    parts: LoaderParts, epoch: int, positions: NDArray[np.int64], indices: NDArray[np.int64], attempt: int
) -> SamplePlan:
    spec, epochs, _, cached = parts
    located: Located = cached.located.rows(indices) if cached else spec.dataset.locate(indices)
    draw = Draw(epochs.seed, epoch, epochs.drawn_at(positions), attempt, indices)
    cut = spec.pipeline.plan(draw, located.width, located.height)
    return SamplePlan(epoch, attempt, positions, indices, located, cut)


class BatchPlans:
    """The plans of an epoch's batches before `stop`, for any number of threads.

    Up to `Resources.together` batches are planned at a time: the first one alone, because the consumer waits for it,
    then as many as before. Plans are dropped if another program writes to the container.
    """

    def __init__(self, parts: LoaderParts, epoch: int, stop: int) -> None:
        self._parts, self.epoch, self._stop = parts, epoch, stop
        # an error of an endless sampler belongs to one batch, and the others before it are to come first
        self._together = 1 if parts.epochs.order.endless else parts.resources.together
        self._plans: dict[int, SamplePlan] = {}
        self._next = 0  # batches from here on are in no group yet
        self._count = 0  # of batches in groups
        self._opening: object = None
        self._lock = threading.Lock()

    def take(self, batch: int) -> SamplePlan:
        """Return the plan of a batch. Call it once for each."""
        reader = self._parts.spec.dataset.reader
        if self._together > 1:
            opening = None if self._parts.resident else reader.opening()
            with self._lock:
                if opening != self._opening:
                    self._plans.clear()
                    self._opening = opening
                if batch >= self._next and not reader.moved:
                    self._plan_group(batch)
                if (plan := self._plans.pop(batch, None)) is not None:
                    return plan
        return plan_samples(self._parts, self.epoch, self._positions(batch))

    def _plan_group(self, first: int) -> None:
        """Plan the batches from `first` on. If that fails, each is planned by itself, so one of them has the error."""
        self._next = min(first + min(max(1, self._count), self._together), self._stop)
        self._count += self._next - first
        positions = [self._positions(batch) for batch in range(first, self._next)]
        rows = np.concatenate(positions)
        indices = self._parts.epochs.indices(self.epoch, rows)  # a user's sampler must not run again after an error
        try:
            whole = _planned(self._parts, self.epoch, rows, indices, 0)
        except (IofastError, OSError, IndexError):
            return
        start = 0
        for batch, own in enumerate(positions, first):
            self._plans[batch] = whole.rows(start, start + len(own))
            start += len(own)

    def _positions(self, batch: int) -> NDArray[np.int64]:
        return self._parts.epochs.schedule.positions(batch)[0]
