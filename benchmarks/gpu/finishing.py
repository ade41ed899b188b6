"""How long does the device take to decode a batch of JPEGs in its memory, and to finish decoded images?"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.clock import on_device
from benchmarks.gpu.job import Job
from benchmarks.gpu.on_host import launch_on_host
from iofast import transforms as T
from iofast.choices import Draw
from iofast.gpu import CudaStreams, Direct, Transfer
from iofast.gpu.images import DeviceImages, make
from iofast.kernel.contract import Finish
from iofast.loader.finishing import TYPES, finish_of
from iofast.loader.plan import plan_samples
from iofast.loader.samples import Samples
from iofast.meter import StageCounter
from iofast.work import Work, no_work

ALONE = 150_000  # images a second, decoded and finished
OTHER = 1024  # a second size of a batch
NORMALIZE = T.Normalize.imagenet()
RECIPES: dict[str, list[Any]] = {
    "normalise": [NORMALIZE],
    "colour jitter": [T.ColorJitter(0.4, 0.4, 0.4, 0.1), NORMALIZE],
    "equalise": [T.RandomEqualize(1.0), NORMALIZE],
    "blur, 23 taps": [T.GaussianBlur(23, (1.9, 2.0)), NORMALIZE],
    "rotation": [T.RandomRotation(30, "bilinear"), NORMALIZE],
    "RandAugment": [T.RandAugment(), NORMALIZE],
    "erasing and MixUp": [NORMALIZE, T.RandomErasing(1.0), T.MixUp(alpha=0.4, num_classes=9)],
    "SimCLR's colours": [T.ColorJitter(0.8, 0.8, 0.8, 0.2), T.RandomGrayscale(0.2), T.GaussianBlur(23), NORMALIZE],
}


class HostTransfer(Direct):
    """The CPU in place of a device."""

    run = staticmethod(launch_on_host)


def transfer_of(job: Job) -> Transfer | Direct:
    """The way to the job's device."""
    if not job.cuda:
        return HostTransfer(job.device, StageCounter())
    transfer = Transfer(job.device, CudaStreams(job.device), StageCounter())
    transfer.begin()
    torch.cuda.synchronize()  # another stream works with what there is
    return transfer


def made(transfer: Transfer | Direct, images: torch.Tensor, finish: Finish) -> torch.Tensor:
    """Decoded images on the device, finished in channels last."""
    dtype = next(dtype for dtype, name in TYPES.items() if name == finish.type)
    if isinstance(transfer, Transfer):
        torch.cuda.synchronize()
    issued = transfer.issue(lambda bus: make(bus, DeviceImages.of(images), finish, dtype, torch.channels_last))
    return transfer.hand_over(issued).images


def run(job: Job) -> None:
    for batch in (job.batch,) if job.quick else (job.batch, OTHER):
        job.attempt(f"decoding alone, batches of {batch}", partial(decoded, job, batch))
    side, count = job.size, job.batch
    images = torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, device=job.device).permute(0, 3, 1, 2)
    transfer = transfer_of(job)
    for name, recipe in RECIPES.items():
        job.attempt(name, partial(finished, job, transfer, images, (name, recipe)))


def decoded(job: Job, batch: int) -> None:
    """The rate without a loop, from JPEGs in device memory, RandomResizedCrop and flips to bfloat16."""
    if not job.cuda:
        raise RuntimeError("it needs a CUDA device")
    transform = [T.RandomResizedCrop(job.size), T.RandomHorizontalFlip(), NORMALIZE]
    loader = job.loader("packed.lmdb", 8 * batch, batch, transform=transform, dtype=torch.bfloat16, cache="device")
    parts, transfer = loader._parts(), loader._resources.transfer
    draft = Samples(plan_samples(parts, 0, np.arange(batch))).images()

    def work() -> None:
        transfer.issue(lambda bus: draft.made(parts.spec, None, bus))  # type: ignore[union-attr]

    seconds = _by_side(job, transfer, work)  # type: ignore[arg-type]
    job.figure(f"decoding and finishing alone, batches of {batch}", batch / seconds, "images/s", least=ALONE)


def finished(job: Job, transfer: Transfer | Direct, images: torch.Tensor, recipe: tuple[str, list[Any]]) -> None:
    """Time of the device for a batch of decoded images, to bfloat16."""
    (name, ops), count = recipe, len(images)
    pipeline, side = T.compile(ops), np.full(len(images), job.size)
    work: Work = pipeline.work(Draw(0, 0, np.arange(count)), side, side) if pipeline.drawn else no_work(count)
    if pipeline.mix is not None:
        work = work.paired(np.arange(count) ^ 1)
    finish, pictures = finish_of(pipeline.ops, work, torch.bfloat16), DeviceImages.of(images)

    def call() -> None:
        transfer.issue(lambda bus: make(bus, pictures, finish, torch.bfloat16, torch.channels_last))

    job.figure(f"{count} decoded images, {name}", 1e6 * _by_side(job, transfer, call), "us")


def _by_side(job: Job, transfer: Transfer | Direct, call: Callable[[], Any]) -> float:
    """Seconds of a call on the device, whose work goes to the side stream."""
    if not isinstance(transfer, Transfer):
        return on_device(job, call)
    with torch.cuda.stream(transfer._streams.side()):
        return on_device(job, call)
