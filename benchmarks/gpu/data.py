"""The data of the parts: photographs, packed, as pixels, as files again, and images of CIFAR's size.

originals/     class folders of photographs: links to those given, or to sample images, which are in samples/
packed.lmdb    JPEGs with the short side 256, quality 90
rgb.lmdb       pixels with the short side 256
files/         the JPEGs of packed.lmdb in class folders, for ImageFolder
small.lmdb     pixels, 32 x 32

Each is made by itself, so that parts which need no photographs run without them.
"""

from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gpu.job import DONE, Job, read
from benchmarks.photographs import files_in, pack, place, unpacked
from iofast import FastDataset, open_writer
from tools import sample_photographs
from tools.scenes import SCENES

PHOTOGRAPHS, FEW = 2048, 32  # different ones; an epoch has each as often as it needs
A_CORE = 128  # for each core, so that there is time to make and pack them
SMALL = 10_000  # different ones; the part that works on them takes each five times, as CIFAR has 50,000


def run(job: Job) -> None:
    """Make all of it in `job.data`."""
    originals, packed = job.data / "originals", job.data / "packed.lmdb"
    job.attempt("small.lmdb", partial(small, job.data / "small.lmdb", 256 if job.quick else SMALL))
    job.attempt("originals", partial(taken, job, originals))
    for name, options in (("packed.lmdb", ()), ("rgb.lmdb", ("--format", "rgb"))):
        if not (job.data / name).exists():  # else it is whole: of an earlier run that was stopped
            job.attempt(name, partial(pack, originals, job.data / name, 256, *options))
    job.attempt("files", partial(unpacked, packed, job.data / "files"))
    for name, what in (("originals", "original photographs"), ("packed.lmdb", "packed photographs")):
        job.attempt(f"what {name} holds", partial(described, job, name, what))
    if not read(job.log)[1]:
        (job.data / DONE).touch()


def taken(job: Job, folder: Path) -> None:
    """Links to evenly chosen photographs of those that are given, or to sample images."""
    count = FEW if job.quick else min(PHOTOGRAPHS, A_CORE * job.cores)
    if job.photos is None:
        sample_photographs.make(job.data / "samples", -(-count // len(SCENES)), val=0, quiet=True)
    files = files_in(job.photos or job.data / "samples" / "train")
    chosen = sorted({round(at) for at in np.linspace(0, len(files) - 1, count)})
    for number in chosen:
        target = place(folder, files[number], f"{number:07d}")
        target.unlink(missing_ok=True)
        target.symlink_to(files[number].resolve())
    job.figure("different photographs", len(chosen), "")


def described(job: Job, name: str, what: str) -> None:
    """Mean bytes and pixels."""
    dataset = FastDataset(job.data / name)
    located = dataset.locate(np.arange(len(dataset)))
    job.figure(f"{what}: bytes each", float(located.length.mean()), "bytes")
    job.figure(f"{what}: pixels each", float((located.width * located.height).mean()), "pixels")


def small(container: Path, count: int) -> None:
    """Pixels of 32 x 32, of ten classes."""
    if container.exists():
        return
    rng, side = np.random.default_rng(3), {"width": 32, "height": 32}
    with open_writer(container) as writer:
        for number, pixels in enumerate(rng.integers(0, 256, (count, 32 * 32 * 3), np.uint8)):
            writer.write({"rgb": pixels.tobytes(), "cls": number % 10, "json": side})
