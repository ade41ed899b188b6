"""How many images a second reach the training loop, and how many could if all else were free?

python -m benchmarks.bench_load [--part load|cold|recipes ...] [--photos FOLDER] [--rounds N]

    load      FastLoader to uint8 batches of 224 x 224 from the container, plain files (JPEG, PNG, WebP, AVIF) and
              originals, beside DataLoaders with simplejpeg + cv2 and with Pillow, and beside limits: libjpeg-turbo
              alone, the resampler alone, Python
    cold      what is not in the page cache, from a slow disk and from the disk as it is
    recipes   what augmentation costs, and one operation beside other libraries'

Photographs are packed with `iofast pack --resize 256 --quality 90`; contenders run in turn. Plain files hold the same
coefficients as the container's, without markers and with the standard Huffman tables.
"""

import io
import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

from benchmarks import measure
from benchmarks.photographs import files_in, link, pack, payload_lengths, place, unpacked
from iofast import FastDataset, FastLoader, kernel, open_writer
from iofast import transforms as T
from iofast.bench import BUFFER, BenchOptions, FirstImages
from iofast.kernel import native
from iofast.transforms import compile as compile_transform

BATCH, WORKERS = 256, 2
EPOCH = 5_000  # images: long enough for start-up to vanish, short enough for many rounds
MANY = 40_000  # records where nothing is decoded: an epoch of a quarter of a second
RESAMPLED = 2_048  # raw images held in memory: half a gigabyte, more than any cache
COPIED = 1_500  # of the packed photographs, as files of other formats
ORIGINALS = 1_500  # of the original photographs, which take five times as long
CROP = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
CENTRE = [T.Resize(256), T.CenterCrop(224)]
OURS, LIMIT = "FastLoader, LMDB", "limit: full decode only"
ORIGINAL_LIMIT = "limit of the originals"
RESAMPLER = "the resampler alone"
FORMATS = {"PNG": 1.8, "WebP": 1.4, "AVIF": 1.0}  # and how many times as fast as Pillow in a DataLoader is asked

Files = list[tuple[Path, int]]


def plain(container: Path, folder: Path) -> tuple[Path, Files]:
    """The container's images without markers and with standard tables: in one file for the C program, and as files in
    class folders."""

    def change(data: bytes) -> bytes:
        changed = native.rewrite(data, 0, native.STANDARD)
        assert changed is not None  # what `pack` wrote can be rewritten
        return changed

    files = unpacked(container, folder / "files", change)
    write_blob(folder / "plain", [path.read_bytes() for path, _ in files])
    return folder / "plain", files


def write_blob(path: Path, payloads: Sequence[bytes]) -> None:
    """Write the C program's input: the number of payloads (u32), then each with its length (u32) before it."""
    path.write_bytes(struct.pack("<I", len(payloads)) + b"".join(struct.pack("<I", len(p)) + p for p in payloads))


def limit(blob: Path, folder: Path, threads: int = WORKERS) -> Callable[[], float]:
    """Images a second of the C program, which decodes in full and does nothing else."""
    source, program = Path(__file__).parent / "peers" / "decode_limit.c", folder / "decode_limit"
    command = [os.environ.get("CC", "cc"), "-O3", str(source), "-o", str(program), "-ljpeg", "-lpthread"]
    subprocess.run(command, check=True)
    command = [str(program), str(blob), str(threads)]
    return lambda: float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def rate(loader: Iterable[Any], epochs: int = 2) -> Callable[[], float]:
    """A measurement of one epoch in images a second; the epochs before the last run here."""

    def run() -> float:
        images, start = 0, time.perf_counter()
        for _, labels in loader:  # of several views the images are a dictionary
            images += len(labels)
        return images / (time.perf_counter() - start)

    for _ in range(epochs - 1):
        run()
    return run


def fast(path: Path, transform: Any = CROP, workers: int = WORKERS, **options: Any) -> Callable[[], float]:
    """FastLoader over a container or folder."""
    return rate(FastLoader(FastDataset(path), BATCH, shuffle=True, transform=transform, num_workers=workers, **options))


def resampler(rgb: Path) -> Callable[[], float]:
    """Images a second of the kernel alone on raw pixels in memory, on as many threads: boxes, resampling, the store."""
    dataset = FastDataset(rgb)
    sample = FirstImages(dataset, compile_transform(CROP), min(len(dataset), RESAMPLED), BenchOptions())
    located, count = sample.located, sample.count
    pixels = [np.frombuffer(bytes(sample.reader.view(index)), np.uint8) for index in located.indices.tolist()]
    fds, lengths = np.full(count, -1, np.int32), np.array([each.size for each in pixels], np.uint64)
    raw = np.stack([located.kind, located.width, located.height], axis=1).astype(np.int32)
    addresses = np.array([each.ctypes.data for each in pixels], np.uint64)
    upright = np.ones(count, np.uint8)

    contexts = [kernel.Context(sample.options) for _ in range(WORKERS)]
    outs = [np.empty((BUFFER, *sample.size, 3), np.uint8) for _ in range(WORKERS)]

    def part(thread: int) -> None:
        context, out, status = contexts[thread], outs[thread], np.zeros(BUFFER, np.int32)
        for start in range(thread * BUFFER, count, WORKERS * BUFFER):
            rows = slice(start, start + BUFFER)
            columns = kernel.Payloads(fds[rows], addresses[rows], lengths[rows], None, upright[rows], raw[rows])
            n = len(columns.fds)
            kernel.decode_batch(context, columns, sample.boxes[rows], sample.flips[rows], out[:n], status[:n], 0, n)
            assert not status[:n].any()

    def run() -> float:
        start = time.perf_counter()
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(part, range(WORKERS)))
        assert len(pixels) == count  # and keeps them alive while their addresses are used
        return count / (time.perf_counter() - start)

    run()
    return run


def without_kernel(path: Path, count: int) -> Callable[[], float]:
    """FastLoader with free decoding: no payload is read, the pixels are whatever the memory holds."""
    stream = io.BytesIO()
    Image.new("RGB", (341, 256)).save(stream, "JPEG")
    with open_writer(path) as writer:
        for number in range(count):
            writer.write({"jpg": stream.getvalue(), "cls": number % 10})
    loader = FastLoader(FastDataset(path), BATCH, shuffle=True, transform=CROP, num_workers=WORKERS)

    def run() -> float:
        path.read_bytes()  # else pages leave the cache, and readahead brings them back
        with patch.object(kernel, "decode_batch", lambda *_: None):
            return rate(loader, epochs=1)()

    return run


def contenders(
    bench: measure.Bench, photos: Path, folder: Path
) -> tuple[dict[str, Callable[[], float]], dict[str, float]]:
    """All that runs in turn, and mean payload sizes in bytes."""
    from benchmarks.peers import datasets  # it needs OpenCV and simplejpeg

    source = link(photos, folder / "copies", bench.size(EPOCH, 64))
    originals = link(photos, folder / "originals", bench.size(ORIGINALS, 32))
    container = pack(source, folder / "packed.lmdb")
    rgb = pack(source, folder / "rgb.lmdb", 256, "--format", "rgb")
    blob, files = plain(container, folder)
    write_blob(folder / "originals.blob", [path.read_bytes() for path in files_in(originals)])
    plain_bytes = float(np.mean([path.stat().st_size for path, _ in files]))
    sizes = {"packed": float(payload_lengths(container).mean()), "plain": plain_bytes}
    return {
        OURS: fast(container),
        "FastLoader, LMDB, one worker": fast(container, workers=1),
        'FastLoader, LMDB, pixels="fast"': fast(container, pixels="fast"),
        "FastLoader, plain files": fast(folder / "files"),
        LIMIT: limit(blob, folder),
        "limit, one thread": limit(blob, folder, 1),
        "simplejpeg + cv2, DataLoader": rate(datasets.simplejpeg_loader(files, BATCH, WORKERS)),
        "Pillow, DataLoader": rate(datasets.pillow_loader(files, BATCH, WORKERS)),
        "FastLoader, LMDB, Resize + CenterCrop": fast(container, CENTRE),
        "FastLoader, original photographs": fast(originals),
        ORIGINAL_LIMIT: limit(folder / "originals.blob", folder),
        "FastLoader, LMDB of rgb": fast(rgb),
        "FastLoader, LMDB of rgb, check=None": fast(rgb, check=None),
        RESAMPLER: resampler(rgb),
        "FastLoader with no kernel": without_kernel(folder / "many.lmdb", bench.size(MANY, 512)),
        **of_formats(folder / "files", folder, bench.size(COPIED, 32)),
    }, sizes


def of_formats(files: Path, folder: Path, count: int) -> dict[str, Callable[[], float]]:
    """The loaders on copies of `files` in other formats."""
    from benchmarks.peers import datasets

    runs = {}
    for kind in FORMATS:
        listed = []
        for path in files_in(files)[:count]:
            target = place(folder / kind, path, path.stem).with_suffix(f".{kind.lower()}")
            with Image.open(path) as image:
                image.convert("RGB").save(target, kind)
            listed.append((target, int(path.parent.name)))
        runs[f"FastLoader, {kind} files"] = fast(folder / kind)
        runs[f"Pillow, DataLoader, {kind} files"] = rate(datasets.pillow_loader(listed, BATCH, WORKERS))
    return runs


ASKED = (  # (what is compared, one, other, at least)
    ("training crops: loader to full decode", OURS, LIMIT, 2.6),
    ('the same with pixels="fast"', 'FastLoader, LMDB, pixels="fast"', LIMIT, 1.6),
    ("loader to simplejpeg + cv2", OURS, "simplejpeg + cv2, DataLoader", 2.0),
    ("evaluation crops: loader to full decode", "FastLoader, LMDB, Resize + CenterCrop", LIMIT, 2.6),
    ("original photographs: loader to full decode", "FastLoader, original photographs", ORIGINAL_LIMIT, 2.4),
    ("training crops: packed JPEGs to raw rgb", OURS, "FastLoader, LMDB of rgb", 0.8),
    ("raw rgb: loader to the resampler alone", "FastLoader, LMDB of rgb", RESAMPLER, 0.7),
    ("the same without checksums: rgb", "FastLoader, LMDB of rgb, check=None", RESAMPLER, 0.7),
    ("two workers to one", OURS, "FastLoader, LMDB, one worker", 1.9),
    ("the limit's two threads to one, on this machine", LIMIT, "limit, one thread", 1.9),
    *(
        (f"{kind} files: loader to Pillow", f"FastLoader, {kind} files", f"Pillow, DataLoader, {kind} files", least)
        for kind, least in FORMATS.items()
    ),
)


def page(figures: measure.Figures, photos: str, sizes: dict[str, float]) -> str:
    """The result as markdown."""
    rows = [
        [name, measure.spread(values), f"{1e6 * (1 if ', one' in name else WORKERS) / np.median(values):,.0f}"]
        + ([f"{measure.ratio(figures, OURS, name):.2f}×"] if LIMIT in figures else [])
        for name, values in figures.items()
    ]
    header = ("", "images/s: median (least – most)", "µs per image and core", f"{OURS} is")
    ratios = [[what, f"{measure.ratio(figures, one, other):.2f}", f"{least:.2f}"] for what, one, other, least in ASKED]
    return f"""# Loading: images a second into the training loop

Batches of {BATCH} uint8 images of 224 × 224, {WORKERS} cores, all from the page cache: RandomResizedCrop(224, scale
0.08–1) + flip where nothing else is said. {photos}, packed with `--resize 256 --quality 90`:
{sizes["packed"] / 1e3:.1f} kB each with restart markers and their Huffman tables, {sizes["plain"] / 1e3:.1f} kB without
either, which is what the limit and the others work on. {len(figures[OURS])} rounds, the contenders in turn; ratios are
medians over the rounds.

{measure.table(header, rows)}

The limit is libjpeg-turbo decoding the plain files in full and doing nothing else (`benchmarks/peers/decode_limit.c`).
The resampler alone is the kernel on raw rgb pixels in memory: nothing read, checked or decoded. "No kernel" is the
loader with a kernel that does nothing: what Python takes (one process; 150,000 are asked).

{measure.table(("", "is", "asked"), ratios)}
"""


def load(bench: measure.Bench) -> None:
    """The part `load`."""
    with bench.workplace() as (folder, photos):
        runs, sizes = contenders(bench, photos, folder)
        os.sync()  # the first round must not share the machine with gigabytes that were just written
        figures = measure.in_turn(runs, bench.rounds(7))
    bench.publish(page(figures, bench.kind, sizes), figures)


def main() -> None:
    from benchmarks.parts import cold, recipes  # which import this module

    measure.run(__doc__, {"load": load, "cold": cold.cold, "recipes": recipes.recipes})


if __name__ == "__main__":
    main()
