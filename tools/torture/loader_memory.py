"""FastLoader leaves no memory, thread or descriptor behind: not in epochs, nor abandoned loops, nor failed decodes.

Images are small, so that a leak per batch or per iterator shows; `soak` has the large ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from kernel_images import jpeg

from iofast import FastDataset, FastLoader, open_writer
from iofast import transforms as T
from iofast.errors import DecodeError
from tools.scenes import Camera, Surfaces, photograph
from tools.torture import Failed
from tools.torture._memory import HEADER, watched

IMAGES, BATCH = 256, 64
EPOCHS = 200  # of each container
ABANDONED = 5_000  # iterators of each container that gave one batch
FAILURES = 100_000  # images, through the loader, half of them through the dataset


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
