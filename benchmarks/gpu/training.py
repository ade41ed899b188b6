"""How many images a second reach a training loop, and how long does its step wait for them?"""

import importlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from benchmarks.gpu.clock import rate
from benchmarks.gpu.job import Job
from iofast.beside import Step, beside

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
ALLOWED = 0.003
ASKED = "ResNet-50"
STEPS = {"ResNet-18": 80, "ResNet-50": 40}
SECONDS = 3.0
IMAGES, CLASSES = 400_000, 1000

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


def networks(job: Job) -> dict[str, Callable[[], nn.Module]]:
    """torchvision's ResNets; three convolutions without torchvision and in a quick run."""
    try:
        models: Any = importlib.import_module("torchvision.models")
    except Exception as error:  # built for another torch, it raises anything
        job.lacks("ResNet-18 and ResNet-50", f"torchvision cannot be imported: {error}")
        return {"three convolutions": convolutions}
    if job.quick:
        return {"three convolutions": convolutions}
    return {"ResNet-50": models.resnet50, "ResNet-18": models.resnet18}


def convolutions() -> nn.Module:
    """The smallest network that trains."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def training(job: Job, network: Callable[[], nn.Module]) -> Step:
    """Forward, backward, an update by SGD; batches are moved to the device."""
    torch.backends.cudnn.benchmark = True
    model = network().to(job.device, torch.bfloat16, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(batch: Any) -> None:
        images, labels = (each.to(job.device, non_blocking=True) for each in batch)
        images = images.to(torch.bfloat16, memory_format=torch.channels_last)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
