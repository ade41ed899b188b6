"""How many images a second are decoded, cropped and resized: by the CPU's kernel, by the GPU?"""

from __future__ import annotations

import statistics
from functools import partial

import numpy as np
import torch

from benchmarks.gpu.clock import on_wall, rate
from benchmarks.gpu.job import Job
from iofast import FastLoader, open_reader
from iofast import transforms as T
from iofast.gpu.decode import Jpeg
from iofast.gpu.decode.library import checked
from iofast.gpu.decode.nvimagecodec import NvImageCodec

IMAGES = 400_000  # of an epoch: more than a round takes
SOURCES = {"packed": "packed.lmdb", "originals": "originals"}
WAYS = ("cpu", "gpu")  # each may have all cores
OTHERS = (64, 1024)  # further batch sizes
ROUNDS, SECONDS = 3, 1.2
ALONE = 0.6  # seconds for each of a library's batch sizes

FROM_ORIGINALS = 21_500

Rates = dict[str, float]


def run(job: Job) -> None:
    for source in SOURCES:
        _asked(job, source, _measured(job, source, job.batch, ROUNDS))
    job.attempt("nvImageCodec", partial(library, job))
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


def _asked(job: Job, source: str, rates: Rates) -> None:
    """What follows from the rates."""
    if source == "originals" and rates:
        best = max(rates, key=lambda way: rates[way])
        job.figure(f"originals, end to end: the best way ({best})", rates[best], "images/s", least=FROM_ORIGINALS)


def library(job: Job, name: str = "nvImageCodec") -> None:
    """A library by itself, called as a loader calls it: whole pictures from memory. Its rates by batch size."""
    if not job.cuda:
        raise RuntimeError("it needs a CUDA device")
    decoder = checked(lambda: NvImageCodec(max(1, job.cores // 4)))
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
