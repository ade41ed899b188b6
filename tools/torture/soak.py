"""200 epochs of FastLoader with images of usual size leave nothing behind.

Each epoch has a new iterator with new threads and contexts, as in training; every tenth is left in the middle.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from iofast import FastDataset, FastLoader, pack
from iofast import transforms as T
from tools import sample_photographs
from tools.torture._memory import HEADER, watched

EPOCHS = 200
WARM = 20  # epochs until allocators have reached their size


def run() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        sample_photographs.make(Path(folder, "images"), per_class=24, val=1, quiet=True)
        pack(Path(folder, "images"), Path(folder, "out.lmdb"), resize=256)
        dataset = FastDataset(Path(folder, "out.lmdb"), split="train")
        loader = FastLoader(dataset, batch_size=64, shuffle=True, transform=T.train(224), dtype=torch.float32)
        for epoch in range(WARM):
            # until all batches of the queue are made, which takes the most memory: with 0.05 s on a busy machine, four
            # later blocks looked like a leak of 64 MiB
            _epoch(loader, epoch, wait=0.2)
        row = watched(f"epochs of {len(dataset)} images, 64 a batch, 224 x 224, float32", _epochs(loader))
    return [*HEADER, row]


def _epochs(loader: FastLoader) -> Iterator[int]:
    for epoch in range(EPOCHS):
        _epoch(loader, epoch)
        yield 1


def _epoch(loader: FastLoader, epoch: int, wait: float = 0.0) -> None:
    """A function of its own, so that its last batch is gone when memory is looked at."""
    for number, _ in enumerate(loader):
        time.sleep(wait)
        if epoch % 10 == 9 and number == 1:
            break
