"""The order of somebody else's sampler: torch's, or any iterable of indices."""

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
from iofast.order.base import Given, Indices, Mode, Order, Part, checksum
from iofast.order.permutation import key_word

UNSIZED = 1 << 28  # indices (2 GiB) after which a sampler without a length is taken for endless
EPOCHS = 4  # kept: those in flight of a few iterators, 8 bytes per position each


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

    def _order(self, given: Given) -> Order:
        return _Sampled(self.sampler, given.population.count, given.seed)


class _Sampled(Order):
    mode = "sampled"

    def __init__(self, sampler: Iterable[Any], count: int, seed: int) -> None:
        self.sampler, self.seed = sampler, seed
        self._name = f"the sampler {type(sampler).__name__}"
        self._epochs: dict[int, Indices] = {}
        self._locks: dict[int, threading.Lock] = {}
        self._share = _share(sampler)
        try:
            length = len(sampler)  # type: ignore[arg-type]
        except TypeError:
            length = len(self._run(0, UNSIZED))
        except (ValueError, OverflowError) as error:  # what Python makes of a length below 0, or above 2^63
            raise OptionError(f"{self._name} must have a length of 1 or more: {error}") from None
        if not length:
            raise OptionError(f"{self._name} gives no samples")
        super().__init__(count, length, seed)

    @property
    def sharded(self) -> tuple[int, int] | None:
        return self._share

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
                indices = self._run(epoch, self.length)
                self._check_all(epoch, indices)
                self._epochs[epoch] = indices
                while len(self._epochs) > EPOCHS:
                    del self._epochs[next(iter(self._epochs))]
            return self._epochs[epoch]

    def _run(self, epoch: int, most: int) -> Indices:
        """What the sampler gives; raises `OptionError` after more than `most` indices, for some samplers never end."""
        if set_epoch := getattr(self.sampler, "set_epoch", None):
            set_epoch(epoch)
        seed = int(key_word(f"iofast order {self.seed} {epoch} sampler"))
        sampler = self.sampler if set_epoch else _with_generator(self.sampler, seed)
        try:
            indices = np.fromiter(map(index, islice(sampler, most + 1)), np.int64)
        except TypeError as error:
            raise OptionError(f"{self._name} must give whole numbers: {error}") from None
        if len(indices) > most:
            raise OptionError(f"{self._name} must end after {most} indices, found more in epoch {epoch}")
        return indices

    def _check_all(self, epoch: int, indices: Indices) -> None:
        if len(indices) != self.length:
            found = f"{len(indices)} in epoch {epoch}"
            raise OptionError(f"{self._name} must give {self.length} indices in every epoch, found {found}")
        if wrong := np.flatnonzero((indices < 0) | (indices >= self.count))[:1].tolist():
            found = f"{indices[wrong[0]]} at position {wrong[0]} of epoch {epoch}"
            raise OptionError(f"{self._name} must give indices from 0 to {self.count - 1}, found {found}")

    def _options(self) -> dict[str, object]:
        told: dict[str, object] = {"sampler": type(self.sampler).__name__}
        if self._share:  # no checksum of a share holds for all ranks, but these are the same on each
            given = {
                name: getattr(self.sampler, name, None) for name in ("num_replicas", "seed", "shuffle", "drop_last")
            }
            told |= {name: index(value) for name, value in given.items() if isinstance(value, SupportsIndex)}
        return told

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_epochs", "_locks")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _epochs={}, _locks={})


def _share(sampler: Iterable[Any]) -> tuple[int, int] | None:
    """(rank, number of ranks) of a sampler that gives one rank's share."""
    replicas, rank = getattr(sampler, "num_replicas", None) or 1, getattr(sampler, "rank", None)
    if replicas == 1:
        return None
    if not isinstance(rank, SupportsIndex) or not isinstance(replicas, SupportsIndex):
        name = type(sampler).__name__
        raise OptionError(f"the sampler {name} must say which of {replicas} ranks it is for, found rank {rank!r}")
    return index(rank), index(replicas)


def _with_generator(sampler: Iterable[Any], seed: int) -> Iterable[Any]:
    """A copy of a sampler that draws from a `torch.Generator`, with a fresh one; any other sampler as it is.

    A copy, because the sampler may be somebody else's too: another loader's, in another thread. torch is not imported,
    for orders do without: whoever made a torch sampler, or a generator, has loaded it.
    """
    torch, data = sys.modules.get("torch"), sys.modules.get("torch.utils.data")
    attributes = getattr(sampler, "__dict__", {})
    if torch is None or data is None or "generator" not in attributes:
        return sampler
    generator = attributes["generator"]
    if not isinstance(generator, torch.Generator) and not (generator is None and isinstance(sampler, data.Sampler)):
        return sampler  # another library's generator
    own: Any = copy(sampler)
    drawn_on = attributes.get("weights") if generator is None else generator  # weights may be on a GPU
    own.generator = torch.Generator(getattr(drawn_on, "device", "cpu")).manual_seed(seed)
    return own  # type: ignore[no-any-return]
