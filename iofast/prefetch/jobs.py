"""Work done ahead of its consumer by threads, delivered in order. Knows nothing of images or batches.

Contract: results come in the order of their numbers; at most `depth` of them are in the making or ready; an exception
in a thread reaches the consumer at the number it belongs to; a Ctrl-C in `next` loses at most the result that was being
handed over; the threads end with the consumer (end, `close`, garbage collection, interpreter exit). Anything else is a
bug.

Threads wait on a `SimpleQueue`, because a finalizer may call its `put` anywhere: a lock taken there could be held by
the interrupted frame itself. Parked threads wait on a second one. The consumer waits on no Python code either: a Ctrl-C
in `Event.wait` can leave the event's lock held for ever.
"""

import os
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, Self, TypeVar, cast

from iofast.errors import OptionError, WorkerError
from iofast.prefetch.threads import (
    EXITING,
    JOIN_S,
    compute_alone,
    join_thread,
    name_for_kernel,
    rests,
    start_thread,
    works,
)
from iofast.prefetch.times import PrefetchTimes, Spent

T = TypeVar("T")
S = TypeVar("S")

_PARK = object()  # a task: the thread that takes it waits in `parked`
STEP_S = 0.05  # between two checks of `given_up`


class PrefetchJob(ABC, Generic[T, S]):
    """One result: `prepare` is called once, `run` for every slice, then `finish` once, each in any thread."""

    @abstractmethod
    def prepare(self) -> list[S]:
        """Prepare the work, and return its slices."""

    @abstractmethod
    def run(self, part: S) -> None:
        """Do one slice."""

    @abstractmethod
    def finish(self) -> T:
        """Return the result, after every slice."""


class _Shared:
    """What threads and finalizer share. No reference leads to the `Prefetch`, which would keep it alive."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Any] = SimpleQueue()  # (promise, slice or None), _PARK; anything else ends the thread
        self.parked: SimpleQueue[bool] = SimpleQueue()  # True wakes a parked thread, False ends it
        self.ready: deque[None] = deque()  # one entry for each ready result: a counter that needs no lock
        self.stopped = False
        self.owner: object = None

    def end(self) -> None:
        """End one thread, which ends the next one: a Ctrl-C cannot come between them."""
        self.tasks.put(None)
        self.parked.put(False)


class _Promise(Generic[T, S]):
    """A job and its result. Holds no reference back to itself, which would be a cycle in a task that was not taken."""

    def __init__(self, job: PrefetchJob[T, S]) -> None:
        self.job = job
        self.left = 0
        self.lock = threading.Lock()
        self.begun = self.finished = False
        self.done = threading.Lock()  # held until `finished`
        self.done.acquire()
        self.result: T | None = None
        self.error: BaseException | None = None

    def begin(self, shared: _Shared) -> None:
        with self.lock:
            if self.begun:  # after a Ctrl-C in `_ask` the task may be queued twice
                return
            self.begun = True
        parts = self.job.prepare()
        self.left = len(parts)
        for part in parts:
            shared.tasks.put((self, part))
        if not parts:
            self.end(shared)

    def run(self, part: S, shared: _Shared) -> None:
        if self.error is None:
            self.job.run(part)
        with self.lock:
            self.left -= 1
            last = self.left == 0
        if last and self.error is None:
            self.end(shared)

    def end(self, shared: _Shared) -> None:
        self.result = self.job.finish()
        self.deliver(shared)

    def fail(self, error: BaseException, shared: _Shared) -> None:
        if isinstance(error, StopIteration):  # the consumer would take it for the end of the epoch
            stopped, error = error, WorkerError("a job raised StopIteration")
            error.__cause__ = stopped
        with self.lock:
            if self.error is not None:  # another slice has failed already
                return
            self.error = error
        self.deliver(shared)

    def deliver(self, shared: _Shared) -> None:
        self.finished = True
        shared.ready.append(None)
        self.done.release()


class Prefetch(Generic[T, S]):
    """An iterator over the results of jobs `start` to `count` - 1, made by threads that work up to `depth` ahead.

    With `num_workers` 0 the consumer's thread makes each result in `next`. `name` is a part of the threads' names.
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
        self._put = start  # jobs below this number are queued
        self._pid = os.getpid()
        self._begun, self._ended, self._waited = time.perf_counter(), 0.0, 0.0
        self._spent: list[Spent] = []  # of each thread
        self._wanted = 0  # threads that may work; never more than do, or the last one could park
        self._threads: list[threading.Thread] = []  # kept when not needed: a Ctrl-C while one starts may be lost
        self._shared = _Shared()
        works(self._shared)
        # A Ctrl-C would end a finalizer in Python; this callback is C code, which a Ctrl-C cannot interrupt
        self._shared.owner = weakref.ref(self, self._shared.tasks.put)
        # Daemon threads let the interpreter exit beside a live iterator. The finalizer also runs at exit, and ends them
        # before their memory goes
        self._finalizer = weakref.finalize(self, _end, self._threads, self._shared, self._pid)
        if num_workers:
            try:
                self._add_thread()  # at least one is needed; `_employ` accepts fewer than wanted
            except WorkerError:
                self.close()
                raise
            self._employ(num_workers)
        else:
            self._spent.append(Spent())
        self._ask(start + depth)

    @property
    def num_workers(self) -> int:
        """Number of threads at work, without parked ones."""
        return self._wanted

    @property
    def depth(self) -> int:
        """Number of results that may be in the making or ready."""
        return self._depth

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self.take()

    def take(self, given_up: Callable[[], object] | None = None) -> T:
        """Return the next result. Raises `StopIteration` behind the last one.

        `given_up` is only for threads other than the main one: it is called every `STEP_S`, and once it returns true,
        `take` raises `WorkerError`.
        """
        if os.getpid() != self._pid:
            raise WorkerError("an iterator does not survive fork: make a new one in the child process")
        at = self._at
        self._ask(at + self._depth)  # completes a call that a Ctrl-C stopped
        promise = self._pending.get(at)
        if promise is None:
            self.close()
            raise StopIteration
        if given_up is None:  # no thread of ours, which ends by itself
            works(self._shared)
        if not promise.finished:
            if self._shared.stopped and threading.current_thread() is threading.main_thread():
                raise WorkerError(EXITING)  # in a daemon thread the wait ends with the process
            begun = time.perf_counter()
            try:
                if self._threads:
                    _wait_for(promise.done, given_up, self._shared)
                else:
                    self._work_here(promise)
            finally:
                self._waited += time.perf_counter() - begun
        if promise.error is not None:
            error = promise.error
            self.close()
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame, which would be a cycle with the batch in it
        self._ask(at + 1 + self._depth)
        self._at = at + 1  # now handed over: after an earlier Ctrl-C the next call returns it again
        del self._pending[at]
        self._shared.ready.popleft()
        return cast(T, promise.result)

    def resize(self, num_workers: int | None = None, depth: int | None = None) -> None:
        """Change the number of threads or the depth. Call in the consumer's thread, between results.

        A larger depth is used at once, a smaller one after the ready results were taken. Threads that are not needed
        park after the tasks queued so far, and wake at once when needed again. If the machine has fewer threads to
        give, `num_workers` has their number. Raises `OptionError` for values below 1.
        """
        for name, value in (("num_workers", num_workers), ("depth", depth)):
            if value is not None and value < 1:
                raise OptionError(f"{name} must be 1 or more, found {value}")
        if not self._finalizer.alive or os.getpid() != self._pid:
            return
        self._depth = self._depth if depth is None else depth
        if num_workers is not None:
            self._employ(num_workers)
        self._ask(self._at + self._depth)

    def times(self) -> PrefetchTimes:
        """Return the times so far. Any thread may call it, also after the end."""
        spent, batches = list(self._spent), self._at - self._start
        return PrefetchTimes(
            wall_s=(self._ended or time.perf_counter()) - self._begun,
            batches=batches,
            made=batches + len(self._shared.ready),
            wait_s=self._waited,
            work_s=sum(each.work_s for each in spent),
            cpu_s=sum(each.cpu_s for each in spent),
        )

    def close(self) -> None:
        """End the threads and drop their results. Calling it twice is harmless."""
        self._count = 0
        self._finalizer()
        while self._pending:
            self._pending.popitem()[1].error = None  # its traceback refers to the promise: a cycle
        self._ended = self._ended or time.perf_counter()

    def _ask(self, stop: int) -> None:
        """Queue the jobs before number `stop`.

        A Ctrl-C may come between any two calls: the next `_ask` completes the work, and queuing twice is harmless.
        """
        stop = min(stop, self._count)
        while self._put < stop:
            if self._put not in self._pending:
                self._pending[self._put] = _Promise(self._make(self._put))
            self._shared.tasks.put((self._pending[self._put], None))
            self._put += 1

    def _work_here(self, promise: _Promise[T, S]) -> None:
        """Do tasks in this thread until `promise` is finished."""
        if sys.is_finalizing():  # making a tensor may end the process then
            raise WorkerError(EXITING)
        try:
            while not promise.finished:
                _do(self._shared.tasks.get_nowait(), self._shared, self._spent[0])
        except BaseException:  # a Ctrl-C after taking a task: it is lost
            self.close()
            raise

    def _employ(self, num_workers: int) -> None:
        """Park, wake or start threads. A Ctrl-C between two lines may leave a thread too many at work, never none."""
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
            except WorkerError:  # the system has no more threads to give
                return

    def _add_thread(self) -> None:
        spent, name = Spent(), f"iofast-{self._name}{len(self._threads)}"
        thread = threading.Thread(target=_work, args=(self._shared, spent), name=name, daemon=True)
        self._spent.append(spent)
        self._threads.append(thread)
        start_thread(thread)
        self._wanted += 1


def _wait_for(done: threading.Lock, given_up: Callable[[], object] | None, shared: _Shared) -> None:
    if given_up is None:
        rests(shared)
        done.acquire()
        works(shared)
        return
    while not done.acquire(timeout=STEP_S):
        if given_up():
            raise WorkerError("the wait for this result was given up")


def _work(shared: _Shared, spent: Spent) -> None:
    name_for_kernel()
    compute_alone()
    while (task := shared.tasks.get()) is _PARK or (isinstance(task, tuple) and not shared.stopped):
        if isinstance(task, tuple):
            _do(task, shared, spent)
        elif not shared.parked.get():
            break
        del task  # it would keep its batch alive until the next task
    shared.end()


def _do(task: tuple[_Promise[Any, Any], Any], shared: _Shared, spent: Spent) -> None:
    promise, part = task
    try:
        with spent.counted():
            if part is None:
                promise.begin(shared)
            else:
                promise.run(part, shared)
    except BaseException as error:  # the consumer raises it
        promise.fail(error, shared)


def _end(threads: list[threading.Thread], shared: _Shared, pid: int) -> None:
    shared.stopped = True
    shared.end()  # before any Python call, which a Ctrl-C could interrupt
    rests(shared)
    if os.getpid() != pid:  # a forked child has no such threads
        return
    if threading.current_thread() in threads or sys.is_finalizing():
        return  # one of the threads dropped the last reference, and cannot wait for itself
    end = time.monotonic() + JOIN_S
    for thread in threads:
        join_thread(thread, max(0.0, end - time.monotonic()))
