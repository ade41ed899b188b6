"""However loops end, loaders leave nothing behind and the next epoch is whole: 10,000 loaders dropped, 6,000 faults.

Nor do 200 epochs with images of usual size, every tenth of which is left in the middle, nor 100,000 failed decodes in
the kernel, whose slots are zero. A watchdog ends the run with the stacks of all threads if nothing moves for two
minutes.
"""

import faulthandler
import gc
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from kernel_images import batch_of, jpeg

from iofast import FastDataset, FastLoader, kernel, open_writer, pack
from iofast import transforms as T
from iofast.loader.batches import BatchJob
from tools import sample_photographs
from tools.torture import Failed
from tools.torture._memory import HEADER, watched

IMAGES, BATCH = 64, 4
CYCLES = 10_000  # of each container
FAULTS = 2_000  # of each kind
EPOCHS, WARM = 200, 20
FAILURES = 100_000  # images
QUIET_S = 120  # a busy machine stalls for seconds
FAULT_KINDS = (ValueError, SystemExit, MemoryError)


def run() -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        packed, folder = _make(Path(name) / "images.lmdb")
        parts: dict[str, Iterator[int]] = {
            "made and dropped, packed": _cycles(packed),
            "made and dropped, plain folder": _cycles(folder),
            "a fault in a thread": _faults(packed),
            "epochs, 64 a batch, 224 x 224, float32": _epochs(Path(name)),
            "failed decodes in the kernel": _failures(),
        }
        return [*HEADER, *(watched(name, _guarded(steps)) for name, steps in parts.items())]


def _guarded(steps: Iterator[int]) -> Iterator[int]:
    """The same steps; if one does not come, the process prints its stacks and ends."""
    try:
        faulthandler.dump_traceback_later(QUIET_S, exit=True)
        for step in steps:
            faulthandler.dump_traceback_later(QUIET_S, exit=True)
            yield step
    finally:
        faulthandler.cancel_dump_traceback_later()


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
