"""How many images a second reach the training loop, with the standard training augmentation?

python -m benchmarks.bench_load [--photos FOLDER] [--rounds 7] [--output PAGE.md]
packs the photographs (class folders; sample images where none are given) with `iofast pack --resize 256 --quality 90`
and runs, in turn, on the very same JPEG payloads:

    FastLoader              RandomResizedCrop(224) + flip to uint8 batches, checksums on, from LMDB and from plain files
    simplejpeg + cv2        a batch-wise dataset in torch's DataLoader, two workers
    Pillow                  an ImageFolder-style dataset in torch's DataLoader, two workers
    limit                   libjpeg-turbo merely decoding the files in full: C threads, reused decompressors

Workers are started and every file is read once before the clock runs, so all work from the page cache.
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.peers import datasets
from iofast import FastDataset, FastLoader, open_reader
from iofast import transforms as T

BATCH, WORKERS = 256, 2
EPOCH = 5_000  # images: long enough for start-up to vanish, short enough for many rounds
CROP = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]


def pack(photos: Path, out: Path) -> None:
    """Pack `photos`, each as many times as makes an epoch."""
    files = [path for path in sorted(photos.rglob("*")) if path.is_file()]
    copies = out.parent / "copies"
    for copy in range(-(-EPOCH // len(files))):
        for number, path in enumerate(files):
            place = copies / path.parent.name / f"{copy:04d}-{number:06d}{path.suffix}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path.resolve())
    command = [sys.executable, "-m", "iofast", "pack", str(copies), str(out), "--resize", "256", "--quality", "90"]
    subprocess.run([*command, "--quiet"], check=True)


def unpack(container: Path, folder: Path) -> list[tuple[Path, int]]:
    """The payloads as plain files in class folders, for the others."""
    files = []
    with open_reader(container) as reader:
        labels = reader.locate(np.arange(len(reader))).label.tolist()
        for index, label in enumerate(labels):
            path = folder / f"{label:04d}" / f"{index:08d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(reader.view(index))
            files.append((path, label))
    return files


def limit(files: list[tuple[Path, int]], folder: Path) -> Callable[[], float]:
    """Compile the C program and give it the payloads in one file."""
    program, blob = folder / "decode_limit", folder / "payloads"
    source = Path(__file__).parent / "peers" / "decode_limit.c"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O3", str(source), "-o", str(program), "-ljpeg", "-lpthread"], check=True)
    with blob.open("wb") as out:
        out.write(struct.pack("<I", len(files)))
        for path, _ in files:
            data = path.read_bytes()
            out.write(struct.pack("<I", len(data)) + data)
    command = [str(program), str(blob), str(WORKERS)]
    return lambda: float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def rate(loader: Iterable[Any]) -> Callable[[], float]:
    """Images a second over one epoch; the first epoch, not counted, starts the workers."""

    def run() -> float:
        images, start = 0, time.perf_counter()
        for batch, _ in loader:
            images += len(batch)
        return images / (time.perf_counter() - start)

    run()
    return run


def fast(path: Path) -> Callable[[], float]:
    """FastLoader over a container or folder."""
    return rate(FastLoader(FastDataset(path), BATCH, shuffle=True, transform=CROP, num_workers=WORKERS))


def page(figures: dict[str, list[float]], photos: str, payload: float) -> str:
    """The result as markdown."""
    ours = "FastLoader, LMDB"
    rows = [
        [
            name,
            measure.spread(values),
            f"{1e6 * WORKERS / np.median(values):,.0f}",
            f"{measure.ratio(figures, ours, name):.2f}×",
        ]
        for name, values in figures.items()
    ]
    header = ("", "images/s: median (least – most)", "µs per image and core", f"{ours} is")
    return f"""# Loading: images a second into the training loop

RandomResizedCrop(224, scale 0.08–1) + flip, batches of {BATCH} uint8 images, {WORKERS} cores, all from the page cache.
{photos}, packed with `--resize 256 --quality 90` ({payload / 1e3:.1f} kB each); every contender works on
these same JPEG payloads. {len(figures[ours])} rounds, the contenders in turn; ratios are medians over the rounds.

{measure.table(header, rows)}

The limit is libjpeg-turbo decoding the files in full and doing nothing else (`benchmarks/peers/decode_limit.c`).

{measure.machine()}
- Command: `python -m benchmarks.bench_load`
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="class folders of photographs; sample images without it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos = arguments.photos or measure.sample_photographs(folder / "photos")
        container = folder / "packed.lmdb"
        pack(photos, container)
        files = unpack(container, folder / "plain")
        contenders = {
            "FastLoader, LMDB": fast(container),
            "FastLoader, plain files": fast(folder / "plain"),
            "limit: full decode only": limit(files, folder),
            "simplejpeg + cv2, DataLoader": rate(datasets.simplejpeg_loader(files, BATCH, WORKERS)),
            "Pillow, DataLoader": rate(datasets.pillow_loader(files, BATCH, WORKERS)),
        }
        figures = measure.in_turn(contenders, arguments.rounds)
        payload = float(np.mean([path.stat().st_size for path, _ in files]))
    kind = "Real photographs" if arguments.photos else "Generated sample photographs"
    measure.publish("load", page(figures, kind, payload), arguments.output)


if __name__ == "__main__":
    main()
