"""From the threads that make batches to the consumer, by way of its device.

On a device with streams one more thread takes finished batches, has them copied and finished there, and keeps a few
ahead. It is a second `Prefetch` behind the first, so errors, Ctrl-C and leaving early work in the same way.
Without threads (`num_workers=0`) the consumer does that work.

A batch's memory is free only when the device is done with it, and the host may be far ahead of its device. So that
thread also waits for the consumer's stream: otherwise each batch handed over meanwhile would need memory of its own.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from iofast.batch_memory import aside
from iofast.loader.assemble import Batch, finish
from iofast.loader.batches import BatchJob, FinishedBatch, mapped
from iofast.loader.canvas import each_tensor
from iofast.loader.loader_stats import Contexts
from iofast.loader.plan import BatchPlans, LoaderParts
from iofast.loader.spec import PAIR
from iofast.loader.there import Unmade
from iofast.prefetch import Auto, Prefetch, PrefetchJob
from iofast.prefetch.auto import State

if TYPE_CHECKING:
    from iofast.gpu import Bus, Direct, Event, Issued, Transfer

AHEAD: Final = 2  # batches on the device before the consumer: one is ready while the next is being made


class Delivery:
    """The batches of `span`, (epoch, start, stop), one after the other, for one consumer.

    `state` is where "auto" begins. `ready` waits for the bytes of a batch.
    """

    def __init__(
        self,
        parts: LoaderParts,
        contexts: Contexts,
        span: tuple[int, int, int],
        state: State,
        ready: Callable[[int], None] | None,
    ) -> None:
        limits, (epoch, start, stop) = parts.resources.limits, span
        plans = BatchPlans(parts, epoch, stop)
        made: Prefetch[FinishedBatch, range] = Prefetch(
            lambda batch: BatchJob(parts, contexts, plans, batch, ready),
            stop,
            # more threads than slices would be idle
            num_workers=min(state.setting.num_workers, max(1, (stop - start) * limits.slices)),
            depth=state.setting.depth,
            start=start,
        )
        self.auto = auto = Auto(made, limits, state)
        self._parts = parts
        self._ahead: Prefetch[Issued[FinishedBatch], None] | None = None
        self._dropped: weakref.finalize[..., Any] | None = None
        consumer = self._consumer = _Consumer()
        streams = self._streams = parts.resources.streams
        if streams is not None and made.num_workers:
            try:
                self._ahead = Prefetch(
                    lambda number: _DeviceJob(parts, streams, auto, consumer, late=number - start > AHEAD),
                    stop,
                    num_workers=1,  # one: it takes the results in their order
                    depth=AHEAD,
                    start=start,
                    name="device-",
                )
                # Also at exit, before the finalizers of the two `Prefetch`: each waits for its threads
                self._dropped = weakref.finalize(self, consumer.left.append, None)
            except BaseException:
                self.close()
                raise

    @property
    def threads(self) -> list[Prefetch[Any, Any]]:
        """The threads that make batches, then the one that finishes them on the device, if there is one."""
        return [self.auto.prefetch] if self._ahead is None else [self.auto.prefetch, self._ahead]

    def __next__(self) -> Any:
        """The next batch, for `hand_over`."""
        streams, marks = self._streams, self._consumer.marks
        if streams is not None:
            streams.check()
            marks.append(streams.mark())  # behind the consumer's work with the batch before
            if self._ahead is None and len(marks) > AHEAD:
                streams.wait_for(marks.popleft(), lambda: False)
        if self._ahead is not None:
            return next(self._ahead)
        made = next(self.auto.prefetch)
        self.auto.watch()
        return made

    def hand_over(self, made: Any, epoch: int, number: int) -> FinishedBatch:
        """Batch `number` of an epoch on its device, for the consumer's stream; `made` is what `next` gave."""
        parts, transfer = self._parts, self._parts.resources.transfer
        if transfer is None:
            return made  # type: ignore[no-any-return]
        issued: Issued[FinishedBatch] = _issue(parts, transfer, made) if self._ahead is None else made
        first = issued.value
        if first.redo is not None and first.damaged is not None and (rows := first.damaged()):
            issued = _issue(parts, transfer, first.redo(rows))
        batch = transfer.hand_over(issued)._replace(redo=None, damaged=None)
        return batch._replace(batch=mapped(parts, batch.batch, epoch, number))

    def close(self) -> None:
        """End the threads and drop their batches."""
        self._consumer.left.append(None)  # first: the device's thread may wait for a batch that takes very long
        try:
            if self._ahead is not None:
                self._ahead.close()  # before the other, which it would wait for in vain
        finally:
            self.auto.prefetch.close()  # also after a Ctrl-C
            if self._dropped is not None:
                self._dropped.detach()  # it is Python, in which a Ctrl-C would be lost if it ran as a finalizer


class _Consumer:
    """What the device's thread knows of the consumer; no reference to the `Delivery`, which would never be freed."""

    def __init__(self) -> None:
        self.left: list[None] = []  # not empty once the consumer is gone; a list, as a finalizer can take no lock
        self.marks: deque[Event] = deque()  # one per requested batch, behind the work with the batches before it


class _DeviceJob(PrefetchJob["Issued[FinishedBatch]", None]):
    """The next batch of `auto.prefetch`, on its way to the device."""

    def __init__(self, parts: LoaderParts, transfer: Transfer, auto: Auto, consumer: _Consumer, *, late: bool) -> None:
        self._parts, self._transfer, self._auto = parts, transfer, auto
        self._consumer, self._late = consumer, late

    def prepare(self) -> list[None]:
        aside()
        if self._late:  # in use are this batch, those ahead, and the one that the consumer's stream works with
            self._transfer.wait_for(self._consumer.marks.popleft(), lambda: self._consumer.left)
        self._made = self._auto.prefetch.take(lambda: self._consumer.left)
        self._auto.watch()  # here, because this thread is the one that takes from `prefetch`
        return []

    def run(self, part: None) -> None:
        """Nothing: there are no slices."""

    def finish(self) -> Issued[FinishedBatch]:
        made = self._made
        del self._made  # so that the host's memory is free once it is copied
        return _issue(self._parts, self._transfer, made)


def _issue(parts: LoaderParts, transfer: Transfer | Direct, made: FinishedBatch) -> Issued[FinishedBatch]:
    def work(bus: Bus) -> FinishedBatch:
        images = made.batch.get("image") if isinstance(made.batch, dict) else made.batch[0]
        batch = on_device(parts, made, bus)
        return made._replace(batch=batch, damaged=images.damaged if isinstance(images, Unmade) else None)

    return transfer.issue(work)


def on_device(parts: LoaderParts, made: FinishedBatch, bus: Bus) -> Batch:
    """Copy the batch of `made` to the device, and finish its images there.

    It may wait for the device: its thread is neither the consumer's nor a decoding one. What it raises reaches the
    consumer in place of this batch.
    """
    spec, batch = parts.spec, made.batch
    columns = dict(batch) if isinstance(batch, dict) else dict(zip(PAIR, batch, strict=True))
    views = bool(spec.pipeline.views)
    moving = {
        name: value
        for name, value in columns.items()
        if isinstance(value, torch.Tensor)
        or (name == "image" and (views or isinstance(value, list)))
        or (name in spec.targets and isinstance(value, list) and all(isinstance(each, torch.Tensor) for each in value))
    }
    unmade = columns.get("image")
    if isinstance(unmade, Unmade):
        moving["image"] = unmade.tensors()
    tensors: list[torch.Tensor] = []
    each_tensor(moving, tensors.append)
    copies = iter(_copied(bus, tensors))
    columns |= each_tensor(moving, lambda _: next(copies))
    if isinstance(unmade, Unmade):
        columns["image"] = unmade.with_copies(columns["image"])
    if "image" in columns and spec.finishes_on_device:
        columns["image"] = finish(spec, columns["image"], made.work, bus=bus)
    return columns if isinstance(batch, dict) else (columns["image"], columns["label"])


def _copied(bus: Bus, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies on the device. Images that share a block of memory become views of one copy of that block.

    Each copy costs the host as long as a photograph takes on the bus.
    """
    numbers: dict[int, list[int]] = {}  # of tensors, by the address of their memory
    for number, tensor in enumerate(tensors):
        if tensor.layout == torch.strided and tensor.device.type == "cpu":
            numbers.setdefault(tensor.untyped_storage().data_ptr(), []).append(number)
    shared = [own for own in numbers.values() if _fill_their_block([tensors[number] for number in own])]
    alone = sorted(set(range(len(tensors))) - {number for own in shared for number in own})
    blocks = [_block(tensors[own[0]]) for own in shared]
    copies = bus.copy([*blocks, *(tensors[number] for number in alone)])
    found = dict(zip(alone, copies[len(blocks) :], strict=True))
    for own, copy in zip(shared, copies, strict=False):
        for number in own:
            one, whole = tensors[number], copy.view(tensors[number].dtype)
            at = whole.storage_offset() + one.storage_offset()
            found[number] = whole.as_strided(one.shape, one.stride(), at)
    return [found[number] for number in range(len(tensors))]


def _fill_their_block(images: list[torch.Tensor]) -> bool:
    """Whether images of one block of memory are several, and at least half of it."""
    return len(images) > 1 and 0 < images[0].untyped_storage().nbytes() <= 2 * sum(image.nbytes for image in images)


def _block(image: torch.Tensor) -> torch.Tensor:
    """The block of memory of an image, as bytes."""
    memory = image.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(memory, 0, (memory.nbytes(),), (1,))
