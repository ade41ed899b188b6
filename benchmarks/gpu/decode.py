"""How many images a second are decoded, cropped and resized: by the CPU's kernel, the GPU, and other libraries?"""

import contextlib
import importlib
import os
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.clock import on_wall, rate
from benchmarks.gpu.job import Job
from benchmarks.measure import in_turn
from iofast import FastDataset, FastLoader
from iofast import transforms as T

IMAGES = 3_000_000  # of an epoch: more than a round takes
ORIGINALS = 400_000
WAYS = ("cpu", "gpu")  # each may have all cores
ROUNDS, SECONDS = 2, 1.2
HOST_SECONDS = 3.0
FEW = 2  # host cores
BATCHES = (256, 1024)

FROM_ORIGINALS, FROM_PAGE_CACHE, IN_MEMORY = 21_500, 100_000, 300_000
HOST_CORES = 0.2  # with `cache="device"`

Rates = dict[str, float]


def run(job: Job) -> None:
    for batch in (job.batch,) if job.quick else BATCHES:
        job.attempt(f"cache='device', batches of {batch}", partial(in_memory, job, batch))
        job.attempt(f"from the page cache, batches of {batch}", partial(from_page_cache, job, batch))
    for name, decoder in (("nvImageCodec", nvimagecodec), ("torchvision", torchvision)):
        job.attempt(name, partial(alone, job, name, decoder))
    for source, least in (("packed", None), ("originals", FROM_ORIGINALS)):
        rates = by_way(job, source)
        if rates:
            best = max(rates, key=lambda way: rates[way])
            job.figure(f"{source}, end to end: the best way ({best})", rates[best], "images/s", least=least)


def finished(job: Job, batch: int, **options: Any) -> FastLoader:
    """A loader of training crops in bfloat16, normalised; its epoch takes each photograph many times."""
    transform = [T.RandomResizedCrop(job.size), T.RandomHorizontalFlip(), T.Normalize.imagenet()]
    dataset = FastDataset(job.data / "packed.lmdb")
    order = np.random.default_rng(3).integers(0, len(dataset), 32 * batch if job.quick else IMAGES)
    options = {"device": job.device, "transform": transform, "dtype": torch.bfloat16, **options}
    return FastLoader(dataset, batch, order=order, **options)


def in_memory(job: Job, batch: int) -> None:
    """From JPEGs in device memory."""
    found = rate(job, finished(job, batch, cache="device", num_workers=2), *host_seconds(job))
    asked = batch == BATCHES[-1]
    job.figure(f"cache='device', batches of {batch}", found.images, "images/s", least=IN_MEMORY if asked else None)
    job.figure(f"cache='device', batches of {batch}: host cores", found.cores, "", most=HOST_CORES if asked else None)


def from_page_cache(job: Job, batch: int) -> None:
    """From JPEGs in the page cache, by few cores and by half of them."""
    for count in sorted({FEW, max(1, job.cores // 2)}):
        with on_cores(count):
            found = rate(job, finished(job, batch, decode="auto", num_workers=count), *host_seconds(job))
        name = f"from the page cache, {count} cores, batches of {batch}"
        least = FROM_PAGE_CACHE if count == FEW and batch == BATCHES[-1] else None
        job.figure(name, found.images, "images/s", least=least)
        job.figure(f"{name}: host cores", found.cores, "")


def host_seconds(job: Job) -> tuple[float, int]:
    """Seconds of a loop whose cores are counted, and batches before it."""
    return (0.1, 2) if job.quick else (HOST_SECONDS, 12)


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Let this process have a few cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def alone(job: Job, name: str, decoder: Callable[[Job, list[bytes]], Callable[[], Any]]) -> None:
    """Another library's decoder alone: whole pictures, without crops or a loop."""
    if not job.cuda:
        raise RuntimeError("it needs a CUDA device")
    files = sorted((job.data / "files").rglob("*.jpg"))[: job.batch]
    call = decoder(job, [file.read_bytes() for file in files])
    job.figure(f"{name} alone, whole pictures, batches of {len(files)}", len(files) / on_wall(job, call, 2), "images/s")


def nvimagecodec(_: Job, jpegs: list[bytes]) -> Callable[[], Any]:
    """Its decoder by the hardware engine, which first sees a whole batch."""
    codec: Any = importlib.import_module("nvidia.nvimgcodec")
    decoder = codec.Decoder(device_id=torch.cuda.current_device())
    return lambda: decoder.decode(jpegs)


def torchvision(job: Job, jpegs: list[bytes]) -> Callable[[], Any]:
    """decode_jpeg with a device."""
    io: Any = importlib.import_module("torchvision.io")
    tensors = [torch.frombuffer(bytearray(jpeg), dtype=torch.uint8) for jpeg in jpegs]
    return lambda: io.decode_jpeg(tensors, mode=io.ImageReadMode.RGB, device=job.device)


def by_way(job: Job, source: str) -> Rates:
    """Images a second of each way that works; they run in turn, so that a slow moment affects all."""
    transform = [T.RandomResizedCrop(job.size), T.RandomHorizontalFlip()]
    loaders: dict[str, FastLoader] = {}
    name = {"packed": "packed.lmdb"}.get(source, source)
    images = 64 * job.batch if job.quick else ORIGINALS

    def one(loader: FastLoader) -> float:
        return rate(job, loader, 0.2 if job.quick else SECONDS, 2 if job.quick else 8).images

    def tried(way: str) -> None:
        loader = job.loader(name, images, transform=transform, num_workers=job.cores, prefetch=4, decode=way)
        one(loader)
        loaders[way] = loader

    for way in WAYS:
        job.attempt(f"{source}, decode={way!r}", partial(tried, way))
    runs = {way: partial(one, loader) for way, loader in loaders.items()}
    rates = {way: statistics.median(each) for way, each in in_turn(runs, 1 if job.quick else ROUNDS, 0).items()}
    for way, value in rates.items():
        job.figure(f"{source}, {way}: {loaders[way].stats.decode}", value, "images/s")
    return rates
