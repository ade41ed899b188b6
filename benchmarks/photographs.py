"""Photographs that benchmarks work on: given ones or sample images, linked as often as needed, and packed."""

from __future__ import annotations

import contextlib
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from iofast import open_reader
from tools.machine import ROOT


@contextlib.contextmanager
def workplace(photos: Path | None, folder: Path | None = None) -> Iterator[tuple[Path, Path]]:
    """A temporary folder (in `folder`), and the photographs: `photos`, or sample images made in it."""
    with tempfile.TemporaryDirectory(prefix="iofast-bench-", dir=folder) as name:
        yield Path(name), photos or sample(Path(name, "photos"))


def sample(folder: Path) -> Path:
    """Make photograph-like sample images in `folder`."""
    subprocess.run([sys.executable, "-m", "tools.sample_photographs", str(folder)], check=True, cwd=ROOT)
    return folder


def kind(photos: Path | None) -> str:
    """The name of the photographs on a page."""
    return "Real photographs" if photos else "Generated sample photographs"


def files_in(folder: Path) -> list[Path]:
    """All files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in files_in(folder))


def place(folder: Path, source: Path, name: str) -> Path:
    """A path for a photograph in `folder`: in the class folder of `source`, which is created, under another name."""
    target = folder / source.parent.name / f"{name}{source.suffix}"
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def link(photos: Path, folder: Path, count: int) -> Path:
    """Class folders of `count` links to the photographs, which repeat in turn."""
    files = files_in(photos)
    for number in range(count):
        path = files[number % len(files)]
        place(folder, path, f"{number:07d}").symlink_to(path.resolve())
    return folder


def vary(photos: Path, folder: Path, count: int) -> Path:
    """Class folders of `count` different images: the photographs, then their crops, which begin ever further inside.

    Equal images cost a comparison each, which no collection has for seven images of eight, as `link` does.
    """
    files = files_in(photos)
    jobs = [(files[number % len(files)], folder, number, number // len(files)) for number in range(count)]
    with multiprocessing.Pool() as pool:
        pool.starmap(_vary, jobs, chunksize=16)
    return folder


def _vary(path: Path, folder: Path, number: int, inset: int) -> None:
    goal = place(folder, path, f"{number:07d}")
    if not inset:
        goal.symlink_to(path.resolve())
        return
    with Image.open(path) as image:
        cropped = image.crop((inset, inset, *image.size))
        cropped.save(goal, image.format, quality=92, icc_profile=image.info.get("icc_profile"))


def pack(source: Path, out: Path, size: int = 256, *options: str) -> Path:
    """Pack with a short side of `size` pixels and the default quality of 90."""
    command = [sys.executable, "-m", "iofast", "pack", str(source), str(out), "--resize", str(size)]
    subprocess.run([*command, *options, "--quiet"], check=True)
    return out


def payload_lengths(container: Path) -> NDArray[np.uint32]:
    """Bytes of each image of a container."""
    with open_reader(container) as reader:
        return reader.locate(np.arange(len(reader))).length
