"""Which samples come when: an order over the dataset, cut into the batches of this rank."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler, SequentialSampler

from iofast.dataset import FastDataset
from iofast.errors import OptionError, StateError
from iofast.loader.options import LoaderOptions
from iofast.loader.state import Course, Identity
from iofast.machine import launcher_rank
from iofast.order import MAX_SEED, Population, Schedule, Sequential
from iofast.order.base import check_whole


class EpochOrder:
    """The batches of every epoch for one rank: positions, and the samples there.

    order     answers which sample is at a position of an epoch
    schedule  answers which positions batch k of this rank has; `full` positions are in batches that all ranks fill
    """

    def __init__(self, dataset: FastDataset, options: LoaderOptions) -> None:
        self._dataset, self._options = dataset, options
        self.seed = options.seed
        self.rank, self.world_size = rank_of(options)
        about = Population(len(dataset), dataset.labels, dataset.sizes, dataset.parts)
        self.order = options.mode.bind(about, options.seed, options.batch_size * self.world_size)
        ranks = self.rank, self.world_size
        if self.order.sharded and self.order.sharded != ranks:
            raise OptionError(
                f"the sampler gives the share of rank {self.order.sharded[0]} of {self.order.sharded[1]}, "
                f"and this loader is rank {self.rank} of {self.world_size}"
            )
        ranks = (0, 1) if self.order.sharded else ranks
        self.schedule = Schedule(self.order.length, options.batch_size, *ranks, options.drop_last)

    @property
    def full(self) -> int:
        """Positions below this are in global batches that have all of their samples."""
        return self.schedule.n - self.schedule.n % self.schedule.global_batch

    @property
    def ranks_may_part(self) -> bool:
        """Whether a rank that begins an epoch alone is out of step from then on; in sequence all epochs are alike."""
        return self.world_size > 1 and not isinstance(self._options.mode, Sequential)

    @cached_property
    def identity(self) -> Identity:
        """What a state of this loader must agree with."""
        global_batch = self._options.batch_size * self.world_size
        checksum = (lambda _: None) if self.order.sharded else self.order.checksum  # a share's is one rank's
        return Identity(self.seed, global_batch, self.order.describe(), self._dataset.fingerprint, checksum)

    def check_ranks(self) -> None:
        """Raise `StateError` if the ranks have changed since construction: each rank would load all of the data."""
        if (now := rank_of(self._options)) != (self.rank, self.world_size):
            raise StateError(
                f"this loader was made as rank {self.rank} of {self.world_size}, and this process is rank {now[0]} of "
                f"{now[1]} now: make it after torch.distributed has been initialised, or give it rank= and world_size="
            )

    def batch(self, epoch: int, number: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The positions of batch `number` of an epoch, and which of them are no filling."""
        positions, valid = self.schedule.positions(number)
        return positions, valid & ~self.order.filling(epoch, positions)

    def indices(self, epoch: int, positions: NDArray[np.int64], attempt: int = 0) -> NDArray[np.int64]:
        """The samples at `positions` of an epoch, or those drawn for the `attempt`-th time to replace them."""
        if attempt:
            return self.order.replacement(epoch, positions, attempt)
        return self.order.indices(epoch, positions)

    def drawn_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """`positions` as random choices count them.

        A sampler that shards by itself counts from 0 on each rank; with those numbers all ranks would crop alike.
        """
        rank, ranks = self.order.sharded or (0, 1)
        return positions * ranks + rank


def rank_of(options: LoaderOptions) -> tuple[int, int]:
    """Rank and world size: as given, from torch.distributed if it runs, from the launcher's environment, or (0, 1)."""
    if options.rank is not None and options.world_size is not None:
        return options.rank, options.world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return launcher_rank() or (0, 1)


class LoaderSampler(Sampler[int]):
    """`loader.sampler`, for frameworks: the indices of this rank's samples in the loader's next epoch.

    It is a view: the loader does not read from it.
    """

    def __init__(self, epochs: EpochOrder, course: Course) -> None:
        self._epochs, self._course = epochs, course

    def set_epoch(self, epoch: int) -> None:
        """Let the next `iter(loader)` begin `epoch`, as torch's DistributedSampler does.

        Unlike `loader.set_epoch` it restarts an epoch that has returned a batch: frameworks stop validation early, name
        the same epoch again and expect its first batch. The place of a loaded state is kept.
        """
        self._course.set_epoch(check_whole("epoch", epoch, 0, MAX_SEED), anew=True)

    def __len__(self) -> int:
        """Samples that this rank returns in an epoch, including those that fill up its last batch.

        Raises `TypeError` if the order has no end.
        """
        if self._epochs.order.endless:
            raise TypeError("the sampler has no length: it never ends")
        schedule = self._epochs.schedule
        last = schedule.count - 1
        return last * schedule.batch_size + len(schedule.positions(last)[0])

    def __iter__(self) -> Iterator[int]:
        epoch, schedule = self._course.next[0], self._epochs.schedule
        for batch in range(schedule.count):
            yield from self._epochs.indices(epoch, schedule.positions(batch)[0]).tolist()


class SequentialLoaderSampler(LoaderSampler, SequentialSampler):
    """The sampler of a loader that does not shuffle; by its class Lightning knows that there is nothing to turn off."""


def sampler_of(epochs: EpochOrder, course: Course, options: LoaderOptions) -> LoaderSampler:
    """The sampler of a loader."""
    return (SequentialLoaderSampler if isinstance(options.mode, Sequential) else LoaderSampler)(epochs, course)
