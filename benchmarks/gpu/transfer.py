"""Do batches arrive before a step of 5 ms needs them?"""

from functools import partial
from typing import Any

from benchmarks.gpu.job import Job
from iofast.beside import Step, beside, tuned

STEP, STEPS = 5e-3, 400
ALLOWED = 0.02
SOURCES: dict[str, tuple[str, dict[str, Any]]] = {  # without and with decoding
    "raw pixels": ("rgb.lmdb", {}),
    "packed photographs": ("packed.lmdb", {}),
    "packed photographs, decoded by the CPU": ("packed.lmdb", {"decode": "cpu"}),
    "packed photographs, cache='device'": ("packed.lmdb", {"cache": "device"}),
}


def run(job: Job) -> None:
    step = tuned(job.device, STEP)
    for what in SOURCES:
        job.attempt(what, partial(overlap, job, step, what))


def overlap(job: Job, step: Step, what: str) -> None:
    """The figures of one source."""
    steps, warm = (3, 2) if job.quick else (STEPS, 40)
    name, options = SOURCES[what]
    loader = job.training_loader(name, (steps + warm + 8) * job.batch, **options)
    found = beside(loader, step, steps, job.device, warm)
    job.stall_figures(what, found, ALLOWED)
    job.figure(f"{what}: a step", 1e3 * found.beside_s, "ms")
    job.figure(f"{what}: images", found.images, "images/s")
    copied = loader.stats.stages.get("transfer")
    if copied is not None and copied.work_s:
        job.figure(f"{what}: copies over the bus", copied.bytes / copied.work_s / 1e9, "GB/s")
