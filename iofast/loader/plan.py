"""What is known of samples before anything is read: which they are, where they lie, what is cut out of them.

Plans of several batches are made together: NumPy's calls take nearly as long for 64 rows as for 1,024, and no other
thread can run Python meanwhile.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.containers.base import Located
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


class Plan(NamedTuple):
    """N samples of an epoch.

    positions  int64 (N,); `attempt`: 0, or which replacements of the samples there they are
    indices    int64 (N,): the samples
    located    where their images lie
    cut        boxes, int32 (N, 8), and flips, uint8 (N,), from `Pipeline.plan`; None if they depend on annotations
    """

    epoch: int
    attempt: int
    positions: NDArray[np.int64]
    indices: NDArray[np.int64]
    located: Located
    cut: tuple[NDArray[np.int32], NDArray[np.uint8]] | None

    def rows(self, start: int, stop: int) -> Plan:
        """Some of the samples."""
        some = slice(start, stop)
        cut = None if self.cut is None else (self.cut[0][some], self.cut[1][some])
        return self._replace(
            positions=self.positions[some], indices=self.indices[some], located=self.located.rows(some), cut=cut
        )


def plan(parts: LoaderParts, epoch: int, positions: NDArray[np.int64], attempt: int = 0) -> Plan:
    """Plan the samples at `positions` (int64, (N,)) of an epoch, or their `attempt`-th replacements."""
    spec, epochs, _, cached = parts
    indices = epochs.indices(epoch, positions, attempt)
    located: Located = cached.located.rows(indices) if cached else spec.dataset.locate(indices)
    made = Plan(epoch, attempt, positions, indices, located, None)
    if spec.pipeline.part is not None:
        return made
    draw = Draw(epochs.seed, epoch, epochs.drawn_at(positions), attempt, indices)
    return made._replace(cut=spec.pipeline.plan(draw, located.width, located.height))


class Plans:
    """The plans of an epoch's batches, made for `Resources.together` batches at a time. Threads may share it."""

    def __init__(self, parts: LoaderParts, epoch: int) -> None:
        self._parts, self.epoch = parts, epoch
        self._made: dict[int, Plan] = {}
        self._next = 0  # batches from here on were not planned yet
        self._lock = threading.Lock()

    def take(self, batch: int) -> Plan:
        """The plan of a batch, which is asked for once."""
        with self._lock:
            if batch not in self._made and batch >= self._next:
                self._make(batch)
            made = self._made.pop(batch, None)
        return plan(self._parts, self.epoch, self._positions(batch)) if made is None else made

    def _make(self, batch: int) -> None:
        """Plan the batches from `batch` to the end of its group. An error is left to the batch that it belongs to."""
        together, schedule = self._parts.resources.together, self._parts.epochs.schedule
        self._next = min(batch + together - batch % together, schedule.count)
        positions = [self._positions(number) for number in range(batch, self._next)]
        try:
            whole = plan(self._parts, self.epoch, np.concatenate(positions))
        except Exception:  # of a damaged index, of a user's sampler
            return
        ends = np.cumsum([len(each) for each in positions]).tolist()
        for number, end in enumerate(ends):
            self._made[batch + number] = whole.rows(end - len(positions[number]), end)

    def _positions(self, batch: int) -> NDArray[np.int64]:
        return self._parts.epochs.schedule.positions(batch)[0]
