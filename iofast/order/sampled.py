"""The order of somebody else's sampler: torch's, or any iterable of indices."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from iofast.errors import OptionError, shown
from iofast.order.base import Binding, Indices, Mode, Order, Part, checksum
from iofast.order.endless import Endless
from iofast.order.runs import Runs

EPOCHS = 4  # kept: those in flight of a few iterators, 8 bytes per position each
HELD = 1 << 28  # positions (2 GiB) up to which an epoch is held in memory
PROBED = 1 << 16  # at least so many indices of a sampler without a length are looked at for its end


@dataclass(frozen=True, eq=False)
class Sampled(Mode):
    """What a torch `Sampler`, or any iterable of indices, gives: run once per epoch, and the epoch held in memory.

    What makes an epoch come again, after a resume and on every rank:

    - a `torch.Generator`, as in RandomSampler, WeightedRandomSampler and SubsetRandomSampler: each run is of a copy of
      the sampler with a generator of its own, seeded from (seed of the order, epoch). The generator that was given and
      torch's global one are not used: their seeds do not matter, and their states do not change;
    - `set_epoch(epoch)`, as in DistributedSampler, called before each run. A sampler that splits the data among ranks
      by itself (`num_replicas` > 1) makes an order that is `sharded`;
    - neither, as in a list, a range, an array, or a sampler of one's own: it must give the same indices whenever it is
      run, whatever the epoch and on every rank. `checksum` of the bound order tells a resumed run that it did not;
      nothing tells ranks that differ.

    Takes 8 bytes per position for each of the last four epochs. The state at an epoch's end holds the next epoch's
    checksum, so what a sampler raises when it is run may come from `state_dict` too.

    A sampler without a length that does not end within twice the number of samples is taken for endless: see `Endless`.
    """

    sampler: Iterable[Any]

    def __post_init__(self) -> None:
        sampler, name = self.sampler, type(self.sampler).__name__
        if not hasattr(sampler, "__iter__") or isinstance(sampler, str | bytes):
            raise OptionError(f"sampler must be an iterable of indices, found {name} {shown(sampler)}")
        if hasattr(sampler, "__next__"):
            raise OptionError(f"sampler must be iterable once per epoch, found the iterator {shown(sampler)}")
        if hasattr(sampler, "batch_size") and hasattr(sampler, "sampler"):
            raise OptionError(f"sampler must give single indices, found {name}, which gives batches: use its .sampler")

    def _order(self, given: Binding) -> Order:
        runs = Runs(self.sampler, given.population.count, given.seed)
        length = self._length(runs)
        if length == 0:
            raise OptionError(f"{runs.name} gives no samples")
        if length is None or length > HELD:
            return Endless(runs, length, given.global_batch)
        return _Sampled(runs, length)

    def _length(self, runs: Runs) -> int | None:
        """Positions of an epoch; None where there is no end in sight."""
        try:
            return len(self.sampler)  # type: ignore[arg-type]
        except TypeError:
            most = max(PROBED, 2 * runs.count)
            found = len(runs.take(runs.begin(0), most + 1))
            return found if found <= most else None
        except (ValueError, OverflowError) as error:  # what Python makes of a length below 0, or above 2^63
            raise OptionError(f"{runs.name} must have a length of 1 or more: {error}") from None


class _Sampled(Order):
    mode = "sampled"

    def __init__(self, runs: Runs, length: int) -> None:
        self._runs = runs
        self._epochs: dict[int, Indices] = {}
        self._locks: dict[int, threading.Lock] = {}
        super().__init__(runs.count, length, runs.seed)

    @property
    def sharded(self) -> tuple[int, int] | None:
        return self._runs.share

    def checksum(self, epoch: int) -> str:
        return checksum(self._epoch(epoch))

    def _indices(self, part: Part) -> Indices:
        return self._epoch(part.epoch)[part.positions]

    def _epoch(self, epoch: int) -> Indices:
        """All indices of an epoch, checked."""
        # The threads of an epoch ask at the same time, and the sampler is to run once. A lock for each process: one
        # that was held during a fork stays held in the child for ever, by a thread that the child does not have.
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            if epoch not in self._epochs:
                self._epochs[epoch] = self._run(epoch)
                while len(self._epochs) > EPOCHS:
                    del self._epochs[next(iter(self._epochs))]
            return self._epochs[epoch]

    def _run(self, epoch: int) -> Indices:
        runs = self._runs
        indices = runs.take(runs.begin(epoch), self.length + 1)
        if len(indices) > self.length:
            found = f"found more in epoch {epoch}; without a length it may be endless"
            raise OptionError(f"{runs.name} must end after {self.length} indices, {found}")
        if len(indices) != self.length:
            found = f"{len(indices)} in epoch {epoch}"
            raise OptionError(f"{runs.name} must give {self.length} indices in every epoch, found {found}")
        runs.check(indices, epoch, 0)
        return indices

    def _options(self) -> dict[str, object]:
        return self._runs.described()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_epochs", "_locks")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _epochs={}, _locks={})
