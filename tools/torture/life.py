"""However loops end, loaders leave nothing behind and the next epoch is whole: 10,000 loaders dropped, 6,000 faults.

Nor do 200 epochs with images of usual size, every tenth of which is left in the middle, nor 100,000 failed decodes in
the kernel, whose slots are zero. A watchdog ends the run with the stacks of all threads if nothing moves for two
minutes.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import psutil
import torch
from kernel_images import batch_of, jpeg
from tqdm import tqdm

from iofast import FastDataset, FastLoader, kernel, open_writer, pack
from iofast import transforms as T
from iofast.loader.batches import BatchJob
from tools import sample_photographs
from tools.torture import Failed

IMAGES, BATCH = 64, 4
CYCLES = 10_000  # of each container
FAULTS = 2_000  # of each kind
EPOCHS, WARM = 200, 20
FAILURES = 100_000  # images
QUIET_S = 120  # a busy machine stalls for seconds
FAULT_KINDS = (ValueError, SystemExit, MemoryError)
# Bytes; a context per iterator would be 5 GB. Resident memory grows by 7 MiB in 14,000 loaders and then no more, as
# malloc's arenas get holes: so the bytes in use have the stricter limit.
ALLOWED, IN_USE = 4 << 20, 1 << 20
BLOCKS = 10_000  # objects of Python: one per iterator, and the thousand failures that a loader remembers
HEADER = (
    "| what | times | resident MiB | grew by KiB | allocated grew by KiB | threads | descriptors |",
    "|---|--:|--:|--:|--:|--:|--:|",
)
_MMAP_THRESHOLD, _LARGE = -3, 128 << 10  # glibc's option and its value at the start


class Left(NamedTuple):
    """The resources of this process at one moment."""

    resident: int
    in_use: int  # bytes allocated and not freed; 0 if it cannot be counted
    blocks: int
    threads: int
    descriptors: int

    @classmethod
    def now(cls) -> Left:
        gc.collect()
        own = psutil.Process()
        in_use = (
            psutil.heap_info().heap_used if hasattr(psutil, "heap_info") else 0
        )  # blocks with a map of their own apart
        return cls(own.memory_info().rss, in_use, sys.getallocatedblocks(), own.num_threads(), own.num_fds())


def run() -> list[str]:
    with contextlib.suppress(OSError, AttributeError):
        # Large blocks stay out of the arenas. Otherwise glibc puts larger and larger ones there, and a table of
        # Python's that doubles once, to 3.7 MiB, looks like 390 bytes a loader.
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)
    with tempfile.TemporaryDirectory() as name:
        packed, folder = _make(Path(name) / "images.lmdb")
        parts: dict[str, Iterator[int]] = {
            "made and dropped, packed": _cycles(packed),
            "made and dropped, plain folder": _cycles(folder),
            "a fault in a thread": _faults(packed),
            "epochs, 64 a batch, 224 x 224, float32": _epochs(Path(name)),
            "failed decodes in the kernel": _failures(),
        }
        try:
            return [*HEADER, *(watched(name, steps) for name, steps in parts.items())]
        finally:
            faulthandler.cancel_dump_traceback_later()


def watched(name: str, steps: Iterator[int]) -> str:
    """Take all steps and return a row of the table. Raises `Failed` if something was left behind.

    If a step does not come, the process prints its stacks and ends.
    """
    total, seen, next_look = 0, list[Left](), time.monotonic()
    faulthandler.dump_traceback_later(QUIET_S, exit=True)
    for done in tqdm(steps, desc=name, unit="step"):
        faulthandler.dump_traceback_later(QUIET_S, exit=True)
        total += done
        if time.monotonic() >= next_look:
            seen.append(Left.now())
            next_look = time.monotonic() + 0.25
    seen.append(Left.now())
    first, warm, last = seen[0], seen[len(seen) // 10 : -1] or seen, seen[-1]
    # Resident memory changes by a whole batch from look to look, so the peak of the second half counts against that of
    # the first; the bytes in use, which have no large blocks, by the median of a tenth at each end.
    middle, tenth = len(seen) // 2, max(1, len(seen) // 10)
    halves = [max(look.resident for look in part) for part in (seen[:middle] or seen, seen[middle:])]
    ends = [int(median(look.in_use for look in part)) for part in (warm[:tenth], seen[-tenth:])]
    growth, in_use, blocks = halves[1] - halves[0], ends[1] - ends[0], last.blocks - warm[0].blocks
    if growth > ALLOWED or in_use > IN_USE or blocks > BLOCKS:
        raise Failed(
            f"{name}: resident memory grew by {growth / 2**20:.1f} MiB over {total} times, allocated memory by "
            f"{in_use / 2**20:.1f} MiB, objects by {blocks}"
        )
    if last.threads > first.threads or last.descriptors > warm[0].descriptors:
        raise Failed(f"{name}: {warm[0]} at first, {last} at last")
    rest = f"{last.threads} | {last.descriptors}"
    return f"| {name} | {total:,} | {last.resident / 2**20:.0f} | {growth >> 10:,} | {in_use >> 10:,} | {rest} |"


def _make(path: Path) -> tuple[FastDataset, FastDataset]:
    """Small JPEGs, packed at `path` with their numbers as labels, and plain."""
    rng, folder = np.random.default_rng(1), path.with_suffix("") / "class"
    folder.mkdir(parents=True)
    with open_writer(path) as writer:
        for number in range(IMAGES):
            data = jpeg(rng.integers(0, 255, (40, 48, 3), np.uint8))
            writer.write({"jpg": data, "cls": number})
            (folder / f"{number:05d}.jpg").write_bytes(data)
    return FastDataset(path), FastDataset(folder.parent)


def _loader(dataset: FastDataset, num_workers: int = 3) -> FastLoader:
    return FastLoader(dataset, BATCH, True, transform=[T.RandomResizedCrop(24)], num_workers=num_workers)


def _cycles(dataset: FastDataset) -> Iterator[int]:
    """Make a loader, take a few batches and leave it in one of five ways."""
    chance = random.Random(0)
    for cycle in range(CYCLES):
        loader = _loader(dataset, chance.randrange(1, 6))
        batches = iter(loader)
        for _ in range(chance.randrange(4)):
            next(batches)
        way = cycle % 5
        if way == 0:
            batches.close()  # type: ignore[attr-defined]
        elif way == 1:
            ring: list[object] = [batches]
            ring.append(ring)
        elif way == 2:
            other = iter(loader)
            next(other)
        elif way == 3:
            _expect(ZeroDivisionError, lambda: [1 / 0 for _ in batches])  # noqa: B023  called at once
        batches = other = loader = ring = None  # type: ignore[assignment]
        if cycle % 100 == 99:
            gc.collect()
        yield 1


def _faults(dataset: FastDataset) -> Iterator[int]:
    """A fault in the work of one slice arrives once, at its batch, and the next epoch is whole."""
    chance, work = random.Random(1), BatchJob.run
    loader = _loader(dataset)
    whole = _labels(loader)
    for number in range(FAULTS * len(FAULT_KINDS)):
        kind, left = FAULT_KINDS[number % len(FAULT_KINDS)], [chance.randrange(len(loader))]

        def failing(job: BatchJob, *where: object, kind: type[BaseException] = kind, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise kind("injected")
            work(job, *where)  # type: ignore[arg-type]

        BatchJob.run = failing  # type: ignore[method-assign, assignment]
        try:
            _rewind(loader)
            seen: list[list[int]] = []
            _expect(kind, lambda: seen.extend(labels.tolist() for _, labels in loader))  # noqa: B023
        finally:
            BatchJob.run = work  # type: ignore[method-assign]
        if seen != whole[: len(seen)] or len(seen) == len(whole):
            raise Failed(f"{kind.__name__} {number}: batches before it were {seen}")
        if number % 20 == 0 and _labels(loader) != whole:
            raise Failed(f"{kind.__name__} {number}: the next epoch was another one")
        yield 1


def _epochs(folder: Path) -> Iterator[int]:
    """Each epoch has a new iterator, threads and contexts, as in training. The first ones let allocators grow."""
    sample_photographs.make(folder / "photos", per_class=40, val=1, quiet=True)
    pack(folder / "photos", folder / "photos.lmdb", resize=256)
    dataset = FastDataset(folder / "photos.lmdb", split="train")
    loader = FastLoader(dataset, 64, True, transform=T.train(224), dtype=torch.float32)
    for epoch in range(WARM + EPOCHS):
        for number, _ in enumerate(loader):
            # until all batches of the queue are made, which takes the most memory: with 0.05 s on a busy machine, four
            # later blocks looked like a leak of 64 MiB
            time.sleep(0.2 if epoch < WARM else 0.0)
            if epoch % 10 == 9 and number == 1:
                break
        _ = None  # memory is looked at without the last batch
        yield int(epoch >= WARM)


def _failures() -> Iterator[int]:
    """Images that are truncated, cut in the header, of other formats, or no images."""
    rng, cuts = np.random.default_rng(1), []
    for options in ({}, {"progressive": True}):
        whole = jpeg(rng.integers(0, 255, (96, 128, 3), np.uint8), **options)
        cuts += [whole[: int(len(whole) * share)] for share in (0.02, 0.1, 0.5, 0.9)]
    payloads = [*cuts, b"", b"\xff\xd8", b"not an image at all", rng.bytes(1000), b"\xff\xd8" + rng.bytes(1000)]
    source, _alive = batch_of(payloads)
    boxes = np.tile(np.array([0, 0, 128, 96, 64, 64, 0, 0], np.int32), (len(payloads), 1))
    out, status = np.empty((len(payloads), 64, 64, 3), np.uint8), np.zeros(len(payloads), np.int32)
    context = kernel.Context(kernel.DecodeOptions())
    for _ in range(FAILURES // len(payloads)):
        kernel.decode_batch(context, source, boxes, np.zeros(len(payloads), np.uint8), out, status, 0, len(payloads))
        if not status.all() or out.any():
            raise Failed(f"statuses {status.tolist()}, or a failed slot that is not zero")
        yield len(payloads)
    context.close()


def _rewind(loader: FastLoader) -> None:
    """To the start of epoch 0; `set_epoch(0)` would continue an epoch 0 that was left."""
    loader.load_state_dict(loader.state_dict() | {"epoch": 0, "batch": 0})


def _labels(loader: FastLoader) -> list[list[int]]:
    _rewind(loader)
    return [labels.tolist() for _, labels in loader]


def _expect(kind: type[BaseException], function: Callable[[], object]) -> None:
    try:
        function()
    except kind:
        return
    raise Failed(f"{kind.__name__} was expected and did not come")
