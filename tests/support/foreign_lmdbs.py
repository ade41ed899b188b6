"""LMDB files as other programs write them: plain images by key, Caffe's Datums, pickles."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path

import lmdb
import numpy as np
from numpy.typing import NDArray
from PIL import Image


def picture(number: int, kind: str = "jpeg", size: tuple[int, int] = (24, 16)) -> bytes:
    """A small image file whose pixels depend on its number."""
    out = io.BytesIO()
    Image.fromarray(pixels(number, size)).save(out, kind)
    return out.getvalue()


def pixels(number: int, size: tuple[int, int] = (24, 16)) -> NDArray[np.uint8]:
    """Pixels that depend on a number, (height, width, 3)."""
    rows, columns = np.mgrid[: size[1], : size[0]]
    return np.stack((rows * 5 + number, columns * 3, np.full_like(rows, number * 7)), 2).astype(np.uint8)


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def datum(
    data: bytes, shape: tuple[int, int, int] = (0, 0, 0), label: int | None = None, encoded: bool = False
) -> bytes:
    """A serialised Caffe Datum; `shape` is channels, height, width, and members that are 0 are left out."""
    parts = [bytes([8 * number]) + varint(value) for number, value in enumerate(shape, 1) if value]
    parts.append(b"\x22" + varint(len(data)) + data)
    parts += [] if label is None else [b"\x28" + varint(label)]
    parts += [b"\x38\x01"] if encoded else []
    return b"".join(parts)


def planes(image: NDArray[np.uint8]) -> bytes:
    """The planes of a Datum: blue, green, red."""
    return image[:, :, ::-1].transpose(2, 0, 1).tobytes()


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
