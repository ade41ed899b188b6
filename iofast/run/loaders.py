"""The training process decodes the lazy batches of a DataLoader, between its workers and the loop.

Like torch's own thread for page-locked memory, a thread takes what the workers send and passes it on, from the first
lazy batch on: 6 to 10 % of a step are lost where it only passes on. Everything else of the DataLoader stays as it is:
order, samplers and their random numbers, workers, limits, errors. Without workers a batch is decoded as soon as it is
collated.
"""

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch._utils import ExceptionWrapper
from torch.utils._pytree import tree_leaves, tree_map

from iofast.run import notes, shadow
from iofast.run.contents import Threads
from iofast.run.deferred import Deferred, waiting

_POLL = 0.2  # seconds between looks whether the loop has ended


class BatchLoop(queue.Queue[Any]):
    """A loop over a DataLoader: what it takes from in the place of DataLoader's queue `inbox`, if there are workers.

    It has threads that decode, and counts into `facts` of its line in the script: images and waits without the first
    batches, while workers start and images are made twice, and without pauses between epochs. All times are in
    nanoseconds of a clock that the processes of a machine share.
    """

    def __init__(self, facts: dict[str, Any], inbox: Any = None) -> None:
        super().__init__()
        self._inbox, self._passing = inbox, False
        self.stop = threading.Event()  # of the thread that passes on
        processors = len(os.sched_getaffinity(0))
        workers = facts["workers"]
        self.threads = Threads(min(workers or processors, processors))
        self._facts = facts
        self._first = max(1, workers) * -(-2 * shadow.FIRST // facts["batch_size"])
        self._last = 0
        self._begun: int | None = None  # of a wait; DataLoader asks again after some seconds

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return an item of DataLoader's queue: a number and a batch. Raises what that queue raised."""
        begun = self._begun = self._begun or time.perf_counter_ns()
        item = super().get(block, timeout) if self._passing else self._of_workers(timeout)
        self._begun = None
        if isinstance(item, Exception):
            raise item
        if isinstance(item[0], int):
            self.got(begun, item[1])
        else:  # the answer of a persistent worker: a new epoch
            self._first = max(1, self._first)
        return item

    def _of_workers(self, timeout: float | None) -> Any:
        """Take an item as DataLoader would; behind the first one with lazy tensors the thread does it."""
        thread = threading.current_thread()
        waiting.add(thread)
        try:
            item = _decoded(self._inbox.get(timeout=timeout), self)
        finally:
            waiting.discard(thread)
        if self._facts["decoded"]:
            self._passing = True
            begun = threading.Thread(target=_pass_on, args=(self._inbox, self), name="iofast-run", daemon=True)
            waiting.add(begun)
            begun.start()
        return item

    def got(self, begun: int, batch: Any) -> None:
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

    def finished(self, batch: Any) -> Any:
        """Return a batch without lazy tensors, in containers that torch knows and in attributes of objects.

        Without any it is the same object: not all containers can be made again.
        """
        if not Deferred.born:
            return batch
        leaves = tree_leaves(batch)
        for leaf in leaves:
            own: Any = None if isinstance(leaf, torch.Tensor) else getattr(leaf, "__dict__", None)
            for name, value in own.items() if type(own) is dict else ():
                own[name] = self._without_lazy(value, tree_leaves(value))
        return self._without_lazy(batch, leaves)

    def _without_lazy(self, value: Any, leaves: list[Any]) -> Any:
        return tree_map(self._made, value) if any(isinstance(leaf, Deferred) for leaf in leaves) else value

    def _made(self, each: Any) -> Any:
        if not isinstance(each, Deferred):
            return each
        self._facts["decoded"] += len(each.contents.rows)
        return each.make(self.threads)


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
        iterator._next_data = partial(_fetched, type(iterator)._next_data, weakref.proxy(iterator), loop)
        return
    facts["processes"] += [worker.pid for worker in iterator._workers]
    # The thread must not know the iterator: it would never die, and the workers of a loop that was left would stay.
    weakref.finalize(iterator, loop.stop.set)
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


def _pass_on(inbox: Any, loop: BatchLoop) -> None:
    try:
        while not loop.stop.is_set():
            try:
                item = inbox.get(timeout=_POLL)
            except queue.Empty:
                continue
            except Exception as error:  # a worker died, or the queue is closed: the loop finds out
                loop.put(error)
                loop.stop.wait(_POLL)
                continue
            loop.put(_decoded(item, loop))
            del item
            notes.write_sometimes()
    finally:
        loop.threads.pool.shutdown(wait=False)


def _decoded(item: Any, loop: BatchLoop) -> Any:
    """Return an item of DataLoader's queue, (number, batch), without lazy tensors."""
    number, batch = item
    try:
        return number, loop.finished(batch)
    except Exception:
        return number, cast(Any, ExceptionWrapper)(where="while iofast decoded a batch of DataLoader's workers")


def _fetched(fetch: Callable[[Any], Any], iterator: Any, loop: BatchLoop) -> Any:
    """Return the next batch of an iterator without workers."""
    begun, thread = time.perf_counter_ns(), threading.current_thread()
    waiting.add(thread)
    try:
        batch = fetch(iterator)
    finally:
        waiting.discard(thread)
    batch = loop.finished(batch)
    loop.got(begun, batch)
    notes.write_sometimes()
    return batch
