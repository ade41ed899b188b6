"""How many images a second are decoded, cropped and resized: by the CPU's kernel, by the GPU, by both?"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.clock import on_wall, rate
from benchmarks.gpu.job import Job
from iofast import FastLoader, open_reader
from iofast import transforms as T
from iofast.gpu.decode import Jpeg
from iofast.gpu.decode.libraries import checked, libraries
from iofast.loader import Split

IMAGES = 400_000  # of an epoch: more than a round takes
SOURCES = {"packed": "packed.lmdb", "originals": "originals"}
WAYS: dict[str, Any] = {"cpu": "cpu", "gpu": "gpu", "split": Split(cores=1.0)}  # each may have all cores
OTHERS = (64, 1024)  # further batch sizes
ROUNDS, SECONDS = 3, 1.2
ALONE = 0.6  # seconds for each of a library's batch sizes

OF_THE_SUM, OF_THE_CPU, FROM_ORIGINALS = 0.85, 1.5, 21_500

Rates = dict[str, float]


def run(job: Job) -> None:
    """See above."""
    for source in SOURCES:
        _asked(job, source, _measured(job, source, job.batch, ROUNDS))
    for name in libraries(job.device, 1):
        job.attempt(name, partial(library, job, name))
    for batch in () if job.quick else OTHERS:
        _measured(job, "packed", batch, 1)


def _measured(job: Job, source: str, batch: int, rounds: int) -> Rates:
    """Images a second by way, of those that could run; in turn, so that a slow moment meets all of them."""
    loaders: dict[str, FastLoader] = {}
    found: dict[str, list[float]] = {}

    def one(way: str) -> None:
        if way not in loaders:
            loaders[way] = _loader(job, source, batch, WAYS[way])
        made = rate(job, loaders[way], 0.2 if job.quick else SECONDS, 2 if job.quick else 8)
        found.setdefault(way, []).append(made)

    failed: set[str] = set()
    for _ in range(1 if job.quick else rounds):
        for way in WAYS:
            if way in failed:
                continue
            before = len(found.get(way, []))
            job.attempt(f"{source}, batches of {batch}, decode={way!r}", partial(one, way))
            if len(found.get(way, [])) == before:
                failed.add(way)
    rates = {way: statistics.median(values) for way, values in found.items()}
    for way, value in rates.items():
        job.figure(f"{source}, batches of {batch}, {way}: {loaders[way].stats.decode}", value, "images/s")
    return rates


def _loader(job: Job, source: str, batch: int, decode: Any) -> FastLoader:
    return FastLoader(
        job.dataset(SOURCES[source], 64 * batch if job.quick else IMAGES),
        batch,
        shuffle=True,
        drop_last=True,
        transform=[T.RandomResizedCrop(job.size), T.RandomHorizontalFlip()],
        num_workers=job.cores,
        prefetch=4,
        decode=decode,
        device=job.device,
    )


def _asked(job: Job, source: str, rates: Rates) -> None:
    """What follows from the rates."""
    if (share := of_the_sum(rates)) is not None:
        job.figure(f"{source}: split, of the sum of cpu and gpu", share, "%", least=OF_THE_SUM)
    if source == "packed" and "split" in rates and "cpu" in rates:
        job.figure("packed: split beside the CPU's kernel", rates["split"] / rates["cpu"], "×", least=OF_THE_CPU)
    if source == "originals" and rates:
        best = max(rates, key=lambda way: rates[way])
        job.figure(f"originals, end to end: the best way ({best})", rates[best], "images/s", least=FROM_ORIGINALS)


def of_the_sum(rates: Rates) -> float | None:
    """The split's rate as a share of what both halves do alone; None where one of the three is missing."""
    if not {"cpu", "gpu", "split"} <= rates.keys():
        return None
    return rates["split"] / (rates["cpu"] + rates["gpu"])


def library(job: Job, name: str) -> None:
    """A library by itself, called as a loader calls it: whole pictures, a batch of bytes that lie in memory after the
    other. Its rates by batch size, and of what is not packed."""
    if not job.cuda:
        raise RuntimeError("it needs a CUDA device")
    decoder = checked(libraries(job.device, max(1, job.cores // 4))[name])
    for source, batch in (("packed", job.batch), ("originals", job.batch), *(("packed", batch) for batch in OTHERS)):
        jpegs = _jpegs(job, source, batch)
        made = decoder.decode(jpegs, [1] * batch)
        good = [jpeg for jpeg, image in zip(jpegs, made, strict=True) if image is not None]
        if not good:
            raise RuntimeError(f"all of {batch} {source} pictures came to nothing")
        seconds = on_wall(job, partial(decoder.decode, good, [1] * len(good)), ALONE)
        job.figure(f"{source}, batches of {batch}: {name} alone, whole pictures", len(good) / seconds, "images/s")


def _jpegs(job: Job, source: str, batch: int) -> list[Jpeg]:
    """The first pictures of a set."""
    dataset = job.dataset(SOURCES[source], batch)
    with open_reader(job.data / SOURCES[source]) as reader:
        data = [
            torch.frombuffer(bytearray(reader.view(index)), dtype=torch.uint8)
            for index in dataset.resolve(np.arange(batch)).tolist()
        ]
    located = dataset.locate(np.arange(batch))
    sizes = zip(located.width.tolist(), located.height.tolist(), strict=True)
    return [
        Jpeg(jpeg.pin_memory() if job.cuda else jpeg, width, height, 0, 0, width, height)
        for jpeg, (width, height) in zip(data, sizes, strict=True)
    ]
