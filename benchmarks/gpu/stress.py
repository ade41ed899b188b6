"""Is a batch ever wrong while the stream lags behind and memory changes hands all the time?"""

import os
import re
import shutil
import subprocess
import sys
from functools import partial

import torch

from benchmarks.gpu.job import Job
from iofast import FastLoader
from iofast import transforms as T
from iofast.beside import wait

ITERATIONS, BATCHES = 200, 8
BATCH = 300  # more than a call of a decoding library has
LAG = 20_000_000  # cycles that the stream works before it looks at a batch: 10 ms
WAYS = ("cpu", "gpu")
FEW = 2  # batches that compute-sanitizer sees
INSIDE = "IOFAST_SANITIZED"  # set in the process under it
SHORT, SPARE = 5, 3  # seconds that the sanitizer's run must have at least, and what is left for the page
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")


def run(job: Job) -> None:
    if os.environ.get(INSIDE):
        for decode in WAYS:
            job.attempt(f"compute-sanitizer, decode={decode!r}", partial(looked_at, job, decode))
        return
    for decode in WAYS:
        job.attempt(f"decode={decode!r}", partial(stressed, job, decode))
    job.attempt("compute-sanitizer", partial(sanitized, job))


def stressed(job: Job, decode: str) -> None:
    """Compare the batches of a loop that is late and allocates with those of one that waits for each."""
    iterations = BATCHES if job.quick else ITERATIONS
    wrong, done = torch.zeros((), dtype=torch.int64, device=job.device), 0
    looped = loader(job, decode)
    expected = quiet(job, loader(job, decode, torch.device("cpu")) if decode == "cpu" else looped)
    while done < iterations:
        looped.set_epoch(0)
        for (images, _), wanted in zip(looped, expected, strict=True):
            if job.cuda:
                torch.cuda._sleep(LAG)
            wrong += (images != wanted).any()
            sizes = [images.numel(), 1 << 18 + done % 5, images.numel() // 2, 1 << 20]
            del images  # this loop and the loader need its memory at once
            for size in sizes:
                torch.full((size,), 255, dtype=torch.uint8, device=job.device)
            done += 1
    wait(job.device)
    job.figure(f"decode={decode!r}: corrupt batches of {done}", int(wrong), "", most=0)


def loader(job: Job, decode: str, device: torch.device | None = None) -> FastLoader:
    """A loader of few batches. Without a device the CPU decodes them to the same pixels."""
    transform = [T.RandomResizedCrop(job.size), T.RandomHorizontalFlip()]
    where, batch = job.device if device is None else device, 32 if job.quick else BATCH
    return FastLoader(
        job.dataset("packed.lmdb", batch * BATCHES), batch, transform=transform, device=where, decode=decode
    )


def quiet(job: Job, loader: FastLoader) -> list[torch.Tensor]:
    """The batches of a loop that is never late: it reads each before it gets the next."""
    found = []
    for images, _ in loader:
        wait(job.device)
        found.append(images.cpu())
        wait(job.device)
    return [images.to(job.device) for images in found]


def looked_at(job: Job, decode: str) -> None:
    """The program under compute-sanitizer: each pixel of a few batches, of every pass, is read on the device."""
    colours = [T.RandAugment(), T.GaussianBlur(9), T.Normalize.imagenet(), T.RandomErasing(0.5)]
    transform = [T.RandomResizedCrop(job.size), *colours]
    options = {"shuffle": False, "dtype": torch.bfloat16, "decode": decode, "num_workers": 2}
    for images, _ in job.loader("packed.lmdb", FEW * job.batch, transform=transform, **options):
        if not torch.isfinite(images).all():
            raise RuntimeError("a batch is not finite")
    wait(job.device)


def sanitized(job: Job) -> None:
    """A short run of every kernel under compute-sanitizer, if it is installed."""
    if not job.cuda:
        raise RuntimeError("it needs a CUDA device")
    if (program := shutil.which("compute-sanitizer")) is None:
        raise RuntimeError("it is not on the PATH")
    left = job.left() - SPARE
    if left < SHORT:
        raise RuntimeError("the part's time was used up")
    part = [sys.executable, "-m", "benchmarks.gpu.job", "stress", "--data", str(job.data), "--log", str(job.log)]
    options = ["--tool", "memcheck", "--report-api-errors", "no"]
    command = [program, *options, *part, "--device", str(job.device), "--quick"]
    try:
        own = os.environ | {INSIDE: "1"}
        ran = subprocess.run(command, env=own, capture_output=True, text=True, timeout=left, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"it was not through after {left:.0f} s") from None
    errors = errors_in(ran.stdout + ran.stderr)
    if errors is None or (ran.returncode and not errors):
        raise RuntimeError(f"it ended with {ran.returncode}: {(ran.stderr or ran.stdout).strip()[-200:]}")
    job.figure("compute-sanitizer: errors", errors, "", most=0)


def errors_in(text: str) -> int | None:
    """The number of errors that compute-sanitizer has counted; None if it did not finish."""
    found = _SUMMARY.findall(text)
    return int(found[-1]) if found else None
