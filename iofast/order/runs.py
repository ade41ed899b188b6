"""Runs of a torch sampler or another iterable: the indices of an epoch, the same in every run of that epoch."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import islice
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from iofast.errors import OptionError
from iofast.order.base import Indices, Order
from iofast.order.permutation import key_word


class Runs:
    """Runs of `sampler` over `count` samples; random ones depend on (`seed`, epoch).

    `share` is (rank, number of ranks) if the sampler gives one rank's share, else None.
    """

    def __init__(self, sampler: Iterable[Any], count: int, seed: int) -> None:
        self.sampler, self.count, self.seed = sampler, count, seed
        self.name = f"the sampler {type(sampler).__name__}"
        self.share = _share(sampler)

    def begin(self, epoch: int) -> Iterator[Any]:
        """Begin the run of an epoch."""
        sampler = self.sampler
        if set_epoch := getattr(sampler, "set_epoch", None):
            set_epoch(epoch)
        else:
            sampler = _with_generator(sampler, int(key_word(f"iofast order {self.seed} {epoch} sampler")))
        try:
            return iter(sampler)
        except TypeError as error:  # an array of no dimension
            raise OptionError(f"{self.name} must give whole numbers: {error}") from None

    def take(self, run: Iterator[Any], most: int) -> Indices:
        """The next indices of a run (int64), up to `most`. Raises `OptionError` unless they are whole numbers."""
        try:
            return np.fromiter(map(index, islice(run, most)), np.int64)
        except TypeError as error:
            raise OptionError(f"{self.name} must give whole numbers: {error}") from None

    def check(self, indices: Indices, epoch: int, first: int) -> None:
        """Raise `OptionError` unless `indices`, from position `first` of `epoch` on, are 0 … count-1."""
        if wrong := np.flatnonzero((indices < 0) | (indices >= self.count))[:1].tolist():
            found = f"{indices[wrong[0]]} at position {first + wrong[0]} of epoch {epoch}"
            raise OptionError(f"{self.name} must give indices from 0 to {self.count - 1}, found {found}")


class RunsOrder(Order):
    """The order of a sampler's runs. Copies and pickles run the sampler anew."""

    mode = "sampled"

    def __init__(self, runs: Runs, length: int) -> None:
        self._runs = runs
        self._locks: dict[int, threading.Lock] = {}
        super().__init__(runs.count, length, runs.seed)

    @property
    def sharded(self) -> tuple[int, int] | None:
        return self._runs.share

    def _lock(self) -> threading.Lock:
        """The lock of this process: a lock held during a fork stays held in the child, without a thread to free it."""
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def _options(self) -> dict[str, object]:
        sampler = self._runs.sampler
        options: dict[str, object] = {"sampler": type(sampler).__name__}
        if self._runs.share:  # no checksum of a share holds for all ranks, but these options do
            values = {name: getattr(sampler, name, None) for name in ("num_replicas", "seed", "shuffle", "drop_last")}
            options |= {name: index(value) for name, value in values.items() if isinstance(value, SupportsIndex)}
        return options


def _share(sampler: Iterable[Any]) -> tuple[int, int] | None:
    """(rank, number of ranks) of a sampler that gives one rank's share."""
    replicas, rank = getattr(sampler, "num_replicas", None) or 1, getattr(sampler, "rank", None)
    if replicas == 1:
        return None
    if not isinstance(rank, SupportsIndex) or not isinstance(replicas, SupportsIndex):
        name = type(sampler).__name__
        raise OptionError(f"the sampler {name} must have the attribute rank, one of {replicas}, found {rank!r}")
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
