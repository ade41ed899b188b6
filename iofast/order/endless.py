"""The order of a sampler that never ends: an epoch without end, whose indices are taken as batches need them."""

from __future__ import annotations

import os

import numpy as np

from iofast.errors import OptionError
from iofast.order.base import EpochPositions, Indices
from iofast.order.permutation import MAX_SAMPLES
from iofast.order.runs import Runs, RunsOrder

BLOCK = 1 << 16  # indices taken at once while skipping to a resumed position
KEPT = 400  # global batches before the newest for threads that are behind: they and readahead are less than 330 apart


class Endless(RunsOrder):
    """The indices of a sampler in the order of its run; `length` None for a sampler without a length.

    An earlier position than the ones kept, as after a resume, draws the sampler again from its start.
    """

    def __init__(self, runs: Runs, length: int | None, global_batch: int) -> None:
        self._batch, self._end = global_batch, length
        self._begun: tuple[int, int] | None = None  # process and epoch of the run: none survives a fork
        self._first, self._recent = 0, np.empty(0, np.int64)
        super().__init__(runs, length or MAX_SAMPLES)

    @property
    def endless(self) -> bool:
        return self._end is None

    def _indices(self, at: EpochPositions) -> Indices:
        with self._lock():
            if self._begun != (os.getpid(), at.epoch) or at.least < self._first:
                self._run = self._runs.begin(at.epoch)
                self._first, self._recent = 0, np.empty(0, np.int64)
                self._begun = os.getpid(), at.epoch
            try:
                while (stop := self._first + len(self._recent)) <= at.most:
                    self._take(at, min(BLOCK, at.most + 1 - stop), stop)
            except BaseException:
                self._begun = None  # a failed run cannot continue
                raise
            return self._recent[at.positions - self._first]

    def _take(self, at: EpochPositions, count: int, stop: int) -> None:
        taken = self._runs.take(self._run, count)
        self._runs.check(taken, at.epoch, stop)
        if len(taken) < count:
            length = "no length" if self._end is None else f"a length of {self._end}"
            raise OptionError(
                f"{self._runs.name} has {length} and ended after {stop + len(taken)} indices in epoch {at.epoch}: "
                "give it a __len__ with their number"
            )
        recent = np.concatenate((self._recent, taken))
        old = min(at.least - self._first, len(recent) - KEPT * self._batch)
        if old > len(recent) // 2 or old > BLOCK:  # rarely: the rest is copied
            recent, self._first = recent[old:].copy(), self._first + old
        self._recent = recent

    def _replacement(self, at: EpochPositions, attempts: Indices) -> Indices:
        """Samples of the same global batch, as the rest of the epoch is not in memory."""
        first = at.positions - at.positions % self._batch
        stops = np.minimum(self._batch, self.length - first)
        return self.indices(at.epoch, first + self._drawn(at, attempts, stops))

    def __reduce__(self) -> tuple[type, tuple[Runs, int | None, int]]:
        return type(self), (self._runs, self._end, self._batch)
