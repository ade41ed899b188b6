"""Data for the tests of dataset and loader: small photographs in class folders, and the same bytes in an LMDB."""

import ctypes
import hashlib
import os
import threading
from collections.abc import Iterable, Sequence
from functools import cache
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from at_once import eventually as eventually
from kernel_images import exif, jpeg, photo
from PIL import Image, ImageOps
from region_images import OWN, encode, texture
from torch.utils._pytree import tree_flatten

from iofast import FastLoader, open_writer
from iofast.record import ImageInfo

CLASSES = ("ant", "bee", "cat")


def photographs(count: int = 40) -> list[bytes]:
    """JPEGs of different sizes, wide and tall, also gray and progressive, with all EXIF orientations."""
    return [_photograph(i) for i in range(count)]


@cache
def _photograph(i: int) -> bytes:
    options: dict[str, object] = {"progressive": i % 5 == 1, "quality": 85 + i % 10}
    if i % 4 == 3:
        options["exif"] = exif(1 + i // 4 % 8)
    return jpeg(photo(40 + 7 * i % 61, 40 + 11 * i % 53, i), "L" if i % 9 == 4 else "RGB", **options)


def write_folder(root: Path, images: Sequence[bytes]) -> Path:
    """Write class folders. Image i is in class i * 3 // n, so that the list and the folder have the same order."""
    for i, data in enumerate(images):
        path = root / CLASSES[i * len(CLASSES) // len(images)] / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def write_lmdb(path: Path, images: Sequence[bytes]) -> Path:
    """Write the records of a verbatim packing of `write_folder(images)`."""
    with open_writer(path, classes=CLASSES) as writer:
        for i, data in enumerate(images):
            writer.write({"jpg": data, "cls": i * len(CLASSES) // len(images)})
    return path


def with_markers(count: int) -> list[bytes]:
    """Photographs of many sizes; four of five have restart markers."""
    rng, files = np.random.default_rng(0), photographs(count)
    for row in range(count):
        if row % 5:
            width, height = (int(side) for side in rng.integers(30, 120, 2))
            files[row] = encode(texture(rng, width, height), OWN[row % 4], 3, 90).data
    return files


def write_numbered(path: Path, images: Sequence[bytes]) -> Path:
    """Write an LMDB in which every image's label is its number."""
    with open_writer(path) as writer:
        for i, data in enumerate(images):
            writer.write({"jpg": data, "cls": i})
    return path


def with_broken(path: Path, images: Sequence[bytes], broken: Iterable[int]) -> Path:
    """Write a numbered LMDB. The payloads `broken` end after their headers, so that no decoder gets pixels."""
    with open_writer(path) as writer:
        sizes = [Image.open(BytesIO(data)).size for data in images]
        writer._describe = lambda fields: ImageInfo(int(fields["cls"]), *sizes[int(fields["cls"])], 1)
        for i, data in enumerate(images):
            writer.write({"jpg": data[: len(data) // 3] if i in set(broken) else data, "cls": i})
    return path


def upright(data: bytes) -> Image.Image:
    """The image as Pillow decodes it."""
    return ImageOps.exif_transpose(Image.open(BytesIO(data))).convert("RGB")


def digest(batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> str:
    """SHA-256 over pixels and labels of batches, in order."""
    total = hashlib.sha256()
    for images, labels in batches:
        total.update(repr((tuple(images.shape), images.dtype)).encode())
        # not by torch: after a fork its OpenMP hangs in the child
        total.update(images.numpy().tobytes())
        total.update(labels.numpy().tobytes())
    return total.hexdigest()


def workers() -> int:
    """Threads of loaders in this process. That of object stores' requests runs until the process ends."""
    names = (thread.name for thread in threading.enumerate())
    return sum(name.startswith("iofast-") and name != "iofast-requests" for name in names)


def threads() -> int:
    """Threads of this process, including those of C libraries; a joined one may be counted a little longer."""
    return len(os.listdir("/proc/self/task"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    """MiB of memory in use, without what the allocator keeps of freed blocks.

    Pages of files are left out too: the kernel takes those of torch's libraries back, until they are used again.
    """
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) >> 10


def labels_of(batches: Iterable[tuple[object, torch.Tensor]], first: int | None = None) -> list[list[int]]:
    """The labels of each batch, of all batches or the `first` few; no further batch is requested."""
    return [labels.tolist() for _, labels in islice(batches, first)]


def all_labels(batches: Iterable[tuple[object, torch.Tensor]]) -> list[int]:
    """`labels_of` in one list."""
    return [label for labels in labels_of(batches) for label in labels]


def check_equal(own: Iterable[Any], other: Iterable[Any]) -> None:
    """Compare batches of any structure: tensors with their strides, and other values."""
    for batch, expected in zip(own, other, strict=True):
        (leaves, structure), (wanted, same) = tree_flatten(batch), tree_flatten(expected)
        assert structure == same
        for found, value in zip(leaves, wanted, strict=True):
            if isinstance(value, torch.Tensor):
                assert torch.equal(found, value)
                assert found.stride() == value.stride()
            else:
                assert found == value


def break_out(loader: FastLoader) -> None:
    for images, _ in loader:
        assert len(images) == 4
        break


def fail_in_the_loop(loader: FastLoader) -> None:
    def train() -> None:
        for _, labels in loader:
            _ = len(labels) / 0

    with pytest.raises(ZeroDivisionError):
        train()
