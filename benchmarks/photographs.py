"""Photographs that benchmarks work on: given ones or sample images, linked as often as needed, and packed."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast import open_reader, open_writer
from tools import sample_photographs


@contextlib.contextmanager
def workplace(photos: Path | None, folder: Path | None = None, per_class: int = 250) -> Iterator[tuple[Path, Path]]:
    """A temporary folder (in `folder`), and the photographs: `photos`, or `per_class` sample images a class in it."""
    with tempfile.TemporaryDirectory(prefix="iofast-bench-", dir=folder) as name:
        made = Path(name, "photos")
        if photos is None:
            sample_photographs.make(made, per_class, val=2)
        yield Path(name), photos or made


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


def pack(source: Path, out: Path, size: int = 256, *options: str) -> Path:
    """Pack with a short side of `size` pixels and the default quality of 90."""
    command = [sys.executable, "-m", "iofast", "pack", str(source), str(out), "--resize", str(size)]
    subprocess.run([*command, *options, "--quiet"], check=True)
    return out


def unpacked(container: Path, folder: Path, change: Callable[[bytes], bytes] = bytes) -> list[tuple[Path, int]]:
    """The container's JPEGs in class folders, after `change`, with their labels."""
    files = []
    with open_reader(container) as reader:
        for index, label in enumerate(reader.locate(np.arange(len(reader))).label.tolist()):
            path = folder / f"{label:04d}" / f"{index:08d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(change(bytes(reader.view(index))))
            files.append((path, label))
    return files


def payload_lengths(container: Path) -> NDArray[np.uint32]:
    """Bytes of each image of a container."""
    with open_reader(container) as reader:
        return reader.locate(np.arange(len(reader))).length


def repeated(container: Path, out: Path, size: float, **options: Any) -> int:
    """Repeat the records of a container until there are `size` bytes of images; return how many records there are."""
    with open_reader(container) as reader, open_writer(out, **options) as writer:
        records = [dict(reader.record(index).fields) for index in range(len(reader))]
        written = number = 0
        while written < size:
            fields = records[number % len(records)]
            writer.write({"jpg": fields["jpg"], "cls": int(fields["cls"])})
            written, number = written + len(fields["jpg"]), number + 1
    return number
