"""LMDB files as other programs write them: plain images by key."""

import os
from collections.abc import Mapping
from pathlib import Path

import lmdb
import numpy as np
from kernel_images import save
from numpy.typing import NDArray
from PIL import Image


def picture(number: int, kind: str = "jpeg", size: tuple[int, int] = (24, 16)) -> bytes:
    """A small image file whose pixels depend on its number."""
    return save(Image.fromarray(pixels(number, size)), kind)


def pixels(number: int, size: tuple[int, int] = (24, 16)) -> NDArray[np.uint8]:
    """Pixels that depend on a number, (height, width, 3)."""
    rows, columns = np.mgrid[: size[1], : size[0]]
    return np.stack((rows * 5 + number, columns * 3, np.full_like(rows, number * 7)), 2).astype(np.uint8)


def write(path: Path, entries: Mapping[bytes, bytes], *, folder: bool = False) -> Path:
    """Write an LMDB file, or folder, dated one minute back."""
    with (
        lmdb.open(str(path), subdir=folder, map_size=1 << 26, lock=False) as database,
        database.begin(write=True) as transaction,
    ):
        for key, value in entries.items():
            transaction.put(key, value)
    settle(path / "data.mdb" if folder else path)
    return path


def settle(path: Path) -> None:
    """Date a file one minute back, because the index of a file that has just changed is not used again."""
    os.utime(path, ns=(10**18, path.stat().st_mtime_ns - 60 * 10**9))
