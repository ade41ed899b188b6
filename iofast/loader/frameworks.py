"""What frameworks look for in a loader: a sampler, and a DataLoader that they could rebuild."""

from collections.abc import Iterator

from torch.utils.data import Sampler, SequentialSampler

from iofast.arguments import check_integer
from iofast.loader.epochs import EpochOrder
from iofast.loader.state import Course
from iofast.order import MAX_SEED


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
