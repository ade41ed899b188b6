"""Small image files and folders for the tests of plain folders."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from kernel_images import View, decode_views, exif, save
from PIL import Image

from iofast.containers.base import Reader


def image(width: int, height: int, kind: str = "JPEG", orientation: int = 1, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return save(Image.fromarray(pixels), kind, **({"exif": exif(orientation)} if orientation > 1 else {}))


def make_folder(tmp_path: Path) -> Path:
    """Five old files of two classes: an upright and a turned JPEG, a PNG, a WebP, and one without an image."""
    files = {
        "cat/1.jpg": image(40, 30),
        "cat/2.jpg": image(50, 20, orientation=6),
        "cat/3.png": image(17, 9, "PNG"),
        "dog/4.webp": image(12, 34, "WEBP"),
        "dog/5.jpg": b"no image at all",
    }
    for path, data in files.items():
        (tmp_path / "root" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / path).write_bytes(data)
    settle(tmp_path / "root")
    return tmp_path / "root"


def settle(root: Path) -> None:
    """Date folders back, so that no file seems to have been added or removed lately."""
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        os.utime(folder, (1_000_000_000, 1_000_000_000))


def decode(reader: Reader, rows: Sequence[int], size: int = 8) -> tuple[np.ndarray, list[int]]:
    """Whole images resampled to a square, and the status of each row; asked for as rows 1 … n of what was located."""
    located = reader.locate(np.array([0, *rows]))
    sides = zip(located.width[1:].tolist(), located.height[1:].tolist(), strict=True)
    with reader.payloads(located, 1, len(rows) + 1) as payloads:
        status, out = decode_views(payloads, [View((0, 0, *side, size, size, 0, 0), (size, size)) for side in sides])
    return out, status


def few(root: Path, good: int, bad: int = 0) -> Path:
    """A flat folder of tiny pictures, the first `bad` of them damaged."""
    root.mkdir()
    for number in range(good + bad):
        path = root / f"{number:03d}.png"
        Image.new("RGB", (8, 8), (number % 256, 0, 0)).save(path)
        if number < bad:
            path.write_bytes(path.read_bytes()[:40])
    return root
