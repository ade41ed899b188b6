"""Processes that the tools and benchmarks start, and their memory."""

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence

import psutil


@contextlib.contextmanager
def sampled(look: Callable[[], int], every: float) -> Iterator[list[int]]:
    """What `look` returns every so many seconds while the block runs, and at its end."""
    found, stopped = list[int](), threading.Event()

    def run() -> None:
        while not stopped.wait(every):
            found.append(look())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stopped.set()
        thread.join()
        found.append(look())


def peak_memory(command: Sequence[str]) -> int:
    """The most bytes that a command and its descendants held at once, sampled 20 times a second.

    Raises `CalledProcessError` if the command fails.
    """
    process = psutil.Popen(command)
    with sampled(lambda: memory(process.pid), 0.05) as found:
        status = process.wait()
    if status:
        raise subprocess.CalledProcessError(status, command)
    return max(found)


def memory(pid: int) -> int:
    """Bytes of a process and its descendants: the sum of proportional set sizes, so that a shared page counts once."""
    found = 0
    for each in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it has just ended
            found += int(each.memory_full_info().pss)
    return found


def family(pid: int) -> list[psutil.Process]:
    """A process and its descendants, as far as they still exist."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def kill(process: psutil.Process) -> None:
    """Kill a process and its descendants, as far as they still exist."""
    for each in family(process.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
