"""Make photograph-like sample images in class folders, for `make demo`, the tests and benchmarks.

    python -m tools.sample_photographs DST [--per-class 150] [--val 30] [--seed 0]

Writes DST/train/<class>/*.jpg and DST/val/<class>/*.jpg: about 500 x 375 pixels, JPEG quality around 90, some upright,
a few with an EXIF orientation, progressive or gray, as in folders of photographs. The same seed makes the same images.
"""

import argparse
import io
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from tools.scenes import SCENES, Camera, Surfaces, photograph

SIZES = ((500, 375), (500, 375), (500, 333), (375, 500), (640, 480), (333, 500), (768, 576))  # width, height


@dataclass(frozen=True)
class Shot:
    """One image to make."""

    target: Path
    name: str  # the class
    seed: tuple[int, int]  # of the whole set, and this image's number


def shots(root: Path, per_class: int, val: int, seed: int) -> list[Shot]:
    """All images in order: `per_class` images to train on and `val` to evaluate with, per class."""
    counts = {"train": per_class, "val": val}
    images = [(split, name, i) for split, count in counts.items() for name in sorted(SCENES) for i in range(count)]
    return [
        Shot(root / split / name / f"{name}_{i:04d}.jpg", name, (seed, number))
        for number, (split, name, i) in enumerate(images)
    ]


def take(shot: Shot) -> Path:
    """Make one image and write it."""
    rng = np.random.default_rng(shot.seed)
    width, height = SIZES[rng.integers(len(SIZES))]
    pixels = photograph(shot.name, Camera(rng, _surfaces(shot.seed[0]), height, width))
    shot.target.parent.mkdir(parents=True, exist_ok=True)
    shot.target.write_bytes(jpeg(rng, pixels))
    return shot.target


def jpeg(rng: np.random.Generator, pixels: NDArray[np.uint8]) -> bytes:
    """Encode as cameras and websites do: mostly 4:2:0 baseline; one in 25 rotated by EXIF, gray, or progressive."""
    image, options = Image.fromarray(pixels), {"quality": int(rng.integers(86, 95))}
    kind = rng.integers(75)
    if kind == 0:
        image = image.convert("L")
    elif kind == 1:
        options["progressive"] = True
    elif kind in (2, 3):
        image = image.transpose(Image.Transpose.ROTATE_90)  # stored lying down, to be turned by 90 degrees clockwise
        exif = Image.Exif()
        exif[0x0112] = 6
        options["exif"] = exif.tobytes()
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


@cache
def _surfaces(seed: int) -> Surfaces:
    return Surfaces(seed)


def make(root: Path, per_class: int = 150, val: int = 30, seed: int = 0, *, quiet: bool = False) -> list[Path]:
    """Make the images, on all cores, with a progress bar. Returns their paths."""
    wanted = shots(root, per_class, val, seed)
    return list(tqdm(_results(wanted), total=len(wanted), desc="sample images", unit="img", disable=quiet))


def _results(wanted: list[Shot]) -> Iterator[Path]:
    workers = len(os.sched_getaffinity(0))
    if len(wanted) < 50 or workers == 1:  # a process and its surfaces cost as much as 50 images
        yield from map(take, wanted)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(take, wanted, chunksize=16)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make photograph-like sample images in class folders.")
    parser.add_argument("target", type=Path, metavar="DST")
    parser.add_argument("--per-class", type=int, default=150, help="images per class to train on (default 150)")
    parser.add_argument("--val", type=int, default=30, help="images per class to evaluate with (default 30)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    paths = make(args.target, args.per_class, args.val, args.seed)
    size = sum(path.stat().st_size for path in paths)
    print(f"{len(paths)} images, {size / 1e6:.1f} MB, in {args.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
