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
from torch.utils._pytree import tree_leaves, tree_map

from iofast.run import notes, shadow
from iofast.run.contents import Threads
from iofast.run.deferred import Deferred, lazily, waiting


class BatchLoop:
    """A loop over a DataLoader: what it takes from in the place of DataLoader's queue `inbox`, if there are workers.

    It counts into `facts` of its line in the script: images and waits without the first batches, while workers start
    and images are made twice, and without pauses between epochs. All times are in nanoseconds of a clock that the
    processes of a machine share.
    """

    def __init__(self, facts: dict[str, Any], inbox: Any = None) -> None:
        self._inbox, self._facts = inbox, facts
        self._arrived = deque[tuple[Any, Callable[[], Any]]]()  # numbers, and what returns their batches
        processors = len(os.sched_getaffinity(0))
        workers = facts["workers"]
        self._threads = Threads(min(workers or processors, processors))
        self._first = max(1, workers) * -(-2 * shadow.FIRST // facts["batch_size"])
        self._last = 0
        self._begun: int | None = None  # of a wait; DataLoader asks again after some seconds

    def get(self, timeout: float | None = None) -> Any:
        """Return an item of DataLoader's queue: a number and a batch. Raises what that queue raised."""
        begun = self._begun = self._begun or time.perf_counter_ns()
        if not self._arrived:
            self._receive(timeout=timeout)
        with suppress(queue.Empty):
            while Deferred.born:
                self._receive(block=False)
        number, finished = self._arrived[0]  # a Ctrl-C while it is decoded loses no batch
        try:
            batch = finished()
        except Exception as error:
            where = "while iofast decoded a batch of DataLoader's workers"
            batch = error if number is None else cast(Any, ExceptionWrapper)(where=where)
        self._arrived.popleft()
        self._begun = None
        if number is None:
            raise batch
        if isinstance(number, int):
            self._count(begun, batch)
        else:  # the answer of a persistent worker: a new epoch
            self._first = max(1, self._first)
        return number, batch

    def _receive(self, **how: Any) -> None:
        """Take an item of the inbox as DataLoader would, and begin to decode it."""
        try:
            with lazily():
                number, batch = self._inbox.get(**how)
        except queue.Empty:
            raise
        except Exception as error:  # a worker died, or the queue is closed
            self._arrived.append((None, partial(_raise, error)))
        else:
            self._arrived.append((number, self._begin(batch)))

    def fetched(self, fetch: Callable[[], Any]) -> Any:
        """Return the next batch of an iterator without workers."""
        begun = time.perf_counter_ns()
        with lazily():
            batch = fetch()
        batch = self._begin(batch)()
        self._count(begun, batch)
        return batch

    def _begin(self, batch: Any) -> Callable[[], Any]:
        """Begin to decode a batch. What this returns waits for it, and returns it or raises what went wrong."""
        under_way = self._threads.under_way = []
        try:
            made = self._without_lazy(batch)
        except Exception as error:
            return partial(_raise, error)

        def finished() -> Any:
            notes.notes().nanoseconds["decoding for the loop"] += sum(wait() for wait in under_way)
            notes.write_sometimes()
            return made

        return finished

    def _without_lazy(self, batch: Any) -> Any:
        """Return a batch without lazy tensors, in containers that torch knows and in attributes of objects.

        Without any it is the same object: not all containers can be made again.
        """
        if not Deferred.born:
            return batch
        leaves = tree_leaves(batch)
        for leaf in leaves:
            own: Any = None if isinstance(leaf, torch.Tensor) else getattr(leaf, "__dict__", None)
            for name, value in own.items() if type(own) is dict else ():
                own[name] = self._replaced(value, tree_leaves(value))
        return self._replaced(batch, leaves)

    def _replaced(self, value: Any, leaves: list[Any]) -> Any:
        return tree_map(self._made, value) if any(isinstance(leaf, Deferred) for leaf in leaves) else value

    def _made(self, each: Any) -> Any:
        if not isinstance(each, Deferred):
            return each
        self._facts["decoded"] += len(each.contents.rows)
        return each.make(self._threads)

    def _count(self, begun: int, batch: Any) -> None:
        """Count a batch for which the loop has waited since `begun`."""
        now, facts = time.perf_counter_ns(), self._facts
        if self._first:
            self._first -= 1
        else:
            facts["images"] += _rows(batch)
            facts["nanoseconds"] += now - self._last
            facts["waited"] += now - begun
            facts["begun"], facts["ended"] = facts["begun"] or self._last, now
        self._last = now


def _raise(error: Exception) -> None:
    raise error


def _rows(batch: Any) -> int:
    """Rows of a batch: of its first tensor, in a container or by itself; 0 without one."""
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else [batch]
    return next((len(value) for value in values if isinstance(value, torch.Tensor) and value.dim()), 0)


def attach(loader: Any, iterator: Any) -> None:
    """Decode the batches of an iterator of a DataLoader."""
    facts = _facts(loader)
    loop = BatchLoop(facts, getattr(iterator, "_data_queue", None))
    if loader.num_workers == 0:
        facts["processes"] = [os.getpid()]
        # A proxy: what a loop leaves ends at once, as without iofast.
        iterator._next_data = partial(loop.fetched, partial(type(iterator)._next_data, weakref.proxy(iterator)))
        return
    facts["processes"] += [worker.pid for worker in iterator._workers]
    if (unpickling := getattr(iterator, "_pin_memory_thread", None)) is not None:
        waiting.add(unpickling)
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
