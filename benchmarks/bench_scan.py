"""How long does listing a million files take, or a manifest of 10^8 lines, and how much memory?

python -m benchmarks.bench_scan [--files 1000000] [--classes 1000] [--lines 100000000] [--folder DIR]
makes a tree of empty files in class folders in a temporary directory (in DIR), scans it in fresh processes and removes
it. Peak memory is the rise of the process's resident set during the scan, sorting included.

Then it makes a Parquet file and a JSON lines file of `--lines` images with path, label, split and caption, and does
what the first part of a packing run does: it lists the images, permutes them, takes their fingerprint and stores the
listing; then what each other part does: it opens the stored listing and reads the 1,000 rows in its middle. Memory is
the peak of what belongs to the process alone (`RssAnon`); pages of files are not in it, since the system drops them
when memory gets short. At 10^8 lines this takes 40 minutes and 40 GB of disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from benchmarks import measure

REPEATS = 3
LIMIT_SECONDS, LIMIT_BYTES = 15.0, 300.0  # for a million files
MANIFESTS = {"Parquet": "m.parquet", "JSON lines": "m.jsonl"}
ROWS = 1 << 17  # that are made at once
LOOK = 0.02  # seconds between two looks at the memory
READ = 1000  # rows that are read from the stored listing
LINE = 450  # bytes of disk for a line: both manifests, columns and listing


def make_tree(root: Path, files: int, classes: int) -> None:
    """Make `files` empty files named as in ImageNet, spread evenly over class folders."""
    with tqdm(total=files, unit=" files", desc="making the tree", unit_scale=True) as bar:
        for label in range(classes):
            name = f"n{1440764 + 7919 * label:08d}"
            (root / name).mkdir()
            folder = os.open(root / name, os.O_RDONLY)
            numbers = range(label * files // classes, (label + 1) * files // classes)
            for number in numbers:
                os.close(os.open(f"{name}_{number}.JPEG", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=folder))
            os.close(folder)
            bar.update(len(numbers))


def scan_once(root: Path) -> None:
    """Scan in this fresh process; print seconds, images, bytes of paths, peak and kept bytes beyond paths."""
    import numpy as np  # noqa: F401  (its memory is not the scan's)

    from iofast.source.scan import scan

    before_peak, before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, resident()
    start = time.perf_counter()
    source = scan(root)
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
        tqdm(total=lines, unit=" lines", desc="making the manifests", unit_scale=True) as bar,
    ):
        for start in range(0, lines, ROWS):
            rows = [row(number) for number in range(start, min(start + ROWS, lines))]
            parquet.write_table(pyarrow.Table.from_pylist(rows, schema))
            jsonl.writelines(f"{json.dumps(each)}\n" for each in rows)
            bar.update(len(rows))


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
    from iofast.containers import columns_file
    from iofast.source import stored
    from iofast.source.scan import scan

    with watched() as whole:
        start = time.perf_counter()
        source = scan(manifest)
        listing = time.perf_counter() - start
        source = source.shuffled(1)
        source.fingerprint()
        columns_file.store(manifest.with_suffix(".index"), *stored.parts(source))
    print(listing, whole.seconds, whole.memory)


def open_once(manifest: Path) -> None:
    """Open the stored listing in this fresh process and read some rows; print seconds and bytes."""
    from iofast.containers import columns_file
    from iofast.source import stored

    with watched() as taken:
        members, arrays = columns_file.load(manifest.with_suffix(".index"), checked=False)
        source = stored.source_of(manifest.parent, members, arrays)
        part = source.run(len(source) // 2, len(source) // 2 + READ)
        for index in range(len(part)):
            part.path(index), part.label(index), part.extra(index)
    print(taken.seconds, taken.memory)


def manifests(folder: Path, lines: int) -> str:
    """The figures of both manifests as markdown."""
    make_manifests(folder, lines)
    rows = []
    for kind, name in MANIFESTS.items():
        listing, whole, memory = measured("--plan", folder / name)
        opening, opening_memory = measured("--open", folder / name)
        seconds = (f"{listing:,.0f}", f"{lines / listing:,.0f}", f"{whole - listing:,.1f}")
        rows.append((kind, *seconds, f"{memory / 1e6:,.0f}", f"{opening * 1e3:,.0f}", f"{opening_memory / 1e6:,.1f}"))
        for path in (folder / name, (folder / name).with_suffix(".index")):
            path.unlink()
    header = ("manifest", "s to list", "lines/s", "s to permute and store", "MB", "ms of a further part", "MB of it")
    return f"""# Planning a manifest of {lines:,} lines

Each line has a path, a label, a split and a caption. The first part of a packing run lists the images, permutes them
(`--shuffle`) and stores the listing; each other part opens it and reads its rows, here {READ:,}. MB are the peak of the
process's own memory; columns are in files.

{measure.table(header, rows)}
"""


def measured(what: str, path: Path, **environment: str) -> list[float]:
    """What a fresh process prints."""
    command = [sys.executable, "-m", "benchmarks.bench_scan", what, str(path)]
    output = subprocess.check_output(command, text=True, env=os.environ | environment)
    return [float(word) for word in output.split()]


def report(root: Path, files: int, classes: int) -> str:
    """Run the measurement several times; the result as markdown."""
    rows = []
    for run in range(1, REPEATS + 1):
        seconds, count, paths, peak, kept = measured("--measure", root)
        sizes = (f"{paths / count:.1f}", f"{peak / count:.0f}", f"{kept / count:.0f}")
        rows.append((str(run), f"{seconds:.2f}", f"{count / seconds:,.0f}", *sizes))
    header = ("run", "seconds", "files/s", "path, bytes per file", "peak beyond it", "kept beyond it")
    return f"""# Scanning {files:,} empty files in {classes:,} class folders

The folders' entries are in the page cache. Limits: {LIMIT_SECONDS:g} s for a million files, and {LIMIT_BYTES:g} bytes
beyond the path for each.

{measure.table(header, rows)}
"""


def main() -> int:
    parser = measure.parser(__doc__, photos=False, files=1_000_000, classes=1000, lines=100_000_000, folder=None)
    once = {"measure": scan_once, "plan": plan_once, "open": open_once}
    for name in once:
        parser.add_argument(f"--{name}", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name, function in once.items():
        if getattr(options, name):
            function(getattr(options, name))
            return 0
    with tempfile.TemporaryDirectory(prefix="iofast-bench-", dir=options.folder) as folder:
        if os.statvfs(folder).f_favail < 1.1 * options.files:
            print(f"bench_scan: error: {folder} has no room for {options.files:,} more files", file=sys.stderr)
            return 1
        if shutil.disk_usage(folder).free < LINE * options.lines:
            print(f"bench_scan: error: {folder} has no room for {options.lines:,} lines", file=sys.stderr)
            return 1
        make_tree(Path(folder), options.files, options.classes)
        text = report(Path(folder), options.files, options.classes)
        print("removing the tree", flush=True)
    with tempfile.TemporaryDirectory(prefix="iofast-bench-", dir=options.folder) as folder:
        text += "\n" + manifests(Path(folder), options.lines)
    command = (
        f"python -m benchmarks.bench_scan --files {options.files} --classes {options.classes} --lines {options.lines}"
    )
    measure.publish("scan", text, options.output, command=command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
