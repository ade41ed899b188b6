"""The order of samples, cut into the batches of this rank, and the sampler that frameworks look for."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler, SequentialSampler

from iofast.arguments import check_integer
from iofast.dataset import FastDataset
from iofast.errors import OptionError, StateError
from iofast.loader.options import LoaderOptions
from iofast.loader.ranks import check_meshes, detected_rank
from iofast.loader.state import Course, Identity
from iofast.machine import local_ranks
from iofast.order import MAX_SEED, Population, Schedule, Sequential


class EpochOrder:
    """The batches of every epoch for one rank: positions, and the samples there.

    order     position of an epoch -> sample
    schedule  batch of this rank -> positions
    """

    def __init__(self, dataset: FastDataset, options: LoaderOptions) -> None:
        self._dataset, self._options = dataset, options
        self.seed = options.seed
        if options.rank is None:
            check_meshes()
        self.rank, self.world_size = rank_of(options)
        population = Population(len(dataset), dataset.labels, dataset.sizes, dataset.parts)
        self.order = options.mode.bind(population, options.seed, options.batch_size * self.world_size)
        ranks = self.rank, self.world_size
        if self.order.sharded and self.order.sharded != ranks:
            raise OptionError(
                f"the sampler must give the share of this loader, rank {self.rank} of {self.world_size}, found that of "
                f"rank {self.order.sharded[0]} of {self.order.sharded[1]}"
            )
        ranks = (0, 1) if self.order.sharded else ranks
        self.schedule = Schedule(self.order.length, options.batch_size, *ranks, options.drop_last)

    @property
    def full(self) -> int:
        """The number of positions in complete global batches, which come first."""
        return self.schedule.n - self.schedule.n % self.schedule.global_batch

    @property
    def ranks_may_part(self) -> bool:
        """Whether a rank that begins an epoch alone stays out of step; not in sequence, where all epochs are alike."""
        return self.world_size > 1 and not isinstance(self._options.mode, Sequential)

    @cached_property
    def identity(self) -> Identity:
        """What a state must agree with to fit this loader."""
        global_batch = self._options.batch_size * self.world_size
        checksum = (lambda _: None) if self.order.sharded else self.order.checksum  # ranks' shares differ in theirs
        return Identity(self.seed, global_batch, self.order.describe(), self._dataset.fingerprint, checksum)

    def check_ranks(self) -> None:
        """Raise `StateError` if the ranks have changed since construction: each rank would load all of the data."""
        if (now := rank_of(self._options)) != (self.rank, self.world_size):
            raise StateError(
                f"this process must have the rank of its loader, {self.rank} of {self.world_size}, found rank {now[0]} "
                f"of {now[1]}: make the loader after torch.distributed has been initialised, or give it rank= and "
                "world_size="
            )

    def batch(self, epoch: int, number: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The positions of batch `number` of an epoch, int64 (N,), and whether each is valid, no filling, bool (N,)."""
        positions, valid = self.schedule.positions(number)
        return positions, valid & ~self.order.filling(epoch, positions)

    def of_machine(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The positions of batch `number`: of this rank, and of the others of this machine, which share a cache."""
        here, own = local_ranks(), self.schedule
        ranks = max(1, min(here, here * own.world_size // detected_rank()[1]))  # some may need the same data
        first = own.rank - own.rank % ranks
        others = [rank for rank in range(first, min(first + ranks, own.world_size)) if rank != own.rank]
        theirs = [replace(own, rank=rank).positions(number)[0] for rank in others]
        return own.positions(number)[0], np.concatenate([np.empty(0, np.int64), *theirs])

    def indices(self, epoch: int, positions: NDArray[np.int64], attempt: int = 0) -> NDArray[np.int64]:
        """The samples at `positions` of an epoch, or their replacements of the `attempt`-th draw."""
        if attempt:
            return self.order.replacement(epoch, positions, attempt)
        return self.order.indices(epoch, positions)

    def drawn_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """`positions` as random choices count them.

        A sampler that shards by itself counts from 0 on each rank, so all ranks would crop alike.
        """
        rank, ranks = self.order.sharded or (0, 1)
        return positions * ranks + rank


def rank_of(options: LoaderOptions) -> tuple[int, int]:
    """Rank and world size: from the options, or detected."""
    if options.rank is not None and options.world_size is not None:
        return options.rank, options.world_size
    return detected_rank()


class LoaderSampler(Sampler[int]):
    """`loader.sampler`, for frameworks: the indices of this rank's samples in the loader's next epoch.

    The loader does not read from it.
    """

    def __init__(self, epochs: EpochOrder, course: Course) -> None:
        self._epochs, self._course = epochs, course

    def set_epoch(self, epoch: int) -> None:
        """Let the next `iter(loader)` begin `epoch`, as torch's DistributedSampler does.

        Unlike `loader.set_epoch` it restarts an epoch that has returned a batch: frameworks stop validation early, set
        the same epoch again and expect its first batch. The place of a loaded state is kept.
        """
        self._course.set_epoch(check_integer("epoch", epoch, 0, MAX_SEED), anew=True)

    def __len__(self) -> int:
        """Samples that this rank returns in an epoch, including those that only fill its last batch up.

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
    """The sampler of a loader that does not shuffle. By its class Lightning knows that it has nothing to turn off."""


NOT_REBUILT = (
    "a FastLoader cannot be rebuilt as a DataLoader, and has the share of its rank already: iterate over the loader "
    'itself, or what Accelerator.prepare returns; loader.load_state_dict(loader.state_dict() | {"batch": 100}) skips '
    "batches; give the Trainer TrainingArguments(ignore_data_skip=True), and a callback that loads the loader's state, "
    "as in examples/train_trainer.py"
)
