"""How long does a scan of a million files take, and how much memory beyond their paths?

python -m benchmarks.bench_scan [--files 1000000] [--classes 1000] [--folder DIR]
makes a tree of empty files in class folders in a temporary directory (in DIR), scans it in fresh processes and removes
it. Peak memory is the rise of the process's resident set during the scan, sorting included.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

from benchmarks import measure

REPEATS = 3
LIMIT_SECONDS, LIMIT_BYTES = 15.0, 300.0  # for a million files


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


def report(root: Path, files: int, classes: int) -> str:
    """Run the measurement several times; the result as markdown."""
    rows = []
    for run in range(1, REPEATS + 1):
        command = [sys.executable, "-m", "benchmarks.bench_scan", "--measure", str(root)]
        seconds, count, paths, peak, kept = map(float, subprocess.check_output(command, text=True).split())
        sizes = (f"{paths / count:.1f}", f"{peak / count:.0f}", f"{kept / count:.0f}")
        rows.append((str(run), f"{seconds:.2f}", f"{count / seconds:,.0f}", *sizes))
    header = ("run", "seconds", "files/s", "path, bytes per file", "peak beyond it", "kept beyond it")
    return f"""# Scanning {files:,} empty files in {classes:,} class folders

The folders' entries are in the page cache. Limits: {LIMIT_SECONDS:g} s for a million files, and {LIMIT_BYTES:g} bytes
beyond the path for each.

{measure.table(header, rows)}
"""


def main() -> int:
    parser = measure.parser(__doc__, photos=False, files=1_000_000, classes=1000, folder=None)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        scan_once(options.measure)
        return 0
    with tempfile.TemporaryDirectory(prefix="iofast-bench-", dir=options.folder) as folder:
        if os.statvfs(folder).f_favail < 1.1 * options.files:
            print(f"bench_scan: error: {folder} has no room for {options.files:,} more files", file=sys.stderr)
            return 1
        make_tree(Path(folder), options.files, options.classes)
        text = report(Path(folder), options.files, options.classes)
        print("removing the tree", flush=True)
    command = f"python -m benchmarks.bench_scan --files {options.files} --classes {options.classes}"
    measure.publish("scan", text, options.output, command=command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
