"""The data of the parts: photographs, packed, as pixels, as files again, and images of CIFAR's size.

originals/     class folders of photographs: links to those given, or made here
packed.lmdb    JPEGs with the short side 256, quality 90
rgb.lmdb       pixels with the short side 256
files/         the JPEGs of packed.lmdb in class folders, for ImageFolder
small.lmdb     pixels, 32 x 32

Each is made by itself, so that parts which need no photographs run without them.
"""

import io
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.gpu import record
from benchmarks.gpu.job import Job
from benchmarks.gpu.parts import DONE
from benchmarks.photographs import files_in, pack, place, unpacked
from iofast import FastDataset, open_writer
from tools.scenes import SCENES, Camera, Surfaces, photograph

PHOTOGRAPHS, FEW = 2048, 32  # different ones; an epoch has each as often as it needs
SMALL = 10_000  # different ones; the part that works on them takes each five times, as CIFAR has 50,000
SIZES = ((500, 375), (500, 333), (375, 500), (500, 375))  # width, height
BYTES_A_PIXEL, SPREAD = 0.55, 0.35  # of ImageNet's files: 110 kB; and the deviation of its logarithm
QUALITIES = range(60, 99)


def run(job: Job, photos: Path | None = None) -> None:
    """Make all of it in `job.data`."""
    originals, packed = job.data / "originals", job.data / "packed.lmdb"
    job.attempt("small.lmdb", partial(small, job.data / "small.lmdb", 256 if job.quick else SMALL))
    job.attempt("originals", partial(taken, job, originals, photos))
    for name, options in (("packed.lmdb", ()), ("rgb.lmdb", ("--format", "rgb"))):
        if not (job.data / name).exists():  # else it is whole: of an earlier run that was stopped
            job.attempt(name, partial(pack, originals, job.data / name, 256, *options))
    job.attempt("files", partial(unpacked, packed, job.data / "files"))
    for name, what in (("originals", "original photographs"), ("packed.lmdb", "packed photographs")):
        job.attempt(f"what {name} holds", partial(described, job, name, what))
    if not record.read(job.log)[1]:
        (job.data / DONE).touch()


def taken(job: Job, folder: Path, photos: Path | None) -> None:
    """The given photographs, or as many as there is time to make."""
    count = FEW if job.quick else PHOTOGRAPHS
    count = photographs(job, folder, count) if photos is None else link(photos, folder, count)
    job.figure("different photographs", count, "")


def described(job: Job, name: str, what: str) -> None:
    """Mean bytes and pixels."""
    dataset = FastDataset(job.data / name)
    located = dataset.locate(np.arange(len(dataset)))
    job.figure(f"{what}: bytes each", float(located.length.mean()), "bytes")
    job.figure(f"{what}: pixels each", float((located.width * located.height).mean()), "pixels")


def photographs(job: Job, folder: Path, count: int) -> int:
    """Make photograph-like JPEGs with ImageNet's bytes a pixel on all cores, in half of the time left: they are packed
    afterwards. Return how many."""
    if count <= FEW:  # a process costs more
        return sum(in_time(folder, np.inf, number) for number in range(count))
    end = time.monotonic() + job.left() / 2  # the same clock in every process
    with ProcessPoolExecutor(job.cores) as pool:
        return sum(pool.map(partial(in_time, folder, end), range(count), chunksize=8))


def in_time(folder: Path, end: float, number: int) -> bool:
    """Make photograph `number` and write it, unless it is too late; whether it was made."""
    if time.monotonic() >= end:
        return False
    rng = np.random.default_rng((7, number))
    name = sorted(SCENES)[number % len(SCENES)]
    width, height = SIZES[number // len(SCENES) % len(SIZES)]
    pixels = photograph(name, Camera(rng, _surfaces(), height, width))
    target = folder / name / f"{number:05d}.jpg"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(jpeg(pixels, width * height * BYTES_A_PIXEL * float(np.exp(rng.normal(0, SPREAD)))))
    return True


def jpeg(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], wanted: float) -> bytes:
    """A JPEG of the lowest quality that gives `wanted` bytes, or of the highest quality."""
    image, low, high = Image.fromarray(pixels), 0, len(QUALITIES) - 1
    while low < high:
        middle = (low + high) // 2
        if len(_encoded(image, QUALITIES[middle])) < wanted:
            low = middle + 1
        else:
            high = middle
    return _encoded(image, QUALITIES[low])


def link(photos: Path, folder: Path, count: int) -> int:
    """Links to `count` evenly chosen photographs in class folders, or to all. Return how many."""
    files = files_in(photos)
    chosen = sorted({round(at) for at in np.linspace(0, len(files) - 1, count)})
    for number in chosen:
        target = place(folder, files[number], f"{number:07d}")
        target.unlink(missing_ok=True)
        target.symlink_to(files[number].resolve())
    return len(chosen)


def small(container: Path, count: int) -> None:
    """Pixels of 32 x 32, of ten classes."""
    if container.exists():
        return
    rng, side = np.random.default_rng(3), {"width": 32, "height": 32}
    with open_writer(container) as writer:
        for number, pixels in enumerate(rng.integers(0, 256, (count, 32 * 32 * 3), np.uint8)):
            writer.write({"rgb": pixels.tobytes(), "cls": number % 10, "json": side})


@cache
def _surfaces() -> Surfaces:
    return Surfaces(7)


def _encoded(image: Image.Image, quality: int) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()
