"""How fast does FastLoader read what is not in the page cache, from a slow disk and from the disk as it is?

The packed photographs are repeated to a container of 2 GB, which is read in turn as

    device    plain `pread`s of 1 MiB, one after another, of the evicted file
    warm      FastLoader in block-local order with everything in the page cache
    cold      the same after eviction: block-local and shuffled order, each with and without readahead

Each on the disk as it is, and limited to 50 MB/s by a control group, which needs root. A run is a whole epoch, from
asking for its first batch to the last one. Bytes a second are those of payloads, with the device's bytes for each.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from benchmarks import measure, photographs, slow_device
from benchmarks.bench_load import BATCH, CROP, WORKERS
from benchmarks.slow_device import evict, fill
from iofast import FastDataset, FastLoader
from iofast.order import Blocks, Mode, Shuffled

MB, SLOW = 1e6, 50
ASKED = 0.8  # of the lesser of the device's bytes/s and the warm loader's
DEVICE, WARM, OURS = "device: sequential pread", "FastLoader, warm", "FastLoader, block-local, readahead"

Given = dict[str, list[float]]  # bytes that the device gave for each of the payloads, in each run


def read_bytes() -> int:
    """Bytes that devices have given to this process so far."""
    return int(psutil.Process().io_counters().read_bytes)


def sequential(path: Path) -> float:
    """Bytes a second of the evicted file, read from its start to its end."""
    evict(path)
    start = time.perf_counter()
    fill(path)
    return path.stat().st_size / (time.perf_counter() - start)


def loaded(path: Path, mode: Mode, *, readahead: bool, given: list[float], cold: bool = True) -> float:
    """Payload bytes a second in one new epoch. Adds to `given` the device's bytes for each of them."""
    (evict if cold else fill)(path)
    total = int(photographs.payload_lengths(path).sum())
    dataset = FastDataset(path)
    seed = time.perf_counter_ns()
    loader = FastLoader(dataset, BATCH, order=mode, transform=CROP, num_workers=WORKERS, seed=seed, readahead=readahead)
    before, start = read_bytes(), time.perf_counter()
    for _ in loader:
        pass
    seconds = time.perf_counter() - start
    given.append((read_bytes() - before) / total)
    dataset.reader.close()
    return total / seconds


def contenders(path: Path, given: Given) -> dict[str, Callable[[], float]]:
    """All that runs in turn; adds the device's bytes per payload byte to `given`."""
    kinds: dict[str, tuple[Mode, bool, bool]] = {
        WARM: (Blocks(), False, False),
        "FastLoader, warm, readahead": (Blocks(), True, False),
        OURS: (Blocks(), True, True),
        "FastLoader, block-local": (Blocks(), False, True),
        "FastLoader, shuffled, readahead": (Shuffled(), True, True),
        "FastLoader, shuffled": (Shuffled(), False, True),
    }
    loaders = {
        name: partial(loaded, path, mode, readahead=readahead, cold=cold, given=given.setdefault(name, []))
        for name, (mode, readahead, cold) in kinds.items()
    }
    return {DEVICE: partial(sequential, path), **loaders}


def measured(path: Path, mean: float, rounds: int, repeats: int, title: str) -> str:
    """Run all contenders on the device as it is now: its table, and whether it meets the goal."""
    given: Given = {}
    figures = measure.in_turn(contenders(path, given), rounds, repeats)
    limits = [min(pair) for pair in zip(figures[DEVICE], figures[WARM], strict=True)]
    rows = [
        [
            name,
            measure.spread([value / MB for value in values], 1),
            "" if name == DEVICE else f"{statistics.median(values) / mean:,.0f}",
            "" if name == DEVICE else f"{statistics.median(given[name]):.2f}",
            f"{statistics.median(a / b for a, b in zip(values, limits, strict=True)):.2f}",
        ]
        for name, values in figures.items()
    ]
    share = statistics.median(a / b for a, b in zip(figures[OURS], limits, strict=True))
    header = ("", "MB/s: median (least – most)", "images/s", "bytes read for one used")
    header += ("of the lesser of device and warm",)
    verdict = f"Block-local order with readahead, cold: {share:.2f} of the lesser of both; asked: {ASKED:.2f}."
    return f"## {title}\n\n{measure.table(header, rows)}\n\n{verdict}\n"


def cold(bench: measure.Bench) -> None:
    """The part `cold`."""
    rounds, size = bench.rounds(5), bench.size(2000, 4)
    with bench.workplace() as (folder, photos):
        packed, large = photographs.pack(photos, folder / "packed.lmdb"), folder / "large.lmdb"
        photographs.repeated(packed, large, size * MB)
        os.sync()  # dirty pages cannot be evicted
        lengths = photographs.payload_lengths(large)
        mean, slow = float(lengths.mean()), f"Limited to {SLOW} MB/s"
        try:
            with slow_device.limited(large, SLOW * 1_000_000):
                parts = [measured(large, mean, max(3, rounds // 2) if rounds > 1 else 1, 0, slow)]
        except slow_device.SlowDeviceError as error:
            print(f"the slow device is left out: {error}", file=sys.stderr)
            parts = [f"## {slow}\n\nLeft out: {error}.\n"]
        parts.append(measured(large, mean, rounds, 1, "The disk as it is"))
    pages = float((np.ceil((lengths + 16) / 4096) * 4096).sum() / lengths.sum())  # 16: an overflow page's header
    bench.publish(f"""# Cold reads: bytes a second that are not in the page cache

Batches of {BATCH}, RandomResizedCrop(224) + flip, {WORKERS} workers, checksums on. {bench.kind}, packed with
`--resize 256 --quality 90`, {mean / 1e3:.1f} kB each, repeated to a container of {size:,} MB. A whole epoch in each
run, from asking for its first batch to the last one; the contenders in turn. Block-local is `Blocks()`. A record of an
LMDB takes whole pages of 4 KiB, {pages:.2f} bytes for one of a payload. Memory holds the whole file here: what the
kernel reads too much without our readahead is used later in the epoch.

{chr(10).join(parts)}""")
