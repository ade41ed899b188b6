"""Whether steps leave memory, threads or descriptors behind."""

import contextlib
import ctypes
import gc
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
from tqdm import tqdm

from tools.torture import Failed

# Bytes; a context per iterator would be 5 GB. Resident memory grows by 7 MiB in 14,000 loaders and then no more, as
# malloc's arenas get holes: so the bytes in use have the stricter limit.
ALLOWED, IN_USE = 4 << 20, 1 << 20
BLOCKS = 10_000  # objects of Python: one per iterator, and the thousand failures that a loader remembers
HEADER = (
    "| what | times | resident MiB | grew by KiB | allocated grew by KiB | threads | descriptors |",
    "|---|--:|--:|--:|--:|--:|--:|",
)


@dataclass(frozen=True)
class Left:
    """The resources of the process at one moment."""

    resident: int
    in_use: int  # bytes allocated and not freed; 0 if it cannot be counted
    blocks: int
    threads: int
    descriptors: int


def watched(name: str, steps: Iterator[int]) -> str:
    """Take all steps and return a row of the table. Raises `Failed` if something was left behind."""
    process = psutil.Process(os.getpid())
    _keep_large_blocks_apart()
    total = 0
    seen: list[Left] = []
    next_look = time.monotonic()
    for done in tqdm(steps, desc=name, unit="step"):
        total += done
        if time.monotonic() >= next_look:
            seen.append(_look(process))
            next_look = time.monotonic() + 0.25
    seen.append(_look(process))
    warm, last = seen[len(seen) // 10 : -1] or seen, seen[-1]
    # Resident memory changes by a whole batch from look to look, so the peak of the second half counts against that of
    # the first; the bytes in use, which have no large blocks, by the median of a tenth at each end.
    middle, tenth = len(seen) // 2, max(1, len(seen) // 10)
    growth = _peak(seen[middle:]) - _peak(seen[:middle] or seen)
    in_use = _in_use_of(seen[-tenth:]) - _in_use_of(warm[:tenth])
    if growth > ALLOWED or in_use > IN_USE:
        raise Failed(
            f"{name}: resident memory grew by {growth / 2**20:.1f} MiB over {total} times, allocated memory by "
            f"{in_use / 2**20:.1f} MiB"
        )
    if last.blocks - warm[0].blocks > BLOCKS:
        raise Failed(f"{name}: {last.blocks - warm[0].blocks} more objects after {total} times")
    if last.threads > seen[0].threads or last.descriptors > warm[0].descriptors:
        raise Failed(f"{name}: {warm[0]} at first, {last} at last")
    resident = last.resident / 2**20
    rest = f"{last.threads} | {last.descriptors}"
    return f"| {name} | {total:,} | {resident:.0f} | {growth >> 10:,} | {in_use >> 10:,} | {rest} |"


def _look(process: psutil.Process) -> Left:
    gc.collect()
    in_use = psutil.heap_info().heap_used if hasattr(psutil, "heap_info") else 0  # blocks with a map of their own apart
    rss, threads = process.memory_info().rss, process.num_threads()
    return Left(rss, in_use, sys.getallocatedblocks(), threads, process.num_fds())


_MMAP_THRESHOLD, _LARGE = -3, 128 << 10  # glibc's option and its value at the start


def _keep_large_blocks_apart() -> None:
    """Keep large blocks out of the arenas. Otherwise glibc puts larger and larger ones there, and a table of Python's
    that doubles once, to 3.7 MiB, looks like 390 bytes a loader."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def _peak(seen: list[Left]) -> int:
    return max(look.resident for look in seen)


def _in_use_of(seen: list[Left]) -> int:
    return int(statistics.median(look.in_use for look in seen))
