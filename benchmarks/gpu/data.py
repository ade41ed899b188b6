"""What the parts work on: photographs, packed, as pixels, as files again, and images of CIFAR's size.

originals/     class folders of photographs: links to those given, or made here
packed.lmdb    JPEGs with the short side 256, quality 90
rgb.lmdb       pixels with the short side 256
files/         the JPEGs of packed.lmdb in class folders, for ImageFolder
small.lmdb     pixels, 32 x 32
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.gpu.job import Job
from iofast import FastDataset, open_reader, open_writer
from tools.scenes import SCENES, Camera, Surfaces, photograph

PHOTOGRAPHS, FEW = 2048, 32  # different ones; an epoch has each as often as it needs
SMALL = 50_000  # as CIFAR
SIZES = ((500, 375), (500, 333), (375, 500), (500, 375))  # width, height
BYTES_A_PIXEL, SPREAD = 0.55, 0.35  # of ImageNet's files: 110 kB; and the deviation of its logarithm
QUALITIES = range(60, 99)


def run(job: Job, photos: Path | None = None) -> None:
    """Make all of it in `job.data`."""
    count = FEW if job.quick else PHOTOGRAPHS
    originals = job.data / "originals"
    if photos is None:
        photographs(originals, count)
    else:
        link(photos, originals, count)
    pack(originals, job.data / "packed.lmdb")
    pack(originals, job.data / "rgb.lmdb", "--format", "rgb")
    as_files(job.data / "packed.lmdb", job.data / "files")
    small(job.data / "small.lmdb", 256 if job.quick else SMALL)
    for name, what in (("originals", "original photographs"), ("packed.lmdb", "packed photographs")):
        dataset = FastDataset(job.data / name)
        located = dataset.locate(np.arange(len(dataset)))
        job.figure(f"{what}: bytes each", float(located.length.mean()), "bytes")
        job.figure(f"{what}: pixels each", float((located.width * located.height).mean()), "pixels")
    job.figure("different photographs", count, "")


def photographs(folder: Path, count: int) -> None:
    """Photograph-like JPEGs, as many bytes a pixel as ImageNet's: generated scenes, on all cores."""
    if count <= FEW:  # a process costs more
        for number in range(count):
            one(folder, number)
        return
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(one, [folder] * count, range(count), chunksize=16))


def one(folder: Path, number: int) -> None:
    """Make photograph `number` and write it."""
    rng = np.random.default_rng((7, number))
    name = sorted(SCENES)[number % len(SCENES)]
    width, height = SIZES[number // len(SCENES) % len(SIZES)]
    pixels = photograph(name, Camera(rng, _surfaces(), height, width))
    target = folder / name / f"{number:05d}.jpg"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(jpeg(pixels, width * height * BYTES_A_PIXEL * float(np.exp(rng.normal(0, SPREAD)))))


def jpeg(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], wanted: float) -> bytes:
    """A JPEG of the lowest quality that makes it `wanted` bytes long, or of the highest."""
    image, low, high = Image.fromarray(pixels), 0, len(QUALITIES) - 1
    while low < high:
        middle = (low + high) // 2
        if len(_encoded(image, QUALITIES[middle])) < wanted:
            low = middle + 1
        else:
            high = middle
    return _encoded(image, QUALITIES[low])


def link(photos: Path, folder: Path, count: int) -> None:
    """Links to `count` of the photographs in class folders, evenly chosen; all where there are fewer."""
    files = [path for path in sorted(photos.rglob("*")) if path.is_file()]
    for number in sorted({round(at) for at in np.linspace(0, len(files) - 1, count)}):
        place = folder / files[number].parent.name / f"{number:07d}{files[number].suffix}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(files[number].resolve())


def pack(source: Path, out: Path, *options: str) -> None:
    """Pack with the short side 256."""
    command = [sys.executable, "-m", "iofast", "pack", str(source), str(out), "--resize", "256", "--quality", "90"]
    subprocess.run([*command, *options, "--quiet"], check=True)


def as_files(container: Path, folder: Path) -> None:
    """The container's JPEGs in class folders."""
    with open_reader(container) as reader:
        for index, label in enumerate(reader.locate(np.arange(len(reader))).label.tolist()):
            path = folder / f"{label:04d}" / f"{index:07d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(reader.view(index)))


def small(container: Path, count: int) -> None:
    """Pixels of 32 x 32, of ten classes."""
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
