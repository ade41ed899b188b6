"""The order of a torch sampler, or of any iterable of indices: an epoch is one run, the same whenever it is made."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from itertools import islice
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from iofast.errors import OptionError, shown
from iofast.order.base import Binding, EpochPositions, Indices, Mode, Order, checksum
from iofast.order.permutation import MAX_SAMPLES, key_word

EPOCHS = 4  # kept in memory: those in flight of a few iterators, 8 bytes per position each
KEPT = 400  # global batches of an endless run: threads that are behind and readahead are less than 330 apart
MOST_IN_MEMORY = 1 << 28  # positions of an epoch (2 GiB)
PROBED = 1 << 16  # the least number of indices to search for the end of a sampler without a length
_SHARE_OPTIONS = ("num_replicas", "seed", "shuffle", "drop_last")  # attributes of torch's DistributedSampler
_TOGETHER = 1 << 16  # indices taken at a time


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
        count, seed = binding.population.count, binding.seed
        return _Sampled(self.sampler, count, seed, self._length(count, seed), binding.global_batch)

    def _length(self, count: int, seed: int) -> int | None:
        """Positions of an epoch; None if the sampler is endless."""
        name = _name(self.sampler)
        try:
            length = len(self.sampler)  # type: ignore[arg-type]
        except TypeError:
            most = max(PROBED, 2 * count)
            probe = Run(self.sampler, count, seed, 0, most + 1)
            probe.take(most + 1)
            if (length := probe.taken) > most:
                return None
        except (ValueError, OverflowError) as error:  # a length below 0, or above 2^63
            raise OptionError(f"{name} must have a length of 1 or more: {error}") from None
        if length == 0:
            raise OptionError(f"{name} gives no samples")
        if length > MOST_IN_MEMORY:
            found = f"found {length}; without a length it may be endless"
            raise OptionError(f"{name} must have at most {MOST_IN_MEMORY} indices in an epoch, {found}")
        return length


class _Sampled(Order):
    """The order of a sampler's runs. Copies, pickles and forked children run the sampler anew."""

    mode = "sampled"

    def __init__(self, sampler: Iterable[Any], count: int, seed: int, length: int | None, global_batch: int) -> None:
        super().__init__(count, length or MAX_SAMPLES, seed)
        self._sampler, self._batch, self.endless = sampler, global_batch, length is None
        self._share = _share(sampler)
        self._kept = KEPT * global_batch if length is None else length + 1  # one more tells whether it ends
        self._by_process: dict[int, tuple[threading.Lock, dict[int, Run]]] = {}

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self._sampler, self.count, self.seed, None if self.endless else self.length, self._batch)

    @property
    def sharded(self) -> tuple[int, int] | None:
        return self._share

    def checksum(self, epoch: int) -> str | None:
        if self.endless:
            return None
        lock, runs = self._memory()
        with lock:
            return checksum(self._run(runs, epoch, 0, self.length - 1).newest[: self.length])

    def _indices(self, at: EpochPositions) -> Indices:
        if at.most - at.least >= self._kept:
            found = f"found {at.least} to {at.most}"
            raise OptionError(f"positions of an endless sampler must be within {self._kept} of each other, {found}")
        lock, runs = self._memory()
        with lock:  # the threads of an epoch need it at the same time, and the sampler must run once
            indices: Indices = self._run(runs, at.epoch, at.least, at.most).newest[at.positions % self._kept]
            return indices

    def _memory(self) -> tuple[threading.Lock, dict[int, Run]]:
        """The runs of this process: a lock held during a fork stays held in the child, without a thread to free it."""
        return self._by_process.setdefault(os.getpid(), (threading.Lock(), {}))

    def _run(self, runs: dict[int, Run], epoch: int, least: int, most: int) -> Run:
        """The run of an epoch, with the indices of positions `least` to `most`."""
        run = runs.pop(epoch, None)  # and is put back unless it fails: then it cannot continue
        if run is None or least < run.taken - self._kept:
            run = self._begun(epoch)
        run.take(most + 1)
        if run.taken <= most:
            raise OptionError(
                f"{_name(self._sampler)} has no length and ended after {run.taken} indices in epoch {epoch}: "
                "give it a __len__ with their number"
            )
        runs[epoch] = run
        while len(runs) > EPOCHS:
            del runs[next(iter(runs))]
        return run

    def _begun(self, epoch: int) -> Run:
        """A new run, which is taken whole if it has an end."""
        run, name = Run(self._sampler, self.count, self.seed, epoch, self._kept), _name(self._sampler)
        if self.endless:
            return run
        run.take(self.length + 1)
        if run.taken > self.length:
            found = f"found more in epoch {epoch}; without a length it may be endless"
            raise OptionError(f"{name} must end after {self.length} indices, {found}")
        if run.taken < self.length:
            found = f"{run.taken} in epoch {epoch}"
            raise OptionError(f"{name} must give {self.length} indices in every epoch, found {found}")
        return run

    def _replacement(self, at: EpochPositions, attempts: Indices) -> Indices:
        if not self.endless:
            return super()._replacement(at, attempts)
        # of the same global batch, as the rest of the epoch is not in memory
        first = at.positions - at.positions % self._batch
        return self.indices(at.epoch, first + self._drawn(at, attempts, self._batch))

    def _options(self) -> dict[str, object]:
        """Of a share also the sampler's options, for no checksum of a share holds for all ranks."""
        options: dict[str, object] = {"sampler": type(self._sampler).__name__}
        if self._share:
            values = {name: getattr(self._sampler, name, None) for name in _SHARE_OPTIONS}
            options |= {name: index(value) for name, value in values.items() if isinstance(value, SupportsIndex)}
        return options


class Run:
    """A sampler's run in `epoch`. Its `newest` indices are in memory, `kept` of them: of position p at p modulo `kept`.

    Those of positions before `taken` are taken.
    """

    def __init__(self, sampler: Iterable[Any], count: int, seed: int, epoch: int, kept: int) -> None:
        self._name, self._last, self._epoch = _name(sampler), count - 1, epoch
        self.newest, self.taken = np.empty(kept, np.int64), 0
        if set_epoch := getattr(sampler, "set_epoch", None):
            set_epoch(epoch)
        else:
            sampler = _with_generator(sampler, int(key_word(f"iofast order {seed} {epoch} sampler")))
        try:
            self._rest = iter(sampler)
        except TypeError as error:  # an array of no dimension
            raise OptionError(f"{self._name} must give whole numbers: {error}") from None

    def take(self, stop: int) -> None:
        """Take the indices of all positions before `stop`, or fewer if the sampler ends. Raises `OptionError`."""
        while self.taken < stop:
            most = min(stop - self.taken, len(self.newest), _TOGETHER)
            indices = self._next(most)
            self.newest[np.arange(self.taken, self.taken + len(indices)) % len(self.newest)] = indices
            self.taken += len(indices)
            if len(indices) < most:
                return

    def _next(self, most: int) -> Indices:
        try:
            indices = np.fromiter(map(index, islice(self._rest, most)), np.int64)
        except TypeError as error:
            raise OptionError(f"{self._name} must give whole numbers: {error}") from None
        if wrong := np.flatnonzero((indices < 0) | (indices > self._last))[:1].tolist():
            found = f"{indices[wrong[0]]} at position {self.taken + wrong[0]} of epoch {self._epoch}"
            raise OptionError(f"{self._name} must give indices from 0 to {self._last}, found {found}")
        return indices


def _name(sampler: Iterable[Any]) -> str:
    return f"the sampler {type(sampler).__name__}"


def _share(sampler: Iterable[Any]) -> tuple[int, int] | None:
    """(rank, number of ranks) of a sampler that gives one rank's share."""
    replicas, rank = getattr(sampler, "num_replicas", None) or 1, getattr(sampler, "rank", None)
    if replicas == 1:
        return None
    if not isinstance(rank, SupportsIndex) or not isinstance(replicas, SupportsIndex):
        raise OptionError(f"{_name(sampler)} must have the attribute rank, one of {replicas}, found {rank!r}")
    return index(rank), index(replicas)


def _with_generator(sampler: Iterable[Any], seed: int) -> Iterable[Any]:
    """A copy of a sampler that draws from a `torch.Generator`, with a new one; any other sampler as it is.

    A copy, because another loader may use the sampler in another thread. torch is not imported: if it is not loaded,
    there is no torch sampler.
    """
    torch, data = sys.modules.get("torch"), sys.modules.get("torch.utils.data")
    attributes = getattr(sampler, "__dict__", {})
    if torch is None or data is None or "generator" not in attributes:
        return sampler
    generator = attributes["generator"]
    if not isinstance(generator, torch.Generator) and not (generator is None and isinstance(sampler, data.Sampler)):
        return sampler  # another library's generator
    own: Any = copy(sampler)
    on_device = attributes.get("weights") if generator is None else generator  # weights may be on a GPU
    own.generator = torch.Generator(getattr(on_device, "device", "cpu")).manual_seed(seed)
    return own  # type: ignore[no-any-return]
