"""What share of the memory's bandwidth do the fused passes reach, and how long do other libraries take?"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu.clock import on_device, on_wall
from benchmarks.gpu.job import Job
from iofast import pixels
from iofast import transforms as T
from iofast.choices import Draw
from iofast.pixels import RaggedBatch, dispatch

WIDTH, HEIGHT = 341, 256  # of a packed photograph
COPIED = 1 << 29  # bytes: ten times a GPU's cache
OF_THE_COPY, OF_GEOMETRY, FASTER = 0.4, 1.5, 5.0
COLOURS = [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(0.2), T.RandomSolarize(0.5, 0.2)]
GEOMETRY, COLOUR = "geometry and normalisation", "colours"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Work:
    """A batch of photographs in the device's memory, with boxes and flips."""

    images: RaggedBatch
    boxes: NDArray[np.int32]
    flips: NDArray[np.uint8]
    size: int

    @property
    def bytes(self) -> int:
        """Of the crops and of the finished batch, in bfloat16."""
        return moved(self.boxes, self.size, 2)

    def finished(self) -> torch.Tensor:
        """Geometry and normalisation."""
        return pixels.augment(
            self.images, self.boxes, self.flips, (self.size, self.size), [T.Normalize.imagenet()], dtype=torch.bfloat16
        )


def run(job: Job) -> None:
    if job.cuda and (trouble := of_triton()):
        job.lacks("the Triton passes: torch's are measured in their place", trouble)
    work = made(job)
    walls: dict[str, float] = {}
    job.attempt(f"{GEOMETRY} and colours", partial(own, job, work, walls))
    for name, other in OTHERS.items():
        job.attempt(name, partial(beside, job, work, name, other, walls))


def of_triton() -> str:
    """Why Triton's passes do not work here; empty if they do."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        works = dispatch.triton_works()
    return "" if works else " / ".join(str(each.message) for each in said)


def own(job: Job, work: Work, walls: dict[str, float]) -> None:
    """The figures of iofast's passes; adds seconds of the wall's clock to `walls`."""
    copy = on_device(job, copier(job))
    bandwidth = 2 * (COPIED >> 6 if job.quick else COPIED) / copy
    job.figure("copy within the device, read and written", bandwidth / 1e9, "GB/s")
    geometry = on_device(job, work.finished)
    job.figure(f"{GEOMETRY}: the device's time", 1e6 * geometry, "us")
    job.figure(f"{GEOMETRY}: crops read and batch written", work.bytes / geometry / 1e9, "GB/s")
    share = work.bytes / geometry / bandwidth
    job.figure(f"{GEOMETRY}, of the copy's rate", share, "%", least=OF_THE_COPY)
    seconds = 0.1 if job.quick else 1.0
    walls[GEOMETRY] = on_wall(job, work.finished, seconds)
    job.figure(f"{GEOMETRY}: host and device, one call after the other", 1e6 * walls[GEOMETRY], "us")
    colour = colours(job)
    taken = on_device(job, colour)
    job.figure("colours: the device's time", 1e6 * taken, "us")
    passed = 3 * job.batch * job.size**2 * (1 + torch.bfloat16.itemsize)
    job.figure("colours: batch read and batch written", passed / taken / 1e9, "GB/s")
    job.figure("colours, of the time of geometry", taken / geometry, "×", most=OF_GEOMETRY)
    walls[COLOUR] = on_wall(job, colour, seconds)
    job.figure(f"{COLOUR}: host and device, one call after the other", 1e6 * walls[COLOUR], "us")


def made(job: Job) -> Work:
    """Photographs' sizes, portrait ones too, with pixels of noise, which cost the same."""
    count = job.batch
    sizes = np.array([(HEIGHT, WIDTH) if row % 4 else (WIDTH, HEIGHT) for row in range(count)], np.int64)
    lengths = 3 * sizes.prod(axis=1)
    data = torch.randint(0, 256, (int(lengths.sum()),), dtype=torch.uint8, device=job.device)
    pipeline = T.compile(T.train(job.size))
    boxes, flips = pipeline.plan(Draw(0, 0, np.arange(count, dtype=np.int64)), sizes[:, 1], sizes[:, 0])
    return Work(RaggedBatch(data, np.cumsum(lengths) - lengths, sizes), boxes, flips, job.size)


def moved(boxes: NDArray[np.int32], size: int, item: int) -> int:
    """Bytes of the regions of uint8 images, and of a batch (N, 3, size, size) whose numbers have `item` bytes."""
    x0, y0, x1, y1 = boxes[:, :4].astype(np.int64).T
    return int(3 * ((x1 - x0) * (y1 - y0)).sum()) + len(boxes) * 3 * size * size * item


def copier(job: Job) -> Callable[[], Any]:
    """A copy of one block of memory to another."""
    one = torch.zeros(COPIED >> 6 if job.quick else COPIED, dtype=torch.uint8, device=job.device)
    two = torch.empty_like(one)
    return lambda: two.copy_(one)


def colours(job: Job) -> Callable[[], torch.Tensor]:
    """The operations on colours, normalisation and erasing, from uint8 to bfloat16, each image its own."""
    pipeline = T.compile([*COLOURS, T.Normalize.imagenet(), T.RandomErasing(0.25)])
    side = np.full(job.batch, job.size)
    work = pipeline.work(Draw(0, 0, np.arange(job.batch, dtype=np.int64)), side, side)
    images = torch.randint(0, 256, (job.batch, 3, job.size, job.size), dtype=torch.uint8, device=job.device)
    images = images.contiguous(memory_format=torch.channels_last)
    return lambda: pixels.apply(images, pipeline.ops, work=work, dtype=torch.bfloat16)


def beside(job: Job, work: Work, name: str, other: Callable[..., Any], walls: dict[str, float]) -> None:
    """Figures of another library, of host and device together: the host limits it."""
    calls = other(job, work)
    for what, call in zip((GEOMETRY, COLOUR), calls, strict=True):
        seconds = on_wall(job, call, 0.1 if job.quick else 2.0)
        job.figure(f"{name}, {what}", 1e6 * seconds, "us")
        if what in walls:
            job.figure(f"{what}: iofast beside {name}", seconds / walls[what], "×", least=FASTER)


def torchvision(job: Job, work: Work) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """torchvision v2 on the device, image by image, as their sizes differ."""
    v2 = importlib.import_module("torchvision.transforms.v2")
    images = [work.images.image(row).permute(2, 0, 1) for row in range(len(work.boxes))]
    shape = (work.size, work.size)
    normalize = v2.Normalize(MEAN, STD)

    def geometry() -> torch.Tensor:
        made = []
        for image, (x0, y0, x1, y1), flip in zip(images, work.boxes[:, :4].tolist(), work.flips.tolist(), strict=True):
            cropped = v2.functional.resized_crop(image, y0, x0, y1 - y0, x1 - x0, shape, antialias=True)
            made.append(v2.functional.horizontal_flip(cropped) if flip else cropped)
        batch = torch.stack(made).to(torch.bfloat16, memory_format=torch.channels_last).div_(255)
        return normalize(batch)

    drawn = [v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandomGrayscale(0.2), v2.RandomSolarize(0.5, 0.2)]
    jitter = v2.Compose([*drawn, normalize, v2.RandomErasing(0.25)])
    crops = torch.rand((job.batch, 3, *shape), device=job.device)

    def colour() -> torch.Tensor:
        made = torch.stack([jitter(image) for image in crops])
        return made.to(torch.bfloat16, memory_format=torch.channels_last)

    return geometry, colour


def kornia(job: Job, work: Work) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """kornia takes images of one size: all are landscape here."""
    kornia_ = importlib.import_module("kornia.augmentation")
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    size = (work.size, work.size)
    crop = kornia_.AugmentationSequential(
        kornia_.RandomResizedCrop(size), kornia_.RandomHorizontalFlip(), kornia_.Normalize(mean, std)
    )
    jitter = kornia_.AugmentationSequential(
        kornia_.ColorJiggle(0.4, 0.4, 0.4, 0.1, p=1.0),
        kornia_.RandomGrayscale(p=0.2),
        kornia_.RandomSolarize(0.5, 0.0, p=0.2),
        kornia_.Normalize(mean, std),
        kornia_.RandomErasing(p=0.25),
    )
    images = torch.rand((job.batch, 3, HEIGHT, WIDTH), device=job.device)
    crops = torch.rand((job.batch, 3, *size), device=job.device)

    def finished(done: torch.Tensor) -> torch.Tensor:
        return done.to(torch.bfloat16, memory_format=torch.channels_last)

    return lambda: finished(crop(images)), lambda: finished(jitter(crops))


OTHERS: dict[str, Callable[..., tuple[Callable[[], Any], Callable[[], Any]]]] = {
    "torchvision v2": torchvision,
    "kornia": kornia,
}
