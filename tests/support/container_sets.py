"""The same small data set in every container, for the tests of commands."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from kernel_images import exif, save
from PIL import Image

from iofast.opening import is_container, open_reader
from iofast.packing import PackOptions, PackReport
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.run import run
from iofast.record import Record
from iofast.record_writer import open_writer

CLASSES = ("cat", "dog", "emu")
SUFFIXES = (".lmdb", ".tar", ".tfrecord")
COUNT = 24


def picture(number: int, kind: str = "jpeg", size: tuple[int, int] = (48, 40), orientation: int = 1) -> bytes:
    """An encoded image whose pixels depend on its number."""
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (5, 6, 3), np.uint8)
    image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    return save(image, kind, **({"exif": exif(orientation)} if orientation != 1 else {}))


def mask(number: int) -> bytes:
    """A palette image with the classes 0, 1 and 2."""
    array = np.zeros((40, 48), np.uint8)
    array[5:20, 8:30] = 1 + number % 2
    image = Image.fromarray(array, "P")
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    return save(image, "png")


def fields_of(number: int) -> dict[str, bytes]:
    """A record with a JPEG or PNG, label and path; some have an EXIF orientation, a mask or a caption."""
    label = number % 3
    kind = "png" if number % 5 == 4 else "jpg"
    orientation = 6 if number % 7 == 3 and kind == "jpg" else 1
    path = f"{CLASSES[label]}/{number:03d}.{kind}"
    fields = {
        kind: picture(number, "png" if kind == "png" else "jpeg", orientation=orientation),
        "cls": b"%d" % label,
        "json": json.dumps({"path": path, "boxes": [[4, 6, 20, 30]]}, separators=(",", ":")).encode(),
    }
    if number % 4 == 0:
        fields["seg.png"] = mask(number)
    if number % 6 == 0:
        fields["txt"] = f"number {number}".encode()
    return fields


def split_of(number: int) -> str:
    return "train" if number < 16 else "val"


def in_shards(path: Path | str, size: int) -> dict[str, int]:
    """The option `shard_size` if it has an effect."""
    return {"shard_size": size} if Path(path).suffix in SUFFIXES[1:] else {}


def build(path: Path, count: int = COUNT, *, shard_size: int = 20_000, splits: bool = True) -> Path:
    """Make a container of `count` records at `path`; the suffix selects the format."""
    with open_writer(path, classes=CLASSES, recipe={"resize": 48}, **in_shards(path, shard_size)) as writer:
        for number in range(count):
            writer.write(fields_of(number), split=split_of(number) if splits else None)
    return path


def records(path: Path | str) -> list[Record]:
    with open_reader(path) as reader:
        return list(reader)


def files(path: Path) -> list[Path]:
    """All files of a container."""
    if path.is_file():
        return [path]
    return sorted(each for each in path.parent.iterdir() if each.name.startswith(path.stem) and each.is_file())


class Quiet(PackProgress):
    """Shows nothing, and raises `what` after `number` records."""

    def __init__(self, number: int = 0, what: BaseException | None = None) -> None:
        super().__init__()
        self._left, self._what = number, what

    def warn(self, text: str) -> None:
        """Leave the warning to the report."""

    def step(self, images: int, size: int, failed: int) -> None:
        self._left -= 1
        if self._what is not None and not self._left:
            raise self._what


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    progress: PackProgress | None = None,
    **options: Any,
) -> PackReport:
    """What `iofast convert` does."""
    with WorkerPool(1, idle=is_container(source)) as pool:
        return run(source, target, PackOptions(format="keep", check="end", **options), progress or Quiet(), pool)
