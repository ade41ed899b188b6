"""The program under compute-sanitizer: a few batches of every pass and of every way to decode. No figures."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.gpu.job import Job
from benchmarks.gpu.stress import WAYS
from iofast import transforms as T
from iofast.beside import wait

FEW = 2  # batches


def run(job: Job) -> None:
    for decode in WAYS:
        job.attempt(f"compute-sanitizer, decode={decode!r}", partial(looked_at, job, decode))


def looked_at(job: Job, decode: str) -> None:
    """Each pixel of a few batches is read on the device."""
    colours = [T.RandAugment(), T.GaussianBlur(9), T.Normalize.imagenet(), T.RandomErasing(0.5)]
    transform = [T.RandomResizedCrop(job.size), *colours]
    options = {"shuffle": False, "dtype": torch.bfloat16, "decode": decode, "num_workers": 2}
    loader = job.loader("packed.lmdb", FEW * job.batch, transform=transform, **options)
    for images, _ in loader:
        if not torch.isfinite(images).all():
            raise RuntimeError("a batch is not finite")
    wait(job.device)
