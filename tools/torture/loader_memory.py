"""FastLoader leaves no memory, thread or descriptor behind: not in epochs, nor abandoned loops, nor failed decodes.

Images are small, so that a leak per batch or per iterator shows; `soak` has the large ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import psutil
from kernel_images import jpeg
from tqdm import tqdm

from iofast import FastDataset, FastLoader, open_writer
from iofast import transforms as T
from iofast.errors import DecodeError
from tools.scenes import Camera, Surfaces, photograph
from tools.torture import Failed

IMAGES, BATCH = 256, 64
EPOCHS = 200  # of each container
ABANDONED = 5_000  # iterators of each container that gave one batch
FAILURES = 100_000  # images, through the loader, half of them through the dataset
# Bytes, after the first tenth; a context per iterator would be 5 GB. Resident memory grows by 7 MiB in 14,000 loaders
# and then no more, as malloc's arenas get holes: so the bytes in use have the stricter limit.
ALLOWED, IN_USE = 8 << 20, 1 << 20
BLOCKS = 10_000  # objects of Python: one per iterator, and the thousand failures that a loader remembers
HEADER = (
    "| what | times | resident MiB | grew by KiB | allocated grew by KiB | threads | descriptors |",
    "|---|--:|--:|--:|--:|--:|--:|",
)


@dataclass(frozen=True)
class Left:
    """The resources of the process at one moment."""

    resident: int
    in_use: int  # bytes allocated and not freed; 0 if the C library does not count them
    blocks: int
    threads: int
    descriptors: int


def run() -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packed, plain, broken = _make(folder)
        rows = [
            *(watched(f"epochs, {kind}", _epochs(FastDataset(path))) for kind, path in (packed, plain)),
            *(watched(f"abandoned iterators, {kind}", _abandoned(FastDataset(path))) for kind, path in (packed, plain)),
            *(watched(f"failed decodes, {kind}", _failed(FastDataset(path))) for kind, path in broken),
        ]
    return [*HEADER, *rows]


def _make(folder: Path) -> tuple[tuple[str, Path], tuple[str, Path], list[tuple[str, Path]]]:
    """The same images packed and plain, and both with every image cut off."""
    rng = np.random.default_rng(1)
    surfaces = Surfaces(1)
    images = [jpeg(photograph("meadow", Camera(rng, surfaces, 96, 128))) for _ in range(32)] * (IMAGES // 32)
    kinds: list[tuple[str, Path]] = []
    for name, keep in (("whole", 1.0), ("broken", 0.6)):
        (folder / name / "class").mkdir(parents=True)
        with open_writer(folder / f"{name}.lmdb") as writer:
            for number, data in enumerate(images):
                cut = data[: int(len(data) * keep)]
                writer.write({"jpg": cut, "cls": 0})
                (folder / name / "class" / f"{number:05d}.jpg").write_bytes(cut)
        kinds += [("packed", folder / f"{name}.lmdb"), ("plain folder", folder / name)]
    return kinds[0], kinds[1], kinds[2:]


def _epochs(dataset: FastDataset) -> Iterator[int]:
    loader = FastLoader(dataset, BATCH, True, transform=[T.RandomResizedCrop(32), T.RandomHorizontalFlip()])
    for epoch in range(EPOCHS):
        for number, _ in enumerate(loader):
            if epoch % 10 == 9 and number == 1:
                break
        yield 1


def _abandoned(dataset: FastDataset) -> Iterator[int]:
    loader = FastLoader(dataset, 8, True, transform=[T.RandomResizedCrop(32)])
    for _ in range(ABANDONED):
        next(iter(loader))
        yield 1


def _failed(dataset: FastDataset) -> Iterator[int]:
    """A failed batch raises its first error, after trying every image."""
    loader = FastLoader(dataset, BATCH, True, transform=[T.RandomResizedCrop(32)])
    for _ in range(FAILURES // 2 // BATCH):
        _expect_failure(lambda: next(iter(loader)))
        yield BATCH
    for number in range(FAILURES // 2):
        _expect_failure(lambda number=number: dataset[number % len(dataset)])
        yield 1


def _expect_failure(function: Callable[[], object]) -> None:
    try:
        function()
    except DecodeError:
        return
    raise Failed("an image that was cut off was decoded")


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
    # medians of a tenth: at one moment, resident memory also depends on how many iterators are ending
    begin, end = _median(warm[: max(1, len(seen) // 10)]), _median(seen[-max(1, len(seen) // 10) :])
    growth, in_use = end.resident - begin.resident, end.in_use - begin.in_use
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
    return Left(
        process.memory_info().rss, _in_use(), sys.getallocatedblocks(), process.num_threads(), process.num_fds()
    )


class _Mallinfo(ctypes.Structure):
    """mallinfo2 of glibc: `uordblks` bytes are in use in all arenas; blocks with a map of their own are not counted."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    ]


_MMAP_THRESHOLD, _LARGE = -3, 128 << 10  # glibc's option and its value at the start


def _keep_large_blocks_apart() -> None:
    """Keep large blocks out of the arenas. Otherwise glibc puts larger and larger ones there, and a table of Python's
    that doubles once, to 3.7 MiB, looks like 390 bytes a loader."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def _in_use() -> int:
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):  # musl, macOS, glibc before 2.33
        return 0
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks)


def _median(seen: list[Left]) -> Left:
    """Each figure's median."""
    return Left(*(int(statistics.median(figures)) for figures in zip(*map(astuple, seen), strict=True)))
