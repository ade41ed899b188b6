"""Are batches there before a step of 5 ms asks for them?"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.gpu.clock import Step, stalls, tuned
from benchmarks.gpu.job import Job
from iofast import FastLoader
from iofast import transforms as T

STEP, STEPS = 5e-3, 400
ALLOWED = 0.01
SOURCES = {"raw pixels": "rgb.lmdb", "packed photographs": "packed.lmdb"}  # without decoding, and with


def run(job: Job) -> None:
    """See above."""
    step = tuned(job, STEP)
    for what, name in SOURCES.items():
        job.attempt(what, partial(overlap, job, step, what, name))


def overlap(job: Job, step: Step, what: str, name: str) -> None:
    """The figures of one source."""
    steps = 3 if job.quick else STEPS
    warm = 2 if job.quick else 40
    loader = FastLoader(
        job.dataset(name, (steps + warm + 8) * job.batch),
        job.batch,
        shuffle=True,
        drop_last=True,
        transform=T.train(job.size),
        num_workers=max(1, job.cores - 1),  # the loop has to launch its step
        prefetch=8,
        device=job.device,
        dtype=torch.bfloat16,
        memory_format=torch.channels_last,  # as the network is
    )
    found = stalls(job, loader, step, steps, warm)
    job.figure(f"{what}: exposed stall, by iofast's clock", found.by_clock, "%", most=ALLOWED)
    job.figure(f"{what}: exposed stall, beside a batch that stays", found.by_difference, "%", most=ALLOWED)
    job.figure(f"{what}: a step", found.step_ms, "ms")
    job.figure(f"{what}: images", found.images_per_s, "images/s")
    copied = loader.stats.stages.get("transfer")
    if copied is not None and copied.work_s:
        job.figure(f"{what}: copies over the bus", copied.bytes / copied.work_s / 1e9, "GB/s")
