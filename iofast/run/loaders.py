"""The training process decodes the lazy batches of a DataLoader, between its workers and the loop.

Where the loop asks for a batch, threads begin to decode all that have arrived. Everything else of the DataLoader stays
as it is: order, samplers and their random numbers, workers, limits, errors. Without workers a batch is decoded as soon
as it is collated.
"""

import os
import queue
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast

import torch
from torch._utils import ExceptionWrapper
from torch.utils._pytree import tree_leaves

from iofast.run import notes, shadow
from iofast.run.contents import Job, Threads, wait_for
from iofast.run.deferred import Deferred, lazily, loops, made


class BatchLoop(Threads):
    """A loop over a DataLoader: what it takes from in the place of DataLoader's queue `inbox`, if there are workers.

    It counts into `facts` of its line in the script: images and waits without the first batches, while workers start
    and images are made twice, and without pauses between epochs. All times are in nanoseconds of a clock that the
    processes of a machine share.
    """

    def __init__(self, facts: dict[str, Any], inbox: Any = None, *, pins: bool = False) -> None:
        processors, workers = len(os.sched_getaffinity(0)), facts["workers"]
        super().__init__(min(workers or processors, processors), facts, pins=pins)
        self._inbox = inbox
        self._arrived = deque[tuple[Any, Any, list[Job]]]()  # items of the queue, and what they wait for
        self._first = max(1, workers) * -(-2 * shadow.FIRST // facts["batch_size"])
        self._last = 0
        self._begun: int | None = None  # of a wait; DataLoader asks again after some seconds

    def get(self, timeout: float | None = None) -> Any:
        """Return an item of DataLoader's queue: a number and a batch. Raises what that queue raised."""
        begun = self._begun = self._begun or time.perf_counter_ns()
        if not self._arrived:
            self._receive(timeout=timeout)
        with suppress(queue.Empty):
            while self.facts["decoded"]:
                self._receive(block=False)
        notes.write_sometimes()
        number, batch, under_way = self._arrived[0]  # a Ctrl-C while it is decoded loses no batch
        try:
            wait_for(under_way)
        except Exception:
            batch = cast(Any, ExceptionWrapper)(where="while iofast decoded a batch of DataLoader's workers")
        self._arrived.popleft()
        self._begun = None
        if isinstance(batch, Exception):
            raise batch
        if isinstance(number, int):
            self._count(begun, batch)
        else:  # the answer of a persistent worker: a new epoch
            self._first = max(1, self._first)
        return number, batch

    def _receive(self, **how: Any) -> None:
        """Take an item of the inbox as DataLoader would, and begin to decode it."""
        under_way = self.under_way = list[Job]()
        try:
            with lazily(self):
                number, batch = self._inbox.get(**how)
        except queue.Empty:
            raise
        except Exception as error:  # a worker died, or the queue is closed
            number, batch = None, error
        self._arrived.append((number, batch, under_way))

    def fetched(self, fetch: Callable[[], Any]) -> Any:
        """Return the next batch of an iterator without workers."""
        begun = time.perf_counter_ns()
        with lazily(self):
            batch = fetch()
        if any(isinstance(leaf, Deferred) for leaf in tree_leaves(batch)):  # not all containers can be made again
            batch = made(batch)
        self._count(begun, batch)
        notes.write_sometimes()
        return batch

    def _count(self, begun: int, batch: Any) -> None:
        """Count a batch for which the loop has waited since `begun`."""
        now, facts = time.perf_counter_ns(), self.facts
        if self._first:
            self._first -= 1
        else:
            facts["images"] += _rows(batch)
            facts["nanoseconds"] += now - self._last
            facts["waited"] += now - begun
            facts["begun"], facts["ended"] = facts["begun"] or self._last, now
        self._last = now


def _rows(batch: Any) -> int:
    """Rows of a batch: of its first tensor, in a container or by itself; 0 without one."""
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else [batch]
    return next((len(value) for value in values if isinstance(value, torch.Tensor) and value.dim()), 0)


def attach(loader: Any, iterator: Any) -> None:
    """Decode the batches of an iterator of a DataLoader."""
    facts = _facts(loader)
    loop = BatchLoop(facts, getattr(iterator, "_data_queue", None), pins=iterator._pin_memory)
    if loader.num_workers == 0:
        facts["processes"] = [os.getpid()]
        # A proxy: what a loop leaves ends at once, as without iofast.
        iterator._next_data = partial(loop.fetched, partial(type(iterator)._next_data, weakref.proxy(iterator)))
        return
    facts["processes"] += [worker.pid for worker in iterator._workers]
    if loop.pins:
        loops[iterator._pin_memory_thread] = loop
    iterator._data_queue = loop


def _facts(loader: Any) -> dict[str, Any]:
    """Return what is noted of a DataLoader at this line of the script, whose loops are counted together."""
    size, own, sampler = getattr(loader.batch_sampler, "batch_size", 1), loader.dataset, type(loader.sampler).__name__
    size = size if isinstance(size, int) and size > 0 else 1
    attributes = getattr(own, "__dict__", {})
    name = f"DataLoader({type(own).__name__}, {size}, num_workers={loader.num_workers})"
    facts: dict[str, Any] = dict.fromkeys(("decoded", "images", "nanoseconds", "waited", "begun", "ended"), 0)
    facts |= {"processes": [], "workers": loader.num_workers, "batch_size": size}
    facts["shuffled"] = "Random" in sampler or "Distributed" in sampler
    facts["folder"] = str(attributes["root"]) if {"root", "samples"} <= attributes.keys() else None
    return notes.notes().loaders.setdefault(f"{name} at {notes.line_of_script(installed=False)}", facts)
