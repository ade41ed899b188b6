"""The order of a torch sampler, or of any iterable of indices."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from iofast.errors import OptionError, shown
from iofast.order.base import Binding, EpochPositions, Indices, Mode, Order, checksum
from iofast.order.permutation import MAX_SAMPLES
from iofast.order.runs import Run, Runs

EPOCHS = 4  # kept in memory: those in flight of a few iterators, 8 bytes per position each
KEPT = 400  # global batches of an endless run: threads that are behind and readahead are less than 330 apart
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

    An epoch has at most 2^28 positions. Each of the last four epochs takes 8 bytes per position. The state at an
    epoch's end holds the next epoch's checksum, so `state_dict` runs the sampler too and may raise its errors.

    A sampler without a length that does not end within twice the number of samples is endless. It is iterated as
    batches need its indices, and a resume draws it again from its start. Only the newest indices are in memory.
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
        return _Sampled(runs, self._length(runs), binding.global_batch)

    def _length(self, runs: Runs) -> int | None:
        """Positions of an epoch; None if the sampler is endless."""
        try:
            length = len(self.sampler)  # type: ignore[arg-type]
        except TypeError:
            most = max(PROBED, 2 * runs.count)
            probe = Run(runs, 0, most + 1)
            probe.take(most + 1)
            if (length := probe.taken) > most:
                return None
        except (ValueError, OverflowError) as error:  # a length below 0, or above 2^63
            raise OptionError(f"{runs.name} must have a length of 1 or more: {error}") from None
        if length == 0:
            raise OptionError(f"{runs.name} gives no samples")
        if length > MOST_IN_MEMORY:
            found = f"found {length}; without a length it may be endless"
            raise OptionError(f"{runs.name} must have at most {MOST_IN_MEMORY} indices in an epoch, {found}")
        return length


class _Sampled(Order):
    """The order of a sampler's runs. Copies, pickles and forked children run the sampler anew."""

    mode = "sampled"

    def __init__(self, runs: Runs, length: int | None, global_batch: int) -> None:
        super().__init__(runs.count, length or MAX_SAMPLES, runs.seed)
        self._runs, self._batch, self.endless = runs, global_batch, length is None
        self._kept = KEPT * global_batch if length is None else length + 1  # one more tells whether it ends
        self._by_process: dict[int, tuple[threading.Lock, dict[int, Run]]] = {}

    def __reduce__(self) -> tuple[type, tuple[Runs, int | None, int]]:
        return type(self), (self._runs, None if self.endless else self.length, self._batch)

    @property
    def sharded(self) -> tuple[int, int] | None:
        return self._runs.share

    def checksum(self, epoch: int) -> str | None:
        if self.endless:
            return None
        lock, runs = self._memory()
        with lock:
            return checksum(self._run(runs, epoch, 0, self.length - 1).first(self.length))

    def _indices(self, at: EpochPositions) -> Indices:
        if at.most - at.least >= self._kept:
            found = f"found {at.least} to {at.most}"
            raise OptionError(f"positions of an endless sampler must be within {self._kept} of each other, {found}")
        lock, runs = self._memory()
        with lock:  # the threads of an epoch need it at the same time, and the sampler must run once
            return self._run(runs, at.epoch, at.least, at.most).at(at.positions)

    def _memory(self) -> tuple[threading.Lock, dict[int, Run]]:
        """The runs of this process: a lock held during a fork stays held in the child, without a thread to free it."""
        return self._by_process.setdefault(os.getpid(), (threading.Lock(), {}))

    def _run(self, runs: dict[int, Run], epoch: int, least: int, most: int) -> Run:
        """The run of an epoch, with the indices of positions `least` to `most`."""
        run = runs.pop(epoch, None)  # and is put back unless it fails: then it cannot continue
        if run is None or not run.keeps(least):
            run = self._begun(epoch)
        run.take(most + 1)
        if run.taken <= most:
            raise OptionError(
                f"{self._runs.name} has no length and ended after {run.taken} indices in epoch {epoch}: "
                "give it a __len__ with their number"
            )
        runs[epoch] = run
        while len(runs) > EPOCHS:
            del runs[next(iter(runs))]
        return run

    def _begun(self, epoch: int) -> Run:
        """A new run, which is taken whole if it has an end."""
        run = Run(self._runs, epoch, self._kept)
        if self.endless:
            return run
        run.take(self.length + 1)
        if run.taken > self.length:
            found = f"found more in epoch {epoch}; without a length it may be endless"
            raise OptionError(f"{self._runs.name} must end after {self.length} indices, {found}")
        if run.taken < self.length:
            found = f"{run.taken} in epoch {epoch}"
            raise OptionError(f"{self._runs.name} must give {self.length} indices in every epoch, found {found}")
        return run

    def _replacement(self, at: EpochPositions, attempts: Indices) -> Indices:
        if not self.endless:
            return super()._replacement(at, attempts)
        # of the same global batch, as the rest of the epoch is not in memory
        first = at.positions - at.positions % self._batch
        return self.indices(at.epoch, first + self._drawn(at, attempts, self._batch))

    def _options(self) -> dict[str, object]:
        return self._runs.described()
