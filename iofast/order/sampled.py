"""The order of a torch sampler, or of any iterable of indices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from iofast.errors import OptionError, shown
from iofast.order.base import Binding, EpochPositions, Indices, Mode, Order, checksum
from iofast.order.endless import Endless
from iofast.order.runs import Runs, RunsOrder

EPOCHS = 4  # kept in memory: those in flight of a few iterators, 8 bytes per position each
MOST_IN_MEMORY = 1 << 28  # positions of an epoch (2 GiB)
PROBED = 1 << 16  # the least number of indices to search for the end of a sampler without a length


@dataclass(frozen=True, eq=False)
class Sampled(Mode):
    """The indices of a torch `Sampler`, or of any iterable, run once per epoch and kept in memory.

    An epoch must be the same after a resume and on every rank:

    - a sampler with a `torch.Generator`, as RandomSampler, WeightedRandomSampler and SubsetRandomSampler: each run uses
      a copy of the sampler with a generator seeded from (seed of the order, epoch). The sampler's own generator and
      torch's global one are not used, and their states do not change;
    - a sampler with `set_epoch(epoch)`, as DistributedSampler: it is called before each run. A sampler that gives one
      rank's share (`num_replicas` > 1) makes an order that is `sharded`;
    - any other, as a list, a range or an array: it must give the same indices in every run, whatever the epoch, on
      every rank. A resume compares the `checksum` of the bound order; nothing compares ranks.

    Takes 8 bytes per position for each of the last four epochs. The state at an epoch's end holds the next epoch's
    checksum, so `state_dict` runs the sampler too and may raise its errors.

    A sampler without a length that does not end within twice the number of samples is endless: see `Endless`.
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

    def _order(self, binding: Binding) -> Order:
        runs = Runs(self.sampler, binding.population.count, binding.seed)
        length = self._length(runs)
        if length == 0:
            raise OptionError(f"{runs.name} gives no samples")
        if length is None or length > MOST_IN_MEMORY:
            return Endless(runs, length, binding.global_batch)
        return _Sampled(runs, length)

    def _length(self, runs: Runs) -> int | None:
        """Positions of an epoch; None if the sampler is endless."""
        try:
            return len(self.sampler)  # type: ignore[arg-type]
        except TypeError:
            most = max(PROBED, 2 * runs.count)
            length = len(runs.take(runs.begin(0), most + 1))
            return length if length <= most else None
        except (ValueError, OverflowError) as error:  # a length below 0, or above 2^63
            raise OptionError(f"{runs.name} must have a length of 1 or more: {error}") from None


class _Sampled(RunsOrder):
    def __init__(self, runs: Runs, length: int) -> None:
        self._epochs: dict[int, Indices] = {}
        super().__init__(runs, length)

    def checksum(self, epoch: int) -> str:
        return checksum(self._epoch(epoch))

    def _indices(self, at: EpochPositions) -> Indices:
        return self._epoch(at.epoch)[at.positions]

    def _epoch(self, epoch: int) -> Indices:
        """All indices of an epoch, checked."""
        with self._lock():  # the threads of an epoch need it at the same time, and the sampler must run once
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

    def __reduce__(self) -> tuple[type, tuple[Runs, int]]:
        return type(self), (self._runs, self.length)
