"""The training process decodes the lazy batches of a DataLoader, between its workers and the loop.

Like torch's own thread for page-locked memory, a thread takes what the workers send and passes it on. Everything else
of the DataLoader stays as it is: order, samplers and their random numbers, workers, limits, errors. Without workers
a batch is decoded as soon as it is collated.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch._utils import ExceptionWrapper
from torch.utils._pytree import tree_leaves, tree_map

from iofast.run import notes, shadow
from iofast.run.decoding import Threads
from iofast.run.deferred import Deferred, waiting

_POLL = 0.2  # seconds between looks whether the loop has ended


class BatchLoop:
    """A loop over a DataLoader: threads that decode for it, and `facts` of its line in the script.

    Images and waits are counted without the first batches, while workers start and images are made twice, and without
    pauses between epochs.
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        processors = len(os.sched_getaffinity(0))
        workers = facts["workers"]
        self.threads = Threads(min(workers or processors, processors))
        self._facts = facts
        self._first = max(1, workers) * -(-2 * shadow.FIRST // facts["batch_size"])
        self._last = 0

    def pause(self) -> None:
        """Leave out the time up to the next batch."""
        self._first = max(1, self._first)

    def got(self, begun: int, batch: Any) -> None:
        """Count a batch for which the loop has waited since `begun`, in nanoseconds."""
        now = time.perf_counter_ns()
        if self._first:
            self._first -= 1
        else:
            self._facts["images"] += _rows(batch)
            self._facts["nanoseconds"] += now - self._last
            self._facts["waited"] += now - begun
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
        begun, images = time.perf_counter_ns(), len(each.contents.rows)
        tensor = each.make(self.threads)
        self._facts["decoded"] += images
        notes.count("decoded for the loop", images)
        notes.notes().nanoseconds["decoding for the loop"] += time.perf_counter_ns() - begun
        return tensor


def _rows(batch: Any) -> int:
    """Rows of a batch: of its first tensor, in a container or by itself; 0 without one."""
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else [batch]
    return next((len(value) for value in values if isinstance(value, torch.Tensor) and value.dim()), 0)


class Outbox(queue.Queue[Any]):
    """What the loop takes from, in the place of DataLoader's queue."""

    def __init__(self, loop: BatchLoop) -> None:
        super().__init__()
        self._loop = loop
        self._begun: int | None = None  # of a wait; DataLoader asks again after some seconds

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return an item of DataLoader's queue: a number and a batch. Raises what that queue raised."""
        begun = self._begun = self._begun or time.perf_counter_ns()
        item = super().get(block, timeout)
        self._begun = None
        if isinstance(item, Exception):
            raise item
        if isinstance(item[0], int):
            self._loop.got(begun, item[1])
        else:  # the answer of a persistent worker: a new epoch
            self._loop.pause()
        return item


def attach(loader: Any, iterator: Any) -> None:
    """Decode the batches of an iterator of a DataLoader."""
    size, data, sampler = getattr(loader.batch_sampler, "batch_size", 1), loader.dataset, type(loader.sampler).__name__
    size = size if isinstance(size, int) and size > 0 else 1
    own = getattr(data, "__dict__", {})
    name = f"DataLoader({type(data).__name__}, {size}, num_workers={loader.num_workers})"
    facts = notes.notes().loaders.setdefault(
        f"{name} at {notes.line_of_script(installed=False)}",
        {
            "decoded": 0,
            "images": 0,
            "nanoseconds": 0,
            "waited": 0,
            "processes": [],
            "workers": loader.num_workers,
            "batch_size": size,
            "shuffled": "Random" in sampler or "Distributed" in sampler,
            "folder": str(own["root"]) if {"root", "samples"} <= own.keys() else None,
        },
    )
    loop = BatchLoop(facts)
    if loader.num_workers == 0:
        facts["processes"] = [os.getpid()]
        iterator.__dict__["_iofast"] = loop
        return
    facts["processes"] += [worker.pid for worker in iterator._workers]
    inbox, outbox, stop = iterator._data_queue, Outbox(loop), threading.Event()
    weakref.finalize(iterator, stop.set)
    # The thread must not know the iterator: it would never die, and the workers of a loop that was left would stay.
    thread = threading.Thread(target=_pass_on, args=(inbox, outbox, stop, loop), name="iofast-run", daemon=True)
    waiting.add(getattr(iterator, "_pin_memory_thread", thread))  # unpickles what the workers send
    thread.start()
    iterator._data_queue = outbox


def _pass_on(inbox: Any, outbox: Outbox, stop: threading.Event, loop: BatchLoop) -> None:
    try:
        while not stop.is_set():
            try:
                item = inbox.get(timeout=_POLL)
            except queue.Empty:
                continue
            except Exception as error:  # a worker died, or the queue is closed: the loop finds out
                outbox.put(error)
                stop.wait(_POLL)
                continue
            outbox.put(_decoded(item, loop))
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


def fetched(fetch: Callable[[], Any], loop: BatchLoop) -> Any:
    """Return the next batch of a DataLoader without workers."""
    begun, thread = time.perf_counter_ns(), threading.current_thread()
    waiting.add(thread)
    try:
        batch = fetch()
    finally:
        waiting.discard(thread)
    batch = loop.finished(batch)
    loop.got(begun, batch)
    notes.write_sometimes()
    return batch
