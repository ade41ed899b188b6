"""Daemon threads that use results are held while the interpreter exits.

Python ends such a thread where it next asks for the GIL; until 3.13 it unwinds the thread's stack, and C++ code on that
stack ends the process: SIGABRT, "terminate called without an active exception". Most of torch's functions give the GIL
away and ask for it again, so 6 of 6 programs whose daemon threads compute with torch end like that.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import weakref

_PATIENCE_S = 3.0  # for threads in the middle of a step
_STEP_S = 0.005
_WAITING = ("threading", "queue")  # modules whose functions wait without C++ code on the stack

_exiting = threading.Event()
_never = threading.Lock()  # what held threads wait for
_working: dict[object, threading.Thread] = {}  # by what the thread takes results from


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
weakref.finalize(
    _never, int
)  # registers the exit function of all finalizers, which end threads: it must run after ours
atexit.register(_hold)
