"""How many images a second are decoded, cropped and resized: by the CPU's kernel, and by the GPU?"""

from __future__ import annotations

import statistics
from functools import partial

from benchmarks.gpu.clock import rate
from benchmarks.gpu.job import Job
from iofast import FastLoader
from iofast import transforms as T

IMAGES = 400_000  # of an epoch: more than a round takes
SOURCES = {"packed": "packed.lmdb", "originals": "originals"}
WAYS = ("cpu", "gpu")  # each may have all cores
OTHERS = (64, 1024)  # further batch sizes
ROUNDS, SECONDS = 3, 1.2

FROM_PACKED, FROM_ORIGINALS = 100_000, 21_500

Rates = dict[str, float]


def run(job: Job) -> None:
    for source, least in (("packed", FROM_PACKED), ("originals", FROM_ORIGINALS)):
        rates = _measured(job, source, job.batch, ROUNDS)
        if rates:
            best = max(rates, key=lambda way: rates[way])
            job.figure(f"{source}, end to end: the best way ({best})", rates[best], "images/s", least=least)
    for batch in () if job.quick else OTHERS:
        _measured(job, "packed", batch, 1)


def _measured(job: Job, source: str, batch: int, rounds: int) -> Rates:
    """Images a second of each way that works; they run in turn, so that a slow moment affects all."""
    transform = [T.RandomResizedCrop(job.size), T.RandomHorizontalFlip()]
    loaders: dict[str, FastLoader] = {}
    found: dict[str, list[float]] = {}

    def one(way: str) -> None:
        if way not in loaders:
            images = 64 * batch if job.quick else IMAGES
            options = {"num_workers": job.cores, "prefetch": 4, "decode": way}
            loaders[way] = job.loader(SOURCES[source], images, batch, transform=transform, **options)
        made = rate(job, loaders[way], 0.2 if job.quick else SECONDS, 2 if job.quick else 8)
        found.setdefault(way, []).append(made)

    ways = list(WAYS)
    for number in range(1 if job.quick else rounds):
        for way in ways:
            job.attempt(f"{source}, batches of {batch}, decode={way!r}", partial(one, way))
        ways = [way for way in ways if len(found.get(way, [])) > number]  # the others have failed
    rates = {way: statistics.median(values) for way, values in found.items()}
    for way, value in rates.items():
        job.figure(f"{source}, batches of {batch}, {way}: {loaders[way].stats.decode}", value, "images/s")
    return rates
