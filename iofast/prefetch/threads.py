"""How a loader's threads start, get their names, compute and end.

A `Follower` is a thread beside the consumer: it is told where the consumer is, and works for the batches after that.

Daemon threads that use results (`works`, `rests`) are held while the interpreter exits. Python ends such a thread where
it next asks for the GIL; until 3.13 it unwinds the thread's stack, and C++ code on that stack ends the process:
SIGABRT, "terminate called without an active exception". Most of torch's functions give the GIL away and ask for it
again, so 6 of 6 programs whose daemon threads compute with torch end like that.
"""

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
import weakref
from _thread import start_new_thread
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

import torch

from iofast.errors import WorkerError

JOIN_S: Final = 10.0  # a thread ends after its slice, which takes milliseconds, or for ever on a dead disk
NEVER: Final = sys.maxsize  # a batch that the consumer does not come to
WAKE: Final = -1  # a report that only wakes the thread
EXITING = "no batch can be made while the interpreter exits: ask for it earlier, not in __del__ or an atexit function"

_PATIENCE_S = 3.0  # for threads in the middle of a step
_STEP_S = 0.005
_WAITING = ("threading", "queue")  # modules whose functions wait without C++ code on the stack

_exiting = threading.Event()
_never = threading.Lock()  # what held threads wait for
_working: dict[object, threading.Thread] = {}  # by what the thread takes results from


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises `WorkerError` if the system has none to give, or the interpreter exits.

    `Thread.start` waits for an `Event`, and a Ctrl-C there could leave the new thread stuck. So the main thread has
    another thread call it.
    """
    if sys.is_finalizing():  # a new thread would never run, and waiting for it never end
        raise WorkerError(EXITING)
    result: SimpleQueue[RuntimeError | None] = SimpleQueue()

    def start() -> None:
        try:
            thread.start()
            result.put(None)
        except RuntimeError as error:
            result.put(error)

    try:
        if threading.current_thread() is threading.main_thread():
            start_new_thread(start, ())
        else:
            start()
        if (error := result.get()) is not None:
            raise error
    except RuntimeError as error:
        raise WorkerError(
            f"no thread for the loader: {error}; a limit of processes (ulimit -u, the container's pids) counts them"
        ) from None


def join_thread(thread: threading.Thread, seconds: float) -> None:
    """Wait for a thread to end. A thread that never began, or is just being started at exit, is not waited for."""
    with contextlib.suppress(RuntimeError):
        thread.join(seconds)


def name_for_kernel() -> None:
    """Give the calling thread its Python name in the kernel too, for monitors and `top -H`."""
    if sys.version_info < (3, 14):  # later versions do it themselves
        with contextlib.suppress(OSError):  # no /proc on this system
            comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
            comm.write_text(threading.current_thread().name)  # the kernel takes the first 15 bytes


def compute_alone() -> None:
    """Let the calling thread run torch's operations without helper threads, as a DataLoader's worker does.

    Other threads keep their limits. `torch.set_num_threads` would not do: threads that use torch later inherit it.
    """
    torch.get_num_threads()  # at its first use in a thread, torch sets the thread's limits to the process's
    for limit in _limits():
        limit(1)


@functools.cache
def _limits() -> tuple[Callable[[int], object], ...]:
    """Return the functions of OpenMP and MKL that limit the calling thread, from the libraries that torch uses.

    Names are looked up in the linker's order: in the process's global names, then in torch's own libraries. A torch
    without OpenMP has one pool for all threads and nothing to limit.
    """
    libraries = ctypes.CDLL(None), ctypes.CDLL(torch._C.__file__)
    names = "omp_set_num_threads", "MKL_Set_Num_Threads_Local"
    functions = (next((getattr(each, name) for each in libraries if hasattr(each, name)), None) for name in names)
    return tuple(function for function in functions if function is not None)


class Plan(ABC):
    """What the thread of a `Follower` does, and what both share. No reference leads to the `Follower`."""

    tick: float | None = None  # seconds until `advance` is called again without a report

    def __init__(self) -> None:
        self.batches: SimpleQueue[int] = SimpleQueue()  # to which the consumer has come, and `WAKE`
        self.wanted = 0  # the thread need not wake up for batches below this one; `NEVER` once it has ended
        self.stop = False
        self.error: Exception | None = None

    @abstractmethod
    def reach(self, batch: int) -> None:
        """Note that the consumer has come to `batch`."""

    @abstractmethod
    def advance(self) -> bool:
        """Do a part of the work, and return whether there is more to do at once. It returns soon after `stop`."""

    def close(self) -> None:  # noqa: B027  most have nothing to drop
        """Drop what was begun; the thread ends."""

    def wake(self) -> None:
        """Wake the thread. May be called in a finalizer."""
        self.batches.put(WAKE)

    def run(self) -> None:
        """Follow the reports, until `stop` is set, or nothing more is wanted."""
        more = False
        while not self.stop and self.wanted < NEVER:
            with contextlib.suppress(Empty):
                if (batch := self.batches.get(timeout=0 if more else self.tick)) != WAKE:
                    self.reach(batch)
            if self.batches.empty() and not self.stop:  # else there are further reports
                more = self.advance()


class Follower:
    """A thread that runs a plan beside a consumer, which reports its place with `ask`.

    It ends with the plan, with `close`, with this object, and with the interpreter.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._thread = threading.Thread(target=_follow, args=(plan,), name="iofast-readahead", daemon=True)
        # a daemon, a finalizer that also runs at exit, a queue whose `put` a finalizer may call: see jobs.py
        self._finalizer = weakref.finalize(self, _end, self._thread, plan, os.getpid())
        try:
            start_thread(self._thread)
        except RuntimeError as error:  # no thread to give: the decoding threads need theirs more
            plan.error, plan.wanted = error, NEVER

    @property
    def error(self) -> Exception | None:
        """The error that ended the thread early. The decoding threads meet it at the batch it belongs to."""
        return self._plan.error

    def ask(self, batch: int) -> None:
        """Report that the consumer has come to `batch`. Never blocks."""
        if batch >= self._plan.wanted:
            self._plan.batches.put(batch)

    def close(self) -> None:
        """End the thread. Calling it twice is harmless."""
        self._finalizer()


def _follow(plan: Plan) -> None:
    name_for_kernel()
    try:
        plan.run()
    except Exception as error:  # the decoding threads meet it at the batch it belongs to, if it lasts
        plan.error = error
    finally:
        plan.wanted = NEVER
        if not sys.is_finalizing():
            plan.close()


def _end(thread: threading.Thread, plan: Plan, pid: int) -> None:
    plan.stop, plan.wanted = True, NEVER
    if os.getpid() != pid:  # a forked child has no such thread
        return
    plan.wake()
    if threading.current_thread() is not thread and not sys.is_finalizing():
        join_thread(thread, JOIN_S)


def works(prefetch: object) -> None:
    """Note that the calling thread may compute with results of `prefetch`. At exit a daemon thread never returns."""
    thread = threading.current_thread()
    if not thread.daemon:
        return
    _working[prefetch] = thread  # before the question: `_hold` asks in the other order
    if _exiting.is_set():
        for each in [each for each, own in list(_working.items()) if own is thread]:
            rests(each)
        _never.acquire()


def rests(prefetch: object) -> None:
    """Note that no thread computes with results of `prefetch` until the next `works`."""
    _working.pop(prefetch, None)


def _hold() -> None:
    """Hold daemon threads at their next result, and wait until they are there."""
    _exiting.set()
    end = time.monotonic() + _PATIENCE_S
    while any(map(_computes, list(_working.values()))) and time.monotonic() < end:
        time.sleep(_STEP_S)


def _computes(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return thread.is_alive() and frame is not None and frame.f_globals.get("__name__") not in _WAITING


_never.acquire()
# This registers the exit function of all finalizers, which end threads: it must run after ours
weakref.finalize(_never, int)
atexit.register(_hold)
