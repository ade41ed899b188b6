"""The training process decodes the lazy batches of a DataLoader, between its workers and the loop.

Like torch's own thread for page-locked memory, a thread takes what the workers send and passes it on. Everything else
of the DataLoader stays as it is: order, samplers and their random numbers, workers, limits, errors.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections import deque
from typing import Any, cast

from torch._utils import ExceptionWrapper
from torch.utils._pytree import tree_map

from iofast.run import notes
from iofast.run.decoding import Threads
from iofast.run.deferred import Contents, Deferred, waiting

_POLL = 0.2  # seconds between looks whether the loop has ended


def attach(iterator: Any, workers: int) -> None:
    """Put the thread between the workers of an iterator of DataLoader and its consumer."""
    inbox, outbox, stop, arrived = iterator._data_queue, queue.Queue[Any](), threading.Event(), deque[Contents]()
    weakref.finalize(iterator, stop.set)
    count = max(1, min(workers, len(os.sched_getaffinity(0))))
    # The thread must not know the iterator: it would never die, and the workers of a loop that was left would stay.
    thread = threading.Thread(
        target=_pass_on, args=(inbox, outbox, stop, arrived, count), name="iofast-run", daemon=True
    )
    pins = getattr(iterator, "_pin_memory_thread", None)
    waiting[thread if pins is None else pins] = arrived
    iterator._data_queue = outbox
    thread.start()


def _pass_on(inbox: Any, outbox: queue.Queue[Any], stop: threading.Event, arrived: deque[Contents], count: int) -> None:
    threads = Threads(count)
    try:
        while not stop.is_set():
            try:
                item = inbox.get(timeout=_POLL)
            except queue.Empty:
                continue
            except (OSError, EOFError, ValueError):  # a worker died, or the queue is closed: the loop finds out
                stop.wait(_POLL)
                continue
            outbox.put(_decoded(item, arrived, threads))
            del item
            notes.write_sometimes()
    finally:
        threads.pool.shutdown(wait=False)


def _decoded(item: Any, arrived: deque[Contents], threads: Threads) -> Any:
    """Return an item of DataLoader's queue, (number, batch), with all lazy tensors decoded."""
    if not arrived:
        return item
    number, batch = item
    begun, images = time.perf_counter_ns(), 0
    try:
        while arrived:
            own = arrived.popleft()
            own.make(threads)
            images += len(own.rows)
        batch = tree_map(lambda each: each.make() if isinstance(each, Deferred) else each, batch)
    except Exception:
        arrived.clear()
        return number, cast(Any, ExceptionWrapper)(where="while iofast decoded a batch of DataLoader's workers")
    notes.count("decoded for the loop", images)
    notes.notes().nanoseconds["decoding for the loop"] += time.perf_counter_ns() - begun
    return number, batch
