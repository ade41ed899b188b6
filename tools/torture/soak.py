"""Resident memory is flat over 200 epochs of FastLoader.

Each epoch has a new iterator with new threads and contexts, as in training; every tenth is left in the middle.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from pathlib import Path

import psutil
import torch
from tqdm import tqdm

from iofast import FastDataset, FastLoader, pack
from iofast import transforms as T
from tools import sample_photographs
from tools.torture import Failed

EPOCHS = 200
WARM = 20  # epochs until allocators have what they will keep
ALLOWED = 8 << 20  # bytes from epoch 20 to 200; one leaked batch an epoch would be 1.7 GB


def run() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        sample_photographs.make(Path(folder, "images"), per_class=24, val=1, quiet=True)
        pack(Path(folder, "images"), Path(folder, "out.lmdb"), resize=256)
        dataset = FastDataset(Path(folder, "out.lmdb"), split="train")
        loader = FastLoader(dataset, batch_size=64, shuffle=True, transform=T.train(224), dtype=torch.float32)
        resident = [_epoch(loader, epoch) for epoch in tqdm(range(EPOCHS), desc="soak", unit="epoch")]
    growth = max(resident[WARM:]) - resident[WARM]
    if growth > ALLOWED:
        raise Failed(f"resident memory grew by {growth / 2**20:.1f} MiB from epoch {WARM} to {EPOCHS}")
    shown = ", ".join(f"{epoch}: {resident[epoch - 1] / 2**20:.1f}" for epoch in (1, WARM, 50, 100, 150, EPOCHS))
    return [
        f"- {len(dataset)} images an epoch, {loader.options.batch_size} a batch, 224 x 224, float32",
        f"- resident MiB after epoch {shown}",
        f"- most growth after epoch {WARM}: {growth / 2**20:.1f} MiB (allowed: {ALLOWED >> 20})",
    ]


def _epoch(loader: FastLoader, epoch: int) -> int:
    for number, _ in enumerate(loader):
        if epoch < WARM:
            # until all batches of the queue are made, which takes the most memory: with 0.05 s on a busy machine, four
            # later blocks looked like a leak of 64 MiB
            time.sleep(0.2)
        if epoch % 10 == 9 and number == 1:
            break
    gc.collect()
    return psutil.Process(os.getpid()).memory_info().rss
