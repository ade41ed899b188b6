"""The order of somebody else's sampler: torch's, or any iterable of indices."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from operator import index
from typing import Any

import numpy as np

from iofast.errors import OptionError
from iofast.order.base import Given, Indices, Mode, Order, Part, checksum

UNSIZED = 1 << 28  # indices (2 GiB) after which a sampler without a length is taken for endless
EPOCHS = 4  # kept: those in flight of a few iterators, 8 bytes per position each


@dataclass(frozen=True, eq=False)
class Sampled(Mode):
    """What a torch `Sampler`, or any iterable of indices, gives: run once per epoch, after its `set_epoch(epoch)`.

    The whole epoch is held in memory (8 bytes per position). It is as reproducible as the sampler: `checksum` of the
    bound order tells whether it repeats itself. A sampler that splits the data among ranks by itself (it has
    `num_replicas` > 1, as torch's DistributedSampler) makes an order that is `sharded`.
    """

    sampler: Iterable[Any]

    def __post_init__(self) -> None:
        if not hasattr(self.sampler, "__iter__"):
            raise OptionError(f"sampler must be an iterable of indices, found {type(self.sampler).__name__}")
        if hasattr(self.sampler, "__next__"):
            raise OptionError(f"sampler must be iterable once per epoch, found the iterator {self.sampler!r:.80}")

    def _order(self, given: Given) -> Order:
        return _Sampled(self.sampler, given.population.count, given.seed)


class _Sampled(Order):
    mode = "sampled"

    def __init__(self, sampler: Iterable[Any], count: int, seed: int) -> None:
        self.sampler = sampler
        self._epochs: dict[int, Indices] = {}
        self._lock = threading.Lock()  # the threads of an epoch ask at the same time, and the sampler is to run once
        try:
            length = len(sampler)  # type: ignore[arg-type]
        except TypeError:
            length = len(self._run(0, UNSIZED))
        if not length:
            raise OptionError(f"the sampler {type(sampler).__name__} gives no samples")
        super().__init__(count, length, seed)

    @property
    def sharded(self) -> bool:
        return int(getattr(self.sampler, "num_replicas", None) or 1) > 1

    def checksum(self, epoch: int) -> str:
        return checksum(self._epoch(epoch))

    def _indices(self, part: Part) -> Indices:
        return self._epoch(part.epoch)[part.positions]

    def _epoch(self, epoch: int) -> Indices:
        """All indices of an epoch, checked."""
        with self._lock:
            if epoch not in self._epochs:
                indices = self._run(epoch, self.length)
                self._check_all(epoch, indices)
                self._epochs[epoch] = indices
                while len(self._epochs) > EPOCHS:
                    del self._epochs[next(iter(self._epochs))]
            return self._epochs[epoch]

    def _run(self, epoch: int, most: int) -> Indices:
        """What the sampler gives; raises `OptionError` after more than `most` indices, for some samplers never end."""
        name = f"the sampler {type(self.sampler).__name__}"
        if set_epoch := getattr(self.sampler, "set_epoch", None):
            set_epoch(epoch)
        try:
            indices = np.fromiter(map(index, islice(self.sampler, most + 1)), np.int64)
        except TypeError as error:
            raise OptionError(f"{name} must give whole numbers: {error}") from None
        if len(indices) > most:
            raise OptionError(f"{name} must end after {most} indices, found more in epoch {epoch}")
        return indices

    def _check_all(self, epoch: int, indices: Indices) -> None:
        name = f"the sampler {type(self.sampler).__name__}"
        if len(indices) != self.length:
            raise OptionError(f"{name} must give {self.length} indices in every epoch, found {len(indices)} in {epoch}")
        if wrong := np.flatnonzero((indices < 0) | (indices >= self.count))[:1].tolist():
            found = f"{indices[wrong[0]]} at position {wrong[0]} of epoch {epoch}"
            raise OptionError(f"{name} must give indices from 0 to {self.count - 1}, found {found}")

    def _options(self) -> dict[str, object]:
        return {"sampler": type(self.sampler).__name__}

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_epochs", "_lock")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _epochs={}, _lock=threading.Lock())
