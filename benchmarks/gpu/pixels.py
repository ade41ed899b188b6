"""Are the pixels that the device makes those of the CPU kernel, bit for bit?"""

from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.any_work import any_work
from benchmarks.gpu.finishing import made, transfer_of
from benchmarks.gpu.job import Job
from iofast import kernel
from iofast import transforms as T
from iofast.kernel.contract import TYPES, DecodeOptions, Finish
from iofast.work import Step

SCALE = np.array([[0.017, 0.018, 0.019], [-2.1, -2.0, -1.8]], np.float32)
CROPS, FEWER = 10_240, 2_048
EVERYTHING = [
    *(T.RandAugment(), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.Normalize.imagenet()),
    *(T.RandomErasing(0.5, value="random"), T.MixUp(num_classes=1000)),
]


def run(job: Job) -> None:
    crop = [T.RandomResizedCrop(job.size), T.RandomHorizontalFlip()]
    with_all = {"transform": [*crop, *EVERYTHING], "dtype": torch.bfloat16}
    for name, count, options in (
        ("crops", CROPS, {"transform": crop}),
        ("crops with all augmentations", FEWER, with_all),
        ("crops, cache='device'", CROPS, {"transform": crop, "cache": "device"}),
    ):
        count = 2 * job.batch if job.quick else count
        job.attempt(name, partial(loaded, job, f"{name}: images that differ of {count:,}", count, options))
    job.attempt("steps", partial(steps, job))


def loaded(job: Job, name: str, count: int, options: dict[str, Any]) -> None:
    """Batches of the loader that the device makes, and the CPU's."""
    here = {"device": "cpu", **options}
    here.pop("cache", None)
    there, differ = job.loader("packed.lmdb", count, **options), 0
    for (own, _), (other, _) in zip(there, job.loader("packed.lmdb", count, **here), strict=True):
        differ += int((own.cpu() != other).flatten(1).any(dim=1).sum())
    if job.cuda and not there.stats.decode.startswith("on the device"):
        raise RuntimeError(f"this compares the CPU with itself: decoded {there.stats.decode}")
    job.figure(name, differ, "", most=0)


def steps(job: Job) -> None:
    """Each step by itself, then several with erasing and mixing, in every type."""
    rng, count = np.random.default_rng(1), 8 if job.quick else 96
    size = (40, 31) if job.quick else (job.size, job.size - 13)
    cases = [([step], 1, 0, "uint8") for step in Step] + [(list(Step), 6, 2, type) for type in TYPES]
    cases += [(list(Step)[: Step.SHARPNESS], 40, 0, "uint8")]  # more point steps than one pass takes
    differ, context, transfer = 0, kernel.Context(DecodeOptions()), transfer_of(job)
    for codes, number, erasings, type in cases:
        images = rng.integers(0, 256, (count, *size, 3), np.uint8)
        images[::3] = images[::3] // 4 + 60
        work = any_work(rng, count, size, number, erasings, codes)
        finish = Finish(work, SCALE, rng.random((erasings, 3)).astype(np.float32), type)
        expected = np.zeros(images.shape, TYPES[type])
        kernel.finish_batch(context, images, finish, expected)
        found = made(transfer, torch.from_numpy(images).to(job.device).permute(0, 3, 1, 2), finish)
        own = found.permute(0, 2, 3, 1).contiguous().view(torch.uint8).cpu().numpy().reshape(count, -1)
        differ += int((own != expected.view(np.uint8).reshape(count, -1)).any(axis=1).sum())
    job.figure(f"steps: images that differ of {count * len(cases):,}", differ, "", most=0)
