"""From the threads that make batches to the consumer, by way of its device.

If the device has streams, one more thread takes finished batches, has them copied and finished there, and keeps a few
ahead. It is a second `Prefetch` behind the first, so that errors, Ctrl-C and leaving early mean the same for it.
Without threads (`num_workers=0`) the consumer does that too.

The host may be far ahead of its device, and the memory of a batch is free only when the device is done with it. So that
thread also waits for the consumer's stream: otherwise each batch handed over meanwhile would be one more in memory.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch

from iofast import pixels
from iofast.gpu import AHEAD, Bus, Direct, Event, Issued, Transfer, aside
from iofast.loader.assemble import Batch
from iofast.loader.batches import MadeBatch, Slice, mapped
from iofast.loader.canvas import one_channel, padded
from iofast.loader.resident import PlannedImages
from iofast.loader.samples import LoaderParts
from iofast.loader.spec import PAIR, BatchSpec
from iofast.prefetch import Auto, Prefetch, PrefetchJob
from iofast.prefetch.auto import State
from iofast.work import Work


class Delivery:
    """An iterator over the results of `made` (batches `start` to `stop` - 1), for one consumer."""

    def __init__(
        self, parts: LoaderParts, made: Prefetch[MadeBatch, Slice], auto: Auto | None, start: int, stop: int
    ) -> None:
        self.made = made
        self._parts, self._auto = parts, auto
        self._ahead: Prefetch[Issued[MadeBatch], None] | None = None
        consumer = self._consumer = _Consumer()
        way = parts.resources.way
        if isinstance(way, Transfer) and made.num_workers:
            try:
                self._ahead = Prefetch(
                    lambda number: _Issue(parts, way, made, auto, consumer, late=number - start > AHEAD),
                    stop,
                    num_workers=1,  # one: it takes the results in their order
                    depth=AHEAD,
                    start=start,
                    name="device-",
                )
                # Also at exit, before the finalizers of both of them: each waits for its threads
                weakref.finalize(self, self._consumer.left.append, None)
            except BaseException:
                self.close()
                raise

    @property
    def threads(self) -> list[Prefetch[Any, Any]]:
        """Those that make batches, then the one that has them finished on the device, where there is one."""
        return [self.made] if self._ahead is None else [self.made, self._ahead]

    @property
    def ready(self) -> int:
        """Batches that wait to be taken, here and on the device."""
        return self.made.ready + (0 if self._ahead is None else self._ahead.ready)

    @property
    def depth(self) -> int:
        """Batches that may be in the making or waiting."""
        return self.made.depth + (0 if self._ahead is None else self._ahead.depth)

    def __iter__(self) -> Delivery:
        return self

    def __next__(self) -> Issued[MadeBatch]:
        """The next batch, still to be handed over."""
        way, marks = self._parts.resources.way, self._consumer.marks
        if isinstance(way, Transfer):
            way.check()
            marks.append(way.mark())  # behind its work with the batch before
            if self._ahead is None and len(marks) > AHEAD:
                way.wait_for(marks.popleft(), lambda: False)
        return Issued(next(self.made), None) if self._ahead is None else next(self._ahead)

    def hand_over(self, issued: Issued[MadeBatch], epoch: int, number: int) -> MadeBatch:
        """Batch `number` of an epoch on its device, for the consumer's stream."""
        parts, way = self._parts, self._parts.resources.way
        if way is None:
            return issued.value
        if self._ahead is None:
            issued = _issued(parts, way, issued.value)
        made = way.hand_over(issued)
        return made._replace(batch=mapped(parts, made.batch, epoch, number))

    def taken(self) -> State | None:
        """After each batch, when the next one is asked for: what "auto" has found by now."""
        if self._auto is None:
            return None
        if self._ahead is None:
            self._auto.watch()
        return self._auto.state

    def close(self) -> None:
        """End the threads, and forget what they made."""
        self._consumer.left.append(None)  # first: the device's thread may wait for a batch whose slices take for ever
        try:
            if self._ahead is not None:
                self._ahead.close()  # before those it takes from: else it would wait for a batch that nobody makes
        finally:
            self.made.close()  # also where a Ctrl-C came


class _Consumer:
    """What the device's thread sees of the consumer; none of it leads to the `Delivery`, which it would keep alive."""

    def __init__(self) -> None:
        self.left: list[None] = []  # not empty: it is gone. A list, as a finalizer can take no lock
        # one for each batch that it has asked for, behind its work with those before
        self.marks: deque[Event] = deque()


class _Issue(PrefetchJob[Issued[MadeBatch], None]):
    """The next batch of `made`, on its way to the device."""

    def __init__(
        self,
        parts: LoaderParts,
        way: Transfer,
        made: Prefetch[MadeBatch, Slice],
        auto: Auto | None,
        consumer: _Consumer,
        *,
        late: bool,
    ) -> None:
        self._parts, self._way, self._from, self._auto = parts, way, made, auto
        self._consumer, self._late = consumer, late

    def prepare(self) -> list[None]:
        aside()
        if self._late:  # at work are this batch, those ahead, and the one that the consumer's stream is at
            self._way.wait_for(self._consumer.marks.popleft(), lambda: self._consumer.left)
        self._made = self._from.take(lambda: self._consumer.left)
        if self._auto is not None:
            self._auto.watch()  # here, as this thread is who takes from `made`
        return []

    def run(self, number: int, part: None) -> None:
        """Nothing: there are no slices."""

    def finish(self) -> Issued[MadeBatch]:
        made = self._made
        del self._made  # the host's memory is free as soon as it is copied
        return _issued(self._parts, self._way, made)


def _issued(parts: LoaderParts, way: Transfer | Direct, made: MadeBatch) -> Issued[MadeBatch]:
    def work(bus: Bus) -> MadeBatch:
        whole = made if made.rest is None else made.rest(bus)
        return whole._replace(batch=on_device(parts, whole, bus))

    return way.issue(work)


def on_device(parts: LoaderParts, made: MadeBatch, bus: Bus) -> Batch:
    """The batch of `made` on the device: tensors are copied, and pixel operations done there.

    It may wait for the device, because it runs in a thread that is neither the consumer's nor a decoding one. The
    consumer gets what it raises, in place of this batch.
    """
    spec, batch = parts.spec, made.batch
    columns = dict(batch) if isinstance(batch, dict) else dict(zip(PAIR, batch, strict=True))
    images = columns.get("image")
    movable = {(name, 0): value for name, value in columns.items() if isinstance(value, torch.Tensor)}
    if made.decoded:  # it is there
        movable.pop(("image", 0), None)
    for name in spec.targets:  # boxes, of as many as each image has
        own = columns.get(name)
        if isinstance(own, list) and all(isinstance(each, torch.Tensor) for each in own):
            columns[name] = bus.copy(own) if own else own
    views = images if isinstance(images, dict) and spec.pipeline.views else {}
    if views:
        columns["image"] = _views_copied(bus, views)
        movable.pop(("image", 0), None)
    if isinstance(images, list):
        columns["image"] = images = [*images]  # the user's function may have kept its own
        movable |= {("image", row): each for row, each in enumerate(images) if isinstance(each, torch.Tensor)}
    for (name, row), there in zip(movable, _copied(bus, [*movable.values()]), strict=True):
        if name == "image" and isinstance(images, list):
            images[row] = there
        else:
            columns[name] = there
    if "image" in columns and "image" not in spec.collates and not views:
        columns["image"] = _finished(parts, columns["image"], made.work)
        if spec.options.image_mode == "L":
            columns["image"] = one_channel(columns["image"])
    return columns if isinstance(batch, dict) else (columns["image"], columns["label"])


def _views_copied(bus: Bus, views: dict[str, Any]) -> dict[str, Any]:
    """Several views, finished already, on the device."""
    flat = [each for own in views.values() for each in (own if isinstance(own, list) else [own])]
    there = iter(bus.copy(flat))
    return {name: [next(there) for _ in own] if isinstance(own, list) else next(there) for name, own in views.items()}


def _copied(bus: Bus, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies on the device. Images that lie in one block of memory go by one copy of it, and are views of that: each
    copy costs the host as long as a photograph takes on the bus."""
    numbers: dict[int, list[int]] = {}  # of tensors, by the address of their memory
    for number, tensor in enumerate(tensors):
        if tensor.dtype == torch.uint8 and tensor.layout == torch.strided and tensor.device.type == "cpu":
            numbers.setdefault(tensor.untyped_storage().data_ptr(), []).append(number)
    several = [own for own in numbers.values() if _worth_it([tensors[number] for number in own])]
    shared = {number for own in several for number in own}
    alone = [number for number in range(len(tensors)) if number not in shared]
    blocks = [_block(tensors[own[0]]) for own in several]
    moved = bus.copy([*blocks, *(tensors[number] for number in alone)])
    made = dict(zip(alone, moved[len(blocks) :], strict=True))
    for own, there in zip(several, moved, strict=False):
        for number in own:
            one, at = tensors[number], there.storage_offset() + tensors[number].storage_offset()
            made[number] = there.as_strided(one.shape, one.stride(), at)
    return [made[number] for number in range(len(tensors))]


def _worth_it(images: list[torch.Tensor]) -> bool:
    """Whether images of one block of memory are several, and at least half of it."""
    return len(images) > 1 and 0 < images[0].untyped_storage().nbytes() <= 2 * sum(image.nbytes for image in images)


def _block(image: torch.Tensor) -> torch.Tensor:
    """The block of memory in which a uint8 image lies, as bytes."""
    memory = image.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(memory, 0, (memory.nbytes(),), (1,))


def _finished(parts: LoaderParts, images: Any, work: Work | None) -> Any:
    """Geometry, where it is done here, pixel operations and padding."""
    spec, resident = parts.spec, parts.resident
    if isinstance(images, PlannedImages) and resident is not None:
        return resident.images(spec.pipeline, spec.options, images, work)
    if isinstance(images, torch.Tensor):
        return _applied(spec, images, work)
    there = [
        _applied(spec, each.unsqueeze(0), work and work.rows(slice(row, row + 1)))[0] for row, each in enumerate(images)
    ]
    return padded(there, spec.options.memory_format) if spec.options.ragged == "pad" else there


def _applied(spec: BatchSpec, images: torch.Tensor, work: Work | None) -> torch.Tensor:
    options = spec.options
    if images.dtype != torch.uint8:  # a user's function made others of them
        return images
    ops = spec.pipeline.ops
    return pixels.apply(images, ops, work=work, dtype=options.dtype, memory_format=options.memory_format)
