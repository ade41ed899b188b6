"""Runs of a torch sampler or another iterable: the indices of an epoch, the same in every run of that epoch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import islice
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from iofast.errors import OptionError
from iofast.order.base import Indices
from iofast.order.permutation import key_word

_SHARE_OPTIONS = ("num_replicas", "seed", "shuffle", "drop_last")  # attributes of torch's DistributedSampler


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

    def described(self) -> dict[str, object]:
        """The sampler, for `describe`; of a share also its options, for no checksum of a share holds for all ranks."""
        options: dict[str, object] = {"sampler": type(self.sampler).__name__}
        if self.share:
            values = {name: getattr(self.sampler, name, None) for name in _SHARE_OPTIONS}
            options |= {name: index(value) for name, value in values.items() if isinstance(value, SupportsIndex)}
        return options


_TOGETHER = 1 << 16  # indices taken at a time


class Run:
    """One run of a sampler. Its newest `kept` indices are in memory: that of position p at p modulo `kept`."""

    def __init__(self, runs: Runs, epoch: int, kept: int) -> None:
        self._runs, self._epoch = runs, epoch
        self._rest = runs.begin(epoch)
        self._newest = np.empty(kept, np.int64)
        self.taken = 0  # positions before this one are taken

    def take(self, stop: int) -> None:
        """Take the indices of all positions before `stop`, or fewer if the sampler ends. Raises `OptionError`."""
        while self.taken < stop:
            most = min(stop - self.taken, len(self._newest), _TOGETHER)
            indices = self._next(most)
            self._newest[np.arange(self.taken, self.taken + len(indices)) % len(self._newest)] = indices
            self.taken += len(indices)
            if len(indices) < most:
                return

    def keeps(self, position: int) -> bool:
        """Whether the index of a position is still in memory, or not taken yet."""
        return position >= self.taken - len(self._newest)

    def at(self, positions: Indices) -> Indices:
        """The indices of positions that are in memory."""
        indices: Indices = self._newest[positions % len(self._newest)]
        return indices

    def first(self, count: int) -> Indices:
        """The indices of the first `count` positions, at most as many as are in memory."""
        return self._newest[:count]

    def _next(self, most: int) -> Indices:
        name, last = self._runs.name, self._runs.count - 1
        try:
            indices = np.fromiter(map(index, islice(self._rest, most)), np.int64)
        except TypeError as error:
            raise OptionError(f"{name} must give whole numbers: {error}") from None
        if wrong := np.flatnonzero((indices < 0) | (indices > last))[:1].tolist():
            found = f"{indices[wrong[0]]} at position {self.taken + wrong[0]} of epoch {self._epoch}"
            raise OptionError(f"{name} must give indices from 0 to {last}, found {found}")
        return indices


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
