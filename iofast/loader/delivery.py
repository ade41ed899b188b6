"""From the threads that make batches to the consumer, by way of its device.

Where the device has streams, one more thread takes finished batches, has them copied and finished there, and keeps a
few ahead. It is a second `Prefetch` behind the first, so that errors, Ctrl-C and leaving early mean the same for it.
Without threads (`num_workers=0`) the consumer does that too.

The host may be far ahead of its device, and memory of a batch is free when the device is done with it. So that thread
also waits for the consumer's stream: else each batch that was handed over meanwhile would be one more in memory.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from iofast.gpu import AHEAD, Bus, Direct, Event, Issued, Transfer, aside
from iofast.loader.auto import Auto, State
from iofast.loader.batches import MadeBatch, Slice, mapped
from iofast.loader.on_device import on_device
from iofast.loader.plan import LoaderPlan
from iofast.loader.prefetch import Prefetch, PrefetchJob


class Delivery:
    """An iterator over the results of `made` (batches `start` to `stop` - 1), for one consumer."""

    def __init__(
        self, plan: LoaderPlan, made: Prefetch[MadeBatch, Slice], auto: Auto | None, start: int, stop: int
    ) -> None:
        self.made = made
        self._plan, self._auto = plan, auto
        self._ahead: Prefetch[Issued[MadeBatch], None] | None = None
        consumer = self._consumer = _Consumer()
        way = plan.way
        if isinstance(way, Transfer) and made.num_workers:
            try:
                self._ahead = Prefetch(
                    lambda number: _Issue(plan, way, made, auto, consumer, late=number - start > AHEAD),
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
        way, marks = self._plan.way, self._consumer.marks
        if isinstance(way, Transfer):
            way.check()
            marks.append(way.mark())  # behind its work with the batch before
            if self._ahead is None and len(marks) > AHEAD:
                way.wait_for(marks.popleft(), lambda: False)
        return Issued(next(self.made), None) if self._ahead is None else next(self._ahead)

    def hand_over(self, issued: Issued[MadeBatch], epoch: int, number: int) -> MadeBatch:
        """Batch `number` of an epoch on its device, for the consumer's stream."""
        plan, way = self._plan, self._plan.way
        if way is None:
            return issued.value
        if self._ahead is None:
            issued = _issued(plan, way, issued.value)
        made = way.hand_over(issued)
        return made._replace(batch=mapped(plan, made.batch, epoch, number))

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
        plan: LoaderPlan,
        way: Transfer,
        made: Prefetch[MadeBatch, Slice],
        auto: Auto | None,
        consumer: _Consumer,
        *,
        late: bool,
    ) -> None:
        self._plan, self._way, self._from, self._auto = plan, way, made, auto
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
        return _issued(self._plan, self._way, made)


def _issued(plan: LoaderPlan, way: Transfer | Direct, made: MadeBatch) -> Issued[MadeBatch]:
    def work(bus: Bus) -> MadeBatch:
        whole = made if made.rest is None else made.rest(bus)
        return whole._replace(batch=on_device(plan, whole, bus))

    return way.issue(work)
