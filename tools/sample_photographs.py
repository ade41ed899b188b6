"""Make photograph-like sample images in class folders, for `make demo`, the tests and benchmarks.

    python -m tools.sample_photographs DST [--per-class 150] [--val 30] [--seed 0]

Writes DST/train/<class>/*.jpg and DST/val/<class>/*.jpg: about 500 x 375 pixels, JPEG quality around 90, some upright,
a few with an EXIF orientation, progressive or gray, as in folders of photographs. The same seed makes the same images.
"""

import argparse
import io
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from tools.scenes import SCENES, Camera, Surfaces, photograph

SIZES = ((500, 375), (500, 375), (500, 333), (375, 500), (640, 480), (333, 500), (768, 576))  # width, height


def take(seed: int, number: int, target: Path) -> Path:
    """Make the image `number` of a set, of the class that its folder names, and write it."""
    rng = np.random.default_rng((seed, number))
    width, height = SIZES[rng.integers(len(SIZES))]
    pixels = photograph(target.parent.name, Camera(rng, _surfaces(seed), height, width))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(jpeg(rng, pixels))
    return target


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
    """Make `per_class` images to train on and `val` to evaluate with, per class, on all cores. Returns their paths."""
    targets = [
        root / split / name / f"{name}_{number:04d}.jpg"
        for split, images in (("train", per_class), ("val", val))
        for name in sorted(SCENES)
        for number in range(images)
    ]
    work, numbers, workers = partial(take, seed), range(len(targets)), len(os.sched_getaffinity(0))
    few = len(targets) < 50  # a process and its surfaces cost as much
    with nullcontext() if few or workers == 1 else ProcessPoolExecutor(workers) as pool:
        made = map(work, numbers, targets) if pool is None else pool.map(work, numbers, targets, chunksize=16)
        return list(tqdm(made, total=len(targets), desc="sample images", unit="img", disable=quiet))


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
