"""`loader.sampler`, which training frameworks look for: they call its `set_epoch`, and ask whether it is sequential."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import Sampler, SequentialSampler

from iofast.loader.plan import LoaderPlan
from iofast.loader.state import Course
from iofast.order import MAX_SEED, Sequential
from iofast.order.base import check_whole


class LoaderSampler(Sampler[int]):
    """The indices of this rank's samples in the loader's next epoch. A view: the loader does not read from it."""

    def __init__(self, plan: LoaderPlan, course: Course) -> None:
        self._plan, self._course = plan, course

    def set_epoch(self, epoch: int) -> None:
        """Let the next `iter(loader)` begin `epoch`, as torch's DistributedSampler does.

        Unlike `loader.set_epoch` it begins an epoch anew that has returned a batch: frameworks break validation off,
        name the same epoch again and expect its first batch. The place of a loaded state is kept.
        """
        self._course.set_epoch(check_whole("epoch", epoch, 0, MAX_SEED), anew=True)

    def __len__(self) -> int:
        """Samples that this rank returns in an epoch, those that fill up its last batch included.

        Raises `TypeError` where the order has no end.
        """
        if self._plan.order.endless:
            raise TypeError("the sampler has no length: it never ends")
        schedule = self._plan.schedule
        last = schedule.count - 1
        return last * schedule.batch_size + len(schedule.positions(last)[0])

    def __iter__(self) -> Iterator[int]:
        epoch, order, schedule = self._course.next[0], self._plan.order, self._plan.schedule
        for batch in range(schedule.count):
            yield from order.indices(epoch, schedule.positions(batch)[0]).tolist()


class SequentialLoaderSampler(LoaderSampler, SequentialSampler):
    """That of a loader that does not shuffle, by which Lightning sees that there is nothing to turn off."""


def sampler_of(plan: LoaderPlan, course: Course) -> LoaderSampler:
    """The sampler of a loader."""
    return (SequentialLoaderSampler if isinstance(plan.options.mode, Sequential) else LoaderSampler)(plan, course)
