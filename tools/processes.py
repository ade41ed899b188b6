"""Processes that the tools and benchmarks start."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence

import psutil


def peak_memory(command: Sequence[str]) -> int:
    """The most bytes that a command and its descendants held at once, sampled 20 times a second.

    The sum is of proportional set sizes: a shared page counts once. Raises `CalledProcessError` if the command fails.
    """
    process, peak = psutil.Popen(command), 0
    while process.poll() is None:
        peak = max(peak, sum(map(proportional, [process, *process.children(recursive=True)])))
        time.sleep(0.05)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak


def proportional(process: psutil.Process) -> int:
    """The proportional set size of a process in bytes; 0 if it has ended."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has just ended
        return 0


def kill(process: psutil.Process) -> None:
    """Kill a process and its descendants, as far as they still exist."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
