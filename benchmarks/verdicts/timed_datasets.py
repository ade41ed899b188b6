"""Datasets whose samples have a known cost."""

from __future__ import annotations

import io
import os
import tarfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from benchmarks.verdicts.programs import Program
from iofast import FastDataset, open_writer, pack

PICTURES: Final = 48
_SIZE: Final = (800, 600)
_BLOB: Final = 1 << 20  # bytes of a sample on the slow disk
_FOLDERS: Final = 4
_PINNING_S: Final = 0.05


def pictures(folder: Path) -> list[Path]:
    """JPEG files of 800 x 600 with as much detail as photographs have; made once."""
    paths = [folder / f"class{n % _FOLDERS}" / f"{n:03}.jpg" for n in range(PICTURES)]
    for number, path in enumerate(paths):
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(number)
        coarse = Image.fromarray(random.integers(0, 256, (38, 50, 3), np.uint8)).resize(_SIZE, Image.Resampling.BICUBIC)
        noise = random.integers(-12, 13, (*_SIZE[::-1], 3))
        pixels = np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8)
        part = path.with_suffix(".part")
        Image.fromarray(pixels).save(part, "JPEG", quality=90)
        part.rename(path)
    return paths


def blobs(folder: Path) -> list[Path]:
    """Files to be read from the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{n:02}.bin" for n in range(16)]
    for path in paths:
        if not path.exists():
            path.write_bytes(os.urandom(_BLOB))
    os.sync()  # dirty pages cannot be dropped from the cache
    return paths


def stored(folder: Path, copies: int) -> Path:
    """The folder of `set.tar`, shards of iofast with copies of the pictures."""
    path = folder / f"stored{copies}"
    if not path.exists():
        part = path.with_suffix(".part")
        part.mkdir(exist_ok=True)
        with open_writer(part / "set.tar", overwrite=True) as writer:
            for number, picture in enumerate(pictures(folder / "pictures") * copies):
                writer.write({"jpg": picture.read_bytes(), "cls": number % _FOLDERS})
        part.rename(path)
    return path


def shard(folder: Path) -> Path:
    """A tar of pictures and labels, as webdataset reads it."""
    path = folder / "shard.tar"
    if not path.exists():
        part = folder / "shard.part"
        with tarfile.open(part, "w") as tar:
            for number, picture in enumerate(pictures(folder / "pictures")):
                for suffix, value in (("jpg", picture.read_bytes()), ("cls", b"%d" % (number % _FOLDERS))):
                    member = tarfile.TarInfo(f"{number:03}.{suffix}")
                    member.size = len(value)
                    tar.addfile(member, io.BytesIO(value))
        part.rename(path)
    return path


def decoded(file: Path | io.BytesIO) -> torch.Tensor:
    """A small image, by Pillow."""
    with Image.open(file) as image:
        return torch.from_numpy(np.array(image.convert("RGB").resize((64, 64))))


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """Small images; subclasses add a cost, in `spend` or in making them."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.item_s = program.cost_s / program.batch

    def __len__(self) -> int:
        return self.program.batches * self.program.batch

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        self.spend(index)
        return torch.zeros(3, 32, 32, dtype=torch.uint8), index % 10

    def spend(self, index: int) -> None:
        """What a sample costs before it is made."""


class Sleeping(Samples):
    """A slow storage: each sample takes time, but no processor."""

    def spend(self, _: int) -> None:
        time.sleep(self.item_s)


class Decoding(Samples):
    """JPEG files, decoded and resized by Pillow."""

    def __init__(self, program: Program, folder: Path) -> None:
        super().__init__(program, folder)
        self.paths = pictures(folder / "pictures")

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        return decoded(self.paths[index * 7 % PICTURES]), index % 10


class Packed(Samples):
    """The same pictures out of one file, packed with a short side of 256."""

    def __init__(self, program: Program, folder: Path) -> None:
        super().__init__(program, folder)
        pictures(folder / "pictures")
        path = folder / "packed.lmdb"
        if not path.exists():
            pack(folder / "pictures", path, resize=256, progress=False)
        self.data = FastDataset(path)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        image, _ = self.data[index * 7 % PICTURES]
        return torch.from_numpy(np.array(image.resize((64, 64)))), index % 10


class OnDisk(Samples):
    """Files that are not in the page cache."""

    def __init__(self, program: Program, folder: Path) -> None:
        super().__init__(program, folder)
        self.paths = blobs(folder / "blobs")

    def spend(self, index: int) -> None:
        with self.paths[index * 5 % len(self.paths)].open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.read(_BLOB)


class Stored(Samples):
    """Objects of a web server, which answers each request after `item_s`."""

    def spend(self, _: int) -> None:
        with urllib.request.urlopen((self.folder / "url").read_text()) as answer:
            answer.read()


class Listed(Samples):
    """Samples of many Python objects: cheap to make, costly to send from process to process."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        image, _ = super().__getitem__(index)
        return image, [float(number) for number in range(int(8e6 * self.item_s))]


class Large(Samples):
    """Samples of 1 MB: cheap to make, costly to copy."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        return torch.zeros(1 << 20, dtype=torch.uint8), index % 10


def collate_lists(samples: list[tuple[torch.Tensor, Any]]) -> tuple[torch.Tensor, list[Any]]:
    """Stack the images and keep the lists."""
    return torch.stack([image for image, _ in samples]), [label for _, label in samples]


class PaddingCollate:
    """A collate function in plain Python that takes `seconds` of a processor."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, samples: list[tuple[torch.Tensor, Any]]) -> tuple[torch.Tensor, NDArray[np.int64]]:
        until = time.thread_time() + self.seconds
        rows: list[list[int]] = []
        while time.thread_time() < until:
            rows = [[*row.tolist(), 0] for image, _ in samples for row in image[0]]
        return torch.stack([image for image, _ in samples]), np.array(rows)


class PinnedBatch:
    """A batch whose copy into pinned memory takes `_PINNING_S` of a processor."""

    def __init__(self, samples: list[tuple[torch.Tensor, Any]]) -> None:
        self.images = torch.stack([image for image, _ in samples])

    def pin_memory(self) -> PinnedBatch:
        copy = torch.empty_like(self.images)
        until = time.thread_time() + _PINNING_S
        while time.thread_time() < until:
            copy.copy_(self.images)
        self.images = copy
        return self


KINDS: Final = {
    "nothing": Samples,
    "start": Samples,
    "sleep": Sleeping,
    "decode": Decoding,
    "packed": Packed,
    "disk": OnDisk,
    "store": Stored,
    "collate": Samples,
    "pickle": Listed,
    "copy": Large,
}
