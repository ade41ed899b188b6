"""How many images a second reach a training loop, and how long does its step wait for them?"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from benchmarks.gpu.clock import rate
from benchmarks.gpu.job import Job
from benchmarks.gpu.networks import networks, training
from iofast.beside import Step, beside

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
ALLOWED = 0.003
ASKED = "ResNet-50"
STEPS = {"ResNet-18": 80, "ResNet-50": 40}
SECONDS = 3.0
IMAGES = 400_000

OURS = {"FastLoader, packed": "packed.lmdb", "FastLoader, originals": "originals"}
THEIRS = {"ImageFolder + DataLoader, packed as files": "files", "ImageFolder + DataLoader, originals": "originals"}


def run(job: Job) -> None:
    images = 64 * job.batch if job.quick else IMAGES
    makers: dict[str, Callable[[], Iterable[Any]]] = {
        **{name: partial(job.training_loader, source, images) for name, source in OURS.items()},
        **{name: partial(folder, job, source, images) for name, source in THEIRS.items()},
    }
    own, theirs = next(iter(OURS)), next(iter(THEIRS))
    known = networks(job)
    for name, network in known.items():
        job.attempt(f"{name}, {own}", partial(trained, job, name, network, own, makers[own]))
    for name in makers:
        job.attempt(f"{name}, into nothing", partial(consumed, job, name, makers[name]))
    job.attempt("torchvision: decoded on the GPU, into nothing", partial(consumed, job, GPU, partial(on_gpu, job)))
    for name, network in known.items():
        job.attempt(f"{name}, {theirs}", partial(trained, job, name, network, theirs, makers[theirs]))


def trained(job: Job, name: str, network: Callable[[], Any], loader: str, make: Callable[[], Iterable[Any]]) -> None:
    """The figures of a network with a loader."""
    step: Step = training(job, network)
    steps, warm = (2, 1) if job.quick else (STEPS.get(name, 80), 10)
    most = ALLOWED if name == ASKED and loader in OURS else None
    found = beside(make(), step, steps, job.device, warm)
    job.stall_figures(f"{name}, {loader}", found, most)
    job.figure(f"{name}, {loader}", found.images, "images/s")


def consumed(job: Job, name: str, make: Callable[[], Iterable[Any]]) -> None:
    """The figure of a loop that does nothing."""
    seconds, warm = (0.2, 1) if job.quick else (SECONDS, 10)
    job.figure(f"into nothing, {name}", rate(job, make(), seconds, warm).images, "images/s")


def folder(job: Job, source: str, length: int) -> Iterable[Any]:
    """torchvision's ImageFolder with Pillow, in a DataLoader with a process per core."""
    datasets: Any = importlib.import_module("torchvision.datasets")
    their: Any = importlib.import_module("torchvision.transforms")
    steps = [their.RandomResizedCrop(job.size), their.RandomHorizontalFlip(), their.ToTensor()]
    images = datasets.ImageFolder(str(job.data / source), their.Compose([*steps, their.Normalize(MEAN, STD)]))
    subset = Subset(images, [at % len(images) for at in range(length)])
    options: dict[str, Any] = {"shuffle": True, "drop_last": True, "persistent_workers": True}
    return DataLoader(subset, job.batch, num_workers=job.cores, pin_memory=job.cuda, **options)


GPU = "torchvision: files read, decoded and cropped on the GPU"


def on_gpu(job: Job) -> Iterator[Any]:
    """torchvision's decoder and transforms on the device, in the loop's thread, as in its documentation."""
    if not job.cuda:
        raise RuntimeError("it needs a CUDA device")
    io: Any = importlib.import_module("torchvision.io")
    v2: Any = importlib.import_module("torchvision.transforms.v2")
    geometry = [v2.RandomResizedCrop(job.size), v2.RandomHorizontalFlip()]
    crop = v2.Compose([*geometry, v2.ToDtype(torch.bfloat16, scale=True), v2.Normalize(MEAN, STD)])
    files = sorted((job.data / "files").rglob("*.jpg"))
    for start in range(0, IMAGES, job.batch):
        names = [files[at % len(files)] for at in range(start, start + job.batch)]
        jpegs = [io.read_file(str(name)) for name in names]
        images = io.decode_jpeg(jpegs, mode=io.ImageReadMode.RGB, device=job.device)
        labels = torch.tensor([int(name.parent.name) for name in names])
        yield torch.stack([crop(image) for image in images]), labels
