"""Work done ahead of its consumer by threads, delivered in order. Knows nothing of images or batches.

Contract: results come in the order of their numbers, whatever order the threads finish in; at most `depth` of them are
in the making or waiting; an exception in a thread reaches the consumer at the number it belongs to; a Ctrl-C in `next`
loses at most the result that was being handed over; when the consumer leaves (end, `close`, garbage collection,
interpreter exit) the threads end. If the implementation is inconsistent with this, it is a bug.

The threads wait on a `SimpleQueue`, whose `put` may be called from a finalizer at any point of any thread: a lock taken
there could be held by the very frame that was interrupted. Threads that are not wanted for now wait on a second one.
Neither does the consumer wait on anything written in Python: a Ctrl-C in `Event.wait` can leave its lock held for ever,
and the thread that would set it stands.
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
from queue import Empty, SimpleQueue
from typing import Any, Generic, Self, TypeVar, cast

from iofast.errors import OptionError, WorkerError
from iofast.prefetch.threads import EXITING, compute_alone, join_thread, name_for_kernel, start_thread
from iofast.prefetch.times import Clock, Stopwatch, Times

T = TypeVar("T")
S = TypeVar("S")

_PARK = object()  # a task: the thread that takes it waits until it is wanted again
STEP_S = 0.05  # a wait that may be given up is one of many
_JOIN_S = 10.0  # a thread ends after the slice it is in; a slice takes milliseconds, a dead disk may take for ever


class PrefetchJob(ABC, Generic[T, S]):
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


class _Shared:
    """What threads and finalizer see; none of it leads to the `Prefetch`, which they would keep alive."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Any] = SimpleQueue()  # (promise, slice or None), _PARK, or anything else: the end
        self.parked: SimpleQueue[bool] = SimpleQueue()  # True wakes one parked thread, False ends it
        self.ready: deque[None] = deque()  # one for each result that waits: a number that threads change without a lock
        self.stopped = False
        self.owner: object = None

    def task(self, clock: Clock) -> Any:
        """The next thing to do. Time is taken only where there is nothing to do."""
        while True:
            try:
                task = self.tasks.get_nowait()
            except Empty:
                clock.idle.start()
                task = self.tasks.get()
                clock.idle.stop()
            if task is not _PARK:
                return task
            clock.parked.start()
            wanted = self.parked.get()
            clock.parked.stop()
            if not wanted:
                return None

    def end(self) -> None:
        """For the next thread: each passes it on, so that a Ctrl-C cannot come between them."""
        self.tasks.put(None)
        self.parked.put(False)


class _Promise(Generic[T, S]):
    """A job, and what came of it. It keeps nothing that leads back to it: a task that nobody took would be a cycle."""

    def __init__(self, job: PrefetchJob[T, S]) -> None:
        self.job = job
        self.left = 0
        self.lock = threading.Lock()
        self.begun = self.finished = False
        self.done = threading.Lock()  # held until it is finished
        self.done.acquire()
        self.result: T | None = None
        self.error: BaseException | None = None

    def begin(self, shared: _Shared) -> None:
        with self.lock:
            if self.begun:  # a Ctrl-C came between asking and noting it, so it was asked for twice
                return
            self.begun = True
        parts = self.job.prepare()
        self.left = len(parts)
        for part in parts:
            shared.tasks.put((self, part))
        if not parts:
            self.end(shared)

    def run(self, number: int, part: S, shared: _Shared) -> None:
        if self.error is None:
            self.job.run(number, part)
        with self.lock:
            self.left -= 1
            last = self.left == 0
        if last and self.error is None:
            self.end(shared)

    def end(self, shared: _Shared) -> None:
        self.result = self.job.finish()
        self.tell(shared)

    def fail(self, error: BaseException, shared: _Shared) -> None:
        if isinstance(error, StopIteration):  # to the consumer it would be the end of a shorter epoch
            stopped, error = error, WorkerError("a job raised StopIteration")
            error.__cause__ = stopped
        with self.lock:
            if self.error is not None:  # another slice failed before
                return
            self.error = error
        self.tell(shared)

    def tell(self, shared: _Shared) -> None:
        self.finished = True
        shared.ready.append(None)
        self.done.release()


class Prefetch(Generic[T, S]):
    """An iterator over the results of jobs `start` to `count` - 1, made by threads that work up to `depth` ahead.

    With `num_workers` 0 there are none: the consumer's thread makes each result when it asks for it. `name` tells the
    threads from others of iofast.
    """

    def __init__(
        self,
        make: Callable[[int], PrefetchJob[T, S]],
        count: int,
        *,
        num_workers: int,
        depth: int,
        start: int = 0,
        name: str = "",
    ) -> None:
        self._make, self._count, self._start, self._at = make, count, start, start
        self._name = name
        self._depth = depth if num_workers else 1
        self._pending: dict[int, _Promise[T, S]] = {}  # by number, from _at on
        self._put = start  # numbers below it are with the threads
        self._pid = os.getpid()
        self._life, self._wait = Stopwatch(), Stopwatch()
        self._levels = [0] * (depth + 2)  # after a Ctrl-C one more than `depth` may be there
        self._clocks: list[Clock] = []
        self._wanted = 0  # threads that are to work: never more than do, or the last one could park
        self._threads: list[threading.Thread] = []
        self._shared = _Shared()
        # A Ctrl-C that comes within a finalizer ends it; this callback is no Python code and cannot be interrupted
        self._shared.owner = weakref.ref(self, self._shared.tasks.put)
        # at exit too: a live iterator must not keep the interpreter from exiting, so the threads are daemons, and the
        # finalizer ends them before the memory they write to goes
        self._finalizer = weakref.finalize(self, _end, self._threads, self._shared, self._pid)
        self._life.start()
        if num_workers:
            try:
                self._add_thread()  # one there must be
            except WorkerError:
                self.close()
                raise
            self._employ(num_workers)
        else:
            self._clocks.append(Clock())
        self._ask(start + depth)

    @property
    def num_workers(self) -> int:
        """Threads that work; others that did are parked."""
        return self._wanted

    @property
    def depth(self) -> int:
        """Results that may be in the making or waiting."""
        return self._depth

    @property
    def ready(self) -> int:
        """Results that wait to be taken."""
        return len(self._shared.ready)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self.take()

    def take(self, given_up: Callable[[], object] | None = None) -> T:
        """The next result; `StopIteration` behind the last.

        In a thread that somebody may end meanwhile, never the main one: it looks every `STEP_S` whether it is given up,
        and raises `WorkerError` then.
        """
        if os.getpid() != self._pid:
            raise WorkerError("an iterator does not survive fork: make a new one in the child process")
        at = self._at
        self._ask(at + self._depth)  # nothing to do, but where a Ctrl-C stopped it before
        promise = self._pending.get(at)
        if promise is None:
            self.close()
            raise StopIteration
        self._levels[len(self._shared.ready)] += 1
        if not promise.finished:
            if self._shared.stopped and threading.current_thread() is threading.main_thread():
                raise WorkerError(EXITING)  # a daemon thread may wait: the exit ends it
            self._wait.start()
            try:
                if self._threads:
                    _wait_for(promise.done, given_up)
                else:
                    self._work_here(promise)
            finally:
                self._wait.stop()
        if promise.error is not None:
            error = promise.error
            self.close()
            try:
                raise error
            finally:
                del error  # its traceback leads back to this frame, and so to the batch: a cycle
        self._ask(at + 1 + self._depth)
        self._at = at + 1  # from here on it is handed over: a Ctrl-C before would find it again
        del self._pending[at]
        self._shared.ready.popleft()
        return cast(T, promise.result)

    def resize(self, num_workers: int | None = None, depth: int | None = None) -> None:
        """Change how many threads work, or how far ahead. For the consumer, between results.

        More depth is used at once, less once the results that are there were taken. A thread that is not wanted any
        more parks after the tasks before it, costs nothing and is back at once; it is ended with the others. Where the
        machine has no thread to give, it stays at those there are: `num_workers` says how many.
        """
        for name, value in (("num_workers", num_workers), ("depth", depth)):
            if value is not None and value < 1:
                raise OptionError(f"{name} must be 1 or more, found {value}")
        if not self._finalizer.alive or os.getpid() != self._pid:
            return
        if depth is not None:
            self._levels += [0] * (depth + 2 - len(self._levels))
            self._depth = depth
        if num_workers is not None:
            self._employ(num_workers)
        self._ask(self._at + self._depth)

    def times(self) -> Times:
        """What threads and consumer have done so far. From any thread, also after the end."""
        clocks, batches = list(self._clocks), self._at - self._start
        return Times(
            wall_s=self._life.read(),
            batches=batches,
            made=batches + len(self._shared.ready),
            wait_s=self._wait.read(),
            work_s=sum(clock.work_s() for clock in clocks),
            idle_s=sum(clock.idle.read() for clock in clocks),
            cpu_s=sum(clock.cpu_s() for clock in clocks),
            levels=tuple(self._levels),
        )

    def close(self) -> None:
        """End the threads and forget what they made. Calling it twice is harmless."""
        self._count = 0
        self._finalizer()
        while self._pending:
            self._pending.popitem()[1].error = None  # its traceback leads back to the promise: a cycle
        self._life.stop()

    def _ask(self, stop: int) -> None:
        """Have the results before number `stop` made, as far as there are so many.

        A Ctrl-C may come after any call; what was left undone the next `_ask` does, and what it does twice is harmless.
        """
        stop = min(stop, self._count)
        while self._put < stop:
            if self._put not in self._pending:
                self._pending[self._put] = _Promise(self._make(self._put))
            self._shared.tasks.put((self._pending[self._put], None))
            self._put += 1

    def _work_here(self, promise: _Promise[T, S]) -> None:
        """Do the tasks, as a thread would, until `promise` is kept."""
        if sys.is_finalizing():  # torch may end the process then, when it makes a tensor
            raise WorkerError(EXITING)
        try:
            with self._clocks[0].lent():
                while not promise.finished:
                    _do(0, self._shared.tasks.get_nowait(), self._shared)
        except BaseException:  # a Ctrl-C between two tasks: what was taken and not done is lost
            self.close()
            raise

    def _employ(self, num_workers: int) -> None:
        """In an order that leaves, where a Ctrl-C comes between two lines, a thread too many at work and never none."""
        while self._wanted > num_workers:
            self._wanted -= 1
            self._shared.tasks.put(_PARK)
        while self._wanted < num_workers:
            if self._wanted < sum(thread.ident is not None for thread in self._threads):
                self._shared.parked.put(True)
                self._wanted += 1
                continue
            try:
                self._add_thread()
            except WorkerError:  # no more threads to give: too many processes, or too little memory
                return

    def _add_thread(self) -> None:
        number, clock = len(self._threads), Clock()
        thread = threading.Thread(
            target=_work, args=(number, self._shared, clock), name=f"iofast-{self._name}{number}", daemon=True
        )
        self._clocks.append(clock)
        self._threads.append(thread)
        start_thread(thread)
        self._wanted += 1


def _wait_for(done: threading.Lock, given_up: Callable[[], object] | None) -> None:
    if given_up is None:
        done.acquire()
        return
    while not done.acquire(timeout=STEP_S):
        if given_up():
            raise WorkerError("nobody waits for this result any more")


def _work(number: int, shared: _Shared, clock: Clock) -> None:
    name_for_kernel()
    compute_alone()
    clock.begin()
    while isinstance(task := shared.task(clock), tuple) and not shared.stopped:
        _do(number, task, shared)
        del task  # or the last batch would live until the next task
    clock.end()
    shared.end()


def _do(number: int, task: tuple[_Promise[Any, Any], Any], shared: _Shared) -> None:
    promise, part = task
    try:
        if part is None:
            promise.begin(shared)
        else:
            promise.run(number, part, shared)
    except BaseException as error:  # whatever it is belongs to the consumer
        promise.fail(error, shared)


def _end(threads: list[threading.Thread], shared: _Shared, pid: int) -> None:
    shared.stopped = True
    shared.end()  # before any call that a Ctrl-C could follow
    if os.getpid() != pid:  # in a forked child the threads do not exist
        return
    if threading.current_thread() in threads or sys.is_finalizing():
        return  # collected by one of its own threads, which cannot wait for itself
    end = time.monotonic() + _JOIN_S
    for thread in threads:
        join_thread(thread, max(0.0, end - time.monotonic()))
