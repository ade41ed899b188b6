"""How fast does FastLoader read what is not in the page cache, from a slow disk and from the disk as it is?

python -m benchmarks.bench_cold [--photos FOLDER] [--rounds 5] [--megabytes 2000] [--slow 50] [--output PAGE.md]
packs the photographs (class folders; sample images where none are given) with `iofast pack --resize 256 --quality 90`,
repeats them to a container of `--megabytes`, and reads it in turn as

    device          plain `pread`s of 1 MiB, one after another, of the evicted file
    warm            FastLoader in block-local order with everything in the page cache
    cold            the same after eviction: block-local and shuffled order, each with and without readahead

Each on the disk as it is, and limited to `--slow` MB/s by a control group (which needs root; left out with the reason
where that is not possible). Runs end after some windows of the block-local order, a part of the epoch: as with a
dataset larger than memory, what was read too much is of no use later. Bytes are those of the payloads. The file is
evicted before each run; other processes' caches are left alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import measure, slow_device
from benchmarks.bench_load import BATCH, CROP, WORKERS, pack
from iofast import FastDataset, FastLoader, open_reader, open_writer
from iofast.order import Blocks, Mode, Population, Shuffled

MB = 1e6
WINDOW = Blocks().block * Blocks().window
WINDOWS = 12  # read in one run: of 113 MB each
START = 5  # of them before the clock starts: by then as much is read ahead as will be at the end (three windows)
ASKED = 0.8  # of the lesser of the device's bytes/s and the warm loader's
DEVICE, WARM, OURS = "device: sequential pread", "FastLoader, warm", "FastLoader, block-local, readahead"


def repeated(container: Path, out: Path, size: float) -> Path:
    """A container of the records of another one, again and again until there are `size` bytes of images."""
    with open_reader(container) as reader, open_writer(out) as writer:
        records = [dict(reader.record(index).fields) for index in range(len(reader))]
        written = number = 0
        while written < size:
            fields = records[number % len(records)]
            writer.write({"jpg": fields["jpg"], "cls": int(fields["cls"])})
            written, number = written + len(fields["jpg"]), number + 1
    return out


def evict(path: Path) -> None:
    """Drop the file's pages from the page cache; they must have been written to the disk."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sequential(path: Path, most: float, cold: bool = True) -> float:
    """Bytes a second of the file read from its start until there are `most`."""
    if cold:
        evict(path)
    start, piece, done = time.perf_counter(), bytearray(1 << 20), 0
    with path.open("rb", buffering=0) as file:
        while done < most and (got := file.readinto(piece)):
            done += got
    return done / (time.perf_counter() - start)


def loaded(path: Path, mode: Mode, readahead: bool, cold: bool = True) -> float:
    """Bytes of payloads a second in some windows of an epoch, from the second on; each call another shuffle."""
    if cold:
        evict(path)
    else:
        sequential(path, math.inf, cold=False)
    dataset = FastDataset(path)
    loader = FastLoader(
        dataset,
        BATCH,
        order=mode,
        transform=CROP,
        num_workers=WORKERS,
        seed=time.perf_counter_ns(),
        readahead=readahead,
    )
    first, last = START * WINDOW // BATCH, WINDOWS * WINDOW // BATCH
    start = 0.0
    with contextlib.closing(iter(loader)) as batches:  # type: ignore[type-var]
        for number, _ in enumerate(batches, 1):
            if number == first:
                start = time.perf_counter()
            if number == last:
                break
        seconds = time.perf_counter() - start
    positions = np.arange(first * BATCH, last * BATCH)
    indices = mode.bind(Population(len(dataset)), loader.options.seed, BATCH).indices(0, positions)
    total = int(dataset.locate(indices).length.sum())
    dataset.reader.close()
    return total / seconds


def contenders(path: Path) -> dict[str, Callable[[], float]]:
    """All that runs in turn."""
    return {
        DEVICE: partial(sequential, path, WINDOWS * WINDOW * mean_payload(path)),
        WARM: partial(loaded, path, Blocks(), readahead=False, cold=False),
        "FastLoader, warm, readahead": partial(loaded, path, Blocks(), readahead=True, cold=False),
        OURS: partial(loaded, path, Blocks(), readahead=True),
        "FastLoader, block-local": partial(loaded, path, Blocks(), readahead=False),
        "FastLoader, shuffled, readahead": partial(loaded, path, Shuffled(), readahead=True),
        "FastLoader, shuffled": partial(loaded, path, Shuffled(), readahead=False),
    }


def part(title: str, figures: measure.Figures, mean: float) -> str:
    """One device's table, and whether it is as asked."""
    limits = [min(pair) for pair in zip(figures[DEVICE], figures[WARM], strict=True)]
    rows = [
        [
            name,
            measure.spread([value / MB for value in values], 1),
            "" if name == DEVICE else f"{statistics.median(values) / mean:,.0f}",
            f"{statistics.median(a / b for a, b in zip(values, limits, strict=True)):.2f}",
        ]
        for name, values in figures.items()
    ]
    share = statistics.median(a / b for a, b in zip(figures[OURS], limits, strict=True))
    header = ("", "MB/s: median (least – most)", "images/s", "of the lesser of device and warm")
    verdict = f"Block-local order with readahead, cold: {share:.2f} of the lesser of both; asked: {ASKED:.2f}."
    return f"## {title}\n\n{measure.table(header, rows)}\n\n{verdict}\n"


def mean_payload(path: Path) -> float:
    """Bytes."""
    with open_reader(path) as reader:
        return float(reader.locate(np.arange(len(reader))).length.mean())


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=2000)
    parser.add_argument("--slow", type=int, default=50, help="MB/s")
    parser.add_argument("--folder", type=Path, help="where to write the containers; the temporary folder without it")
    arguments = parser.parse_args()
    parts = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        packed = pack(arguments.photos or measure.sample_photographs(folder / "photos"), folder / "packed.lmdb", 256)
        large = repeated(packed, folder / "large.lmdb", arguments.megabytes * MB)
        os.sync()  # dirty pages cannot be evicted
        mean = mean_payload(large)
        try:
            with slow_device.limited(large, arguments.slow * 1_000_000):
                slow = contenders(large)
                figures = measure.in_turn(slow, max(3, arguments.rounds // 2), repeats=0)
            parts.append(part(f"Limited to {arguments.slow} MB/s", figures, mean))
        except slow_device.SlowDeviceError as error:
            print(f"the slow device is left out: {error}", file=sys.stderr)
            parts.append(f"## Limited to {arguments.slow} MB/s\n\nLeft out: {error}.\n")
        parts.append(part("The disk as it is", measure.in_turn(contenders(large), arguments.rounds, repeats=1), mean))
    text = f"""# Cold reads: bytes a second that are not in the page cache

Batches of {BATCH}, RandomResizedCrop(224) + flip, {WORKERS} workers, checksums on. {measure.kind(arguments.photos)},
packed with `--resize 256 --quality 90`, {mean / 1e3:.1f} kB each, repeated to a container of
{arguments.megabytes:,.0f} MB. {WINDOWS} windows of {WINDOW} images in each run, the contenders in turn;
the clock starts after {START}, when as much is read ahead as will be at the end. Block-local is `Blocks()`.

{chr(10).join(parts)}
{measure.machine()}
- Command: `python -m benchmarks.bench_cold`
"""
    measure.publish("cold", text, arguments.output)


if __name__ == "__main__":
    main()
