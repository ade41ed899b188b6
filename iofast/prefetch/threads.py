"""How a loader's threads start, call themselves, compute and end."""

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
    """Start a thread. Raises `WorkerError` where there is none to be had.

    `Thread.start` waits for an `Event`, and a Ctrl-C there could leave the new thread stuck: another one calls it.
    """
    if sys.is_finalizing():  # from then on a new thread never runs, and nothing would end the wait for it
        raise WorkerError(EXITING)
    answer: SimpleQueue[RuntimeError | None] = SimpleQueue()

    def start() -> None:
        try:
            thread.start()
            answer.put(None)
        except RuntimeError as error:
            answer.put(error)

    try:
        if threading.current_thread() is threading.main_thread():
            start_new_thread(start, ())
        else:
            start()
        if (error := answer.get()) is not None:
            raise error
    except RuntimeError as error:
        raise WorkerError(
            f"no thread for the loader: {error}; a limit of processes (ulimit -u, the container's pids) counts them"
        ) from None


def join_thread(thread: threading.Thread, seconds: float) -> None:
    """Wait for a thread to end, if it ever began: the machine may have had no more threads to give, or the interpreter
    exits while another thread is just starting this one, which then finds that it is to stop.
    """
    with contextlib.suppress(RuntimeError):
        thread.join(seconds)


def name_for_kernel() -> None:
    """Give the calling thread its Python name also in the kernel, where monitors and `top -H` look."""
    if sys.version_info < (3, 14):  # from then on Python does
        with contextlib.suppress(OSError):  # no /proc: another system
            comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
            comm.write_text(threading.current_thread().name)  # the kernel takes the first 15 bytes


def compute_alone() -> None:
    """Let the calling thread run torch's operations without helping threads, as a DataLoader's worker does.

    The limits of other threads stay as they are. `torch.set_num_threads` is no such limit: what it sets in one thread,
    every thread gets that uses torch for the first time later.
    """
    torch.get_num_threads()  # first: at its first use in a thread, torch sets that thread's limits to the process's
    for limit in _limits():
        limit(1)


@functools.cache
def _limits() -> tuple[Callable[[int], object], ...]:
    """The functions of OpenMP and MKL that limit the calling thread alone, in the libraries that this torch uses.

    The names are looked up as the linker did it for torch: among what the whole process shares, then in torch's own
    libraries. A torch without OpenMP has one pool of threads for all callers, and nothing to limit.
    """
    libraries = ctypes.CDLL(None), ctypes.CDLL(torch._C.__file__)
    names = "omp_set_num_threads", "MKL_Set_Num_Threads_Local"
    found = (next((getattr(own, name) for own in libraries if hasattr(own, name)), None) for name in names)
    return tuple(limit for limit in found if limit is not None)
