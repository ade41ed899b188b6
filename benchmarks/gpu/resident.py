"""A dataset in the device's memory: images of CIFAR's size, cropped, flipped and normalised there."""

from functools import partial

import torch

from benchmarks.gpu.clock import rate
from benchmarks.gpu.job import Job
from iofast import FastLoader
from iofast import transforms as T

BATCHES = (512, 1024, 2048, 4096)
SECONDS = 1.5
ASKED = 1e6
TRANSFORM = [T.RandomResizedCrop(32, scale=(0.5, 1.0)), T.RandomHorizontalFlip(), T.Normalize.imagenet()]


def run(job: Job) -> None:
    found: dict[int, float] = {}
    for batch in (64,) if job.quick else BATCHES:
        job.attempt(f"batches of {batch}", partial(measured, job, batch, found))
    if found:
        best = max(found, key=lambda batch: found[batch])
        job.figure(f"the best, batches of {best}", found[best], "images/s", least=ASKED)


def measured(job: Job, batch: int, found: dict[int, float]) -> None:
    """Add the rate with batches of this size."""
    images = 16 * batch if job.quick else 50_000
    options = {"dtype": torch.bfloat16, "cache": "device"}
    loader = job.loader("small.lmdb", images, batch, transform=TRANSFORM, **options)
    rate(job, loader, 0.5, 2)  # decoded once, kernels compiled
    found[batch] = epochs(job, loader, 0.2 if job.quick else SECONDS)
    job.figure(f"batches of {batch}", found[batch], "images/s")


def epochs(job: Job, loader: FastLoader, seconds: float) -> float:
    """Images a second over whole epochs: theirs are short, so their beginnings count."""
    runs: list[tuple[int, float]] = []
    while sum(taken for _, taken in runs) < seconds:
        images = len(loader) * loader.options.batch_size
        runs.append((images, images / rate(job, loader, float("inf"), 0).images))
    return sum(images for images, _ in runs) / sum(taken for _, taken in runs)
