"""FastLoader leaves no memory, thread or descriptor behind: not in epochs, nor abandoned loops, nor failed decodes.

Small images, so that what is leaked per batch or per iterator is not lost among pixels; `soak` has the large ones.
"""

from __future__ import annotations

import gc
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from PIL import Image
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
ALLOWED = 4 << 20  # bytes, after the first tenth; 100 bytes per failure would be 10 MB, a context per iterator 5 GB
BLOCKS = 10_000  # objects of Python: one per iterator, and the thousand failures that a loader remembers


@dataclass(frozen=True)
class Left:
    """What the process holds at one moment."""

    resident: int
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
    return ["| what | times | resident MiB | grew by KiB | threads | descriptors |", "|---|--:|--:|--:|--:|--:|", *rows]


def _make(folder: Path) -> tuple[tuple[str, Path], tuple[str, Path], list[tuple[str, Path]]]:
    """The same images packed and plain, and both with every image cut off."""
    rng = np.random.default_rng(1)
    surfaces = Surfaces(1)
    images = [_jpeg(photograph("meadow", Camera(rng, surfaces, 96, 128))) for _ in range(32)] * (IMAGES // 32)
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


def _jpeg(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


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
    """A failed batch tells its first error, and every image of it was tried."""
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
    """Do all the steps; a row of the table, or `Failed` where something stayed."""
    process = psutil.Process(os.getpid())
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
    # medians of a tenth: what is resident at one moment also says how many iterators are just ending
    growth = int(_median(seen[-max(1, len(seen) // 10) :]) - _median(warm[: max(1, len(seen) // 10)]))
    if growth > ALLOWED:
        raise Failed(f"{name}: resident memory grew by {growth / 2**20:.1f} MiB over {total} times")
    if last.blocks - warm[0].blocks > BLOCKS:
        raise Failed(f"{name}: {last.blocks - warm[0].blocks} more objects after {total} times")
    if last.threads > seen[0].threads or last.descriptors > warm[0].descriptors:
        raise Failed(f"{name}: {warm[0]} at first, {last} at last")
    return (
        f"| {name} | {total:,} | {last.resident / 2**20:.0f} | {growth >> 10:,} | {last.threads} | {last.descriptors} |"
    )


def _look(process: psutil.Process) -> Left:
    gc.collect()
    return Left(process.memory_info().rss, sys.getallocatedblocks(), process.num_threads(), process.num_fds())


def _median(seen: list[Left]) -> float:
    return statistics.median(left.resident for left in seen)
