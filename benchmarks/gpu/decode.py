"""How many images a second are decoded, cropped and resized: by the CPU's kernel, by the GPU, by both?"""

from __future__ import annotations

import importlib
import statistics
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.clock import on_wall, rate
from benchmarks.gpu.job import Job
from iofast import FastLoader, open_reader
from iofast import transforms as T
from iofast.loader import Split

IMAGES = 400_000  # of an epoch: more than a round takes
SOURCES = {"packed": "packed.lmdb", "originals": "originals"}
WAYS: dict[str, Any] = {"cpu": "cpu", "gpu": "gpu", "split": Split(cores=1.0)}  # each may have all cores
OTHERS = (64, 1024)  # further batch sizes
ROUNDS, SECONDS = 3, 1.2

OF_THE_SUM, OF_THE_CPU, FROM_ORIGINALS = 0.85, 1.5, 21_500

Rates = dict[str, float]


def run(job: Job) -> None:
    """See above."""
    for source in SOURCES:
        _asked(job, source, _measured(job, source, job.batch, ROUNDS))
    for source in SOURCES:
        job.attempt(f"torchvision, {source}", partial(torchvision, job, source))
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


def torchvision(job: Job, source: str) -> None:
    """torchvision's own decoder on the device: whole pictures, a batch of bytes that lie in memory after the other."""
    if not job.cuda:
        raise RuntimeError("it needs a CUDA device")
    io: Any = importlib.import_module("torchvision.io")
    decode = partial(io.decode_jpeg, mode=io.ImageReadMode.RGB, device=job.device)
    dataset = job.dataset(SOURCES[source], job.batch)
    with open_reader(job.data / SOURCES[source]) as reader:
        there = dataset.resolve(torch.arange(job.batch).numpy())
        jpegs = [torch.frombuffer(bytearray(reader.view(index)), dtype=torch.uint8) for index in there.tolist()]
    seconds = on_wall(job, partial(decode, jpegs), 2.0)
    name = f"{source}, batches of {job.batch}: torchvision.io.decode_jpeg, whole pictures"
    job.figure(name, len(jpegs) / seconds, "images/s")
