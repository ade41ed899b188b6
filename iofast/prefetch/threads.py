"""How a loader's threads start, get their names, compute and end."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import torch

from iofast.errors import WorkerError

EXITING = "no batch can be made while the interpreter exits: ask for it earlier, not in __del__ or an atexit function"


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
