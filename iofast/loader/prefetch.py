"""Work done ahead of its consumer by threads, delivered in order. Knows nothing of images, batches or torch.

Contract: results come in the order of their numbers, whatever order the threads finish in; at most `depth` of them are
in the making or waiting; an exception in a thread reaches the consumer at the number it belongs to; when the consumer
leaves (end, `close`, garbage collection, interpreter exit) the threads end. If the implementation is inconsistent with
this, it is a bug.

The threads wait on a `SimpleQueue`, whose `put` may be called from a finalizer at any point of any thread: a lock taken
there could be held by the very frame that was interrupted.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, Self, TypeVar, cast

from iofast.errors import WorkerError

T = TypeVar("T")
S = TypeVar("S")

_JOIN_S = 10.0  # a thread ends after the slice it is in; a slice takes milliseconds, a dead disk may take for ever


class Job(ABC, Generic[T, S]):
    """One result in the making: `prepare` once, `run` for every slice, then `finish` once, each in any thread."""

    @abstractmethod
    def prepare(self) -> list[S]:
        """Make ready, and say into which slices the work is cut."""

    @abstractmethod
    def run(self, number: int, part: S) -> None:
        """Do one slice in thread `number`; two calls with the same number never overlap."""

    @abstractmethod
    def finish(self) -> T:
        """The result, once every slice was run."""


class _Promise(Generic[T, S]):
    """A job, and what came of it."""

    def __init__(self, job: Job[T, S]) -> None:
        self.job = job
        self.left = 0
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.result: T | None = None
        self.error: BaseException | None = None

    def begin(self, tasks: SimpleQueue[_Task[T, S] | None]) -> None:
        parts = self.job.prepare()
        self.left = len(parts)
        for part in parts:
            tasks.put((self, part))
        if not parts:
            self.end()

    def run(self, number: int, part: S) -> None:
        if self.error is None:
            self.job.run(number, part)
        with self.lock:
            self.left -= 1
            last = self.left == 0
        if last and self.error is None:
            self.end()

    def end(self) -> None:
        self.result = self.job.finish()
        self.done.set()

    def fail(self, error: BaseException) -> None:
        if self.done.is_set():  # another slice failed before
            return
        if isinstance(error, StopIteration):  # to the consumer it would be the end of a shorter epoch
            stopped, error = error, WorkerError("a job raised StopIteration")
            error.__cause__ = stopped
        self.error = error
        self.done.set()


_Task = tuple[_Promise[T, S], S | None]  # None: begin


class _Stop:
    """Seen by all threads and by the finalizer, so that neither keeps the `Prefetch` itself alive."""

    asked = False


class Prefetch(Generic[T, S]):
    """An iterator over `count` results of jobs, made by `num_workers` threads up to `depth` ahead of the consumer."""

    def __init__(self, make: Callable[[int], Job[T, S]], count: int, *, num_workers: int, depth: int) -> None:
        self._make, self._count = make, count
        self._tasks: SimpleQueue[_Task[T, S] | None] = SimpleQueue()
        self._pending: deque[_Promise[T, S]] = deque()
        self._asked = 0
        self._pid = os.getpid()
        stop = _Stop()
        self._threads = [
            threading.Thread(target=_work, args=(n, self._tasks, stop), name=f"iofast-{n}", daemon=True)
            for n in range(num_workers)
        ]
        # daemon: a live iterator must not keep the interpreter from exiting; the finalizer, which runs at exit too,
        # then ends the threads before the memory they write to goes
        self._finalizer = weakref.finalize(self, _end, self._threads, self._tasks, stop, self._pid)
        for thread in self._threads:
            thread.start()
        for _ in range(depth):
            self._ask()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if os.getpid() != self._pid:
            raise WorkerError("an iterator does not survive fork: make a new one in the child process")
        if not self._pending:
            self.close()
            raise StopIteration
        promise = self._pending[0]
        promise.done.wait()
        self._pending.popleft()
        if promise.error is not None:
            self.close()
            try:
                raise promise.error
            finally:
                promise.error = None  # its traceback leads back to the promise, and so to the batch: a cycle
        self._ask()
        return cast(T, promise.result)

    def close(self) -> None:
        """End the threads and forget what they made. Calling it twice is harmless."""
        self._asked = self._count
        self._finalizer()
        while self._pending:
            self._pending.pop().error = None  # see __next__

    def _ask(self) -> None:
        if self._asked < self._count:
            promise = _Promise(self._make(self._asked))
            self._asked += 1
            self._pending.append(promise)
            self._tasks.put((promise, None))


def _work(number: int, tasks: SimpleQueue[_Task[T, S] | None], stop: _Stop) -> None:
    while (task := tasks.get()) is not None and not stop.asked:
        promise, part = task
        try:
            if part is None:
                promise.begin(tasks)
            else:
                promise.run(number, part)
        except BaseException as error:  # whatever it is belongs to the consumer
            promise.fail(error)
        del task, promise, part  # or the last batch would live until the next task
    tasks.put(None)  # for the next thread


def _end(threads: list[threading.Thread], tasks: SimpleQueue[_Task[T, S] | None], stop: _Stop, pid: int) -> None:
    stop.asked = True
    if os.getpid() != pid:  # in a forked child the threads do not exist
        return
    tasks.put(None)  # each passes it on, so that a Ctrl-C here cannot come between them
    if threading.current_thread() in threads or sys.is_finalizing():
        return  # collected by one of its own threads, which cannot wait for itself
    end = time.monotonic() + _JOIN_S
    for thread in threads:
        if thread.ident is not None:  # else the machine had no more threads to give, and the constructor raised
            thread.join(max(0.0, end - time.monotonic()))
