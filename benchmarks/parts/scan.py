"""How long does listing a million files take, or a manifest of 10^8 lines, and how much memory?

A tree of empty files in class folders is scanned in fresh processes. Peak memory is the rise of the process's resident
set during the scan, sorting included.

Then a Parquet file and a JSON lines file with path, label, split and caption: the first part of a packing run lists the
images, permutes them, takes their fingerprint and stores the listing; each other part opens the saved listing and
reads its rows, here 1,000. Memory is the peak of what belongs to the process alone (`RssAnon`), without pages of files.
The whole part takes 40 minutes and 45 GB of disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from benchmarks import measure

CLASSES = 1000
MANIFESTS = {"Parquet": "m.parquet", "JSON lines": "m.jsonl"}
ROWS = 1 << 17  # that are made at once
LOOK = 0.02  # seconds between two looks at the memory
READ = 1000  # rows that are read from the saved listing


def make_tree(root: Path, files: int) -> None:
    """Make `files` empty files named as in ImageNet, spread evenly over class folders."""
    for label in tqdm(range(CLASSES), unit=" folders", desc="making the tree"):
        name = f"n{1440764 + 7919 * label:08d}"
        (root / name).mkdir(parents=True)
        folder = os.open(root / name, os.O_RDONLY)
        for number in range(label * files // CLASSES, (label + 1) * files // CLASSES):
            os.close(os.open(f"{name}_{number}.JPEG", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=folder))
        os.close(folder)


def scan_once(root: Path) -> None:
    """Scan in this fresh process; print seconds, images, bytes of paths, peak and kept bytes beyond paths."""
    import numpy as np  # noqa: F401  (its memory is not the scan's)

    from iofast.source.scan import scan as scan_folder

    before_peak, before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, resident()
    start = time.perf_counter()
    source = scan_folder(root)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before_peak
    paths = len(source.paths.blob) - len(source)
    print(seconds, len(source), paths, peak - paths, resident() - before - paths)


def resident() -> int:
    """Bytes of this process that lie in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make_manifests(folder: Path, lines: int) -> None:
    """Write the same rows as Parquet and as JSON lines."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema({"path": "string", "label": "int64", "split": "string", "caption": "string"})
    with (
        pyarrow.parquet.ParquetWriter(folder / MANIFESTS["Parquet"], schema) as parquet,
        (folder / MANIFESTS["JSON lines"]).open("w") as jsonl,
    ):
        for start in tqdm(range(0, lines, ROWS), unit=f" x {ROWS} lines", desc="making the manifests"):
            rows = [row(number) for number in range(start, min(start + ROWS, lines))]
            parquet.write_table(pyarrow.Table.from_pylist(rows, schema))
            jsonl.writelines(f"{json.dumps(each)}\n" for each in rows)


def row(number: int) -> dict[str, object]:
    """One image of a manifest."""
    return {
        "path": f"{number // 1000:06d}/{number:09d}.jpg",
        "label": number % 1000,
        "split": "val" if number % 100 == 7 else "train",
        "caption": f"a photograph of thing {number * 7919 % 10007}, seen from the left",
    }


@dataclass
class Taken:
    """Seconds of a block, and the peak of the process's own memory (bytes) beyond that before it."""

    seconds: float = 0.0
    memory: int = 0


@contextlib.contextmanager
def watched() -> Iterator[Taken]:
    """Watch this process; the result is complete after the block."""
    taken, stopped = Taken(), threading.Event()
    before, start = anonymous(), time.perf_counter()

    def watch() -> None:
        while not stopped.wait(LOOK):
            taken.memory = max(taken.memory, anonymous() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield taken
    finally:
        taken.seconds = time.perf_counter() - start
        stopped.set()
        thread.join()


def anonymous() -> int:
    """Bytes in memory that are this process's own, not pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def plan_once(manifest: Path) -> None:
    """List, permute, fingerprint and store in this fresh process; print seconds of listing and of all, and bytes."""
    from iofast.containers import columns
    from iofast.source import saved
    from iofast.source.scan import scan as scan_list

    with watched() as whole:
        start = time.perf_counter()
        source = scan_list(manifest)
        listing = time.perf_counter() - start
        source = source.shuffled(1)
        source.fingerprint()
        columns.store(manifest.with_suffix(".index"), *saved.taken_apart(source))
    print(listing, whole.seconds, whole.memory)


def open_once(manifest: Path) -> None:
    """Open the saved listing in this fresh process and read some rows; print seconds and bytes."""
    from iofast.containers import columns
    from iofast.source import saved

    with watched() as taken:
        members, arrays = columns.load(manifest.with_suffix(".index"), checked=False)
        source = saved.value_of(members, arrays)
        for index in range(len(source) // 2, len(source) // 2 + READ):
            source.path(index), source.label(index), source.extra(index)
    print(taken.seconds, taken.memory)


def in_process(what: str, path: Path) -> list[float]:
    """What one of the functions above prints in a fresh process."""
    output = subprocess.check_output([sys.executable, "-m", "benchmarks.parts.scan", what, str(path)], text=True)
    return [float(word) for word in output.split()]


def scan(bench: measure.Bench) -> None:
    """The part `scan`."""
    files, lines = bench.size(1_000_000, 5000), bench.size(100_000_000, 5000)
    scanned, planned = [], []
    with bench.folder() as name:
        make_tree(tree := Path(name, "tree"), files)
        for run in range(bench.rounds(3)):
            seconds, count, paths, peak, kept = in_process("scan_once", tree)
            sizes = (f"{paths / count:.1f}", f"{peak / count:.0f}", f"{kept / count:.0f}")
            scanned.append((str(run + 1), f"{seconds:.2f}", f"{count / seconds:,.0f}", *sizes))
        make_manifests(Path(name), lines)
        for kind, manifest in MANIFESTS.items():
            listing, whole, memory = in_process("plan_once", Path(name, manifest))
            opening, more = in_process("open_once", Path(name, manifest))
            times = (f"{listing:,.0f}", f"{lines / listing:,.0f}", f"{whole - listing:,.1f}")
            planned.append((kind, *times, f"{memory / 1e6:,.0f}", f"{opening * 1e3:,.0f}", f"{more / 1e6:,.1f}"))
    header = ("run", "seconds", "files/s", "path, bytes per file", "peak beyond it", "kept beyond it")
    columns = ("manifest", "s to list", "lines/s", "s to permute and store", "MB", "ms of a further part", "MB of it")
    bench.publish(f"""# Scanning {files:,} empty files in {CLASSES:,} class folders

The folders' entries are in the page cache.

{measure.table(header, scanned)}

# Planning a manifest of {lines:,} lines

Each line has a path, a label, a split and a caption. The first part of a packing run lists the images, permutes them
(`--shuffle`) and stores the listing; each other part opens it and reads its rows, here {READ:,}. MB are the peak of the
process's own memory; columns are in files.

{measure.table(columns, planned)}
""")


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
