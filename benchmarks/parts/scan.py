"""How long does listing a million files take, or a manifest of 10^8 lines, and how much memory?

A tree of empty files in class folders, and a Parquet file and a JSON lines file with path, label, split and caption,
are listed in fresh processes, sorting included. Memory is what belongs to the process alone (`RssAnon`), without pages
of files: its peak, and what it keeps. The whole part takes half an hour and 20 GB of disk.
"""

import json
import os
import sys
import time
from pathlib import Path

from tqdm import tqdm

from benchmarks import measure
from tools.processes import sampled

CLASSES = 1000
MANIFESTS = {"Parquet": "m.parquet", "JSON lines": "m.jsonl"}
ROWS = 1 << 17  # that are made at once
LOOK = 0.02  # seconds between two looks at the memory
HEADER = ("", "seconds: median (least – most)", "files or lines/s", "bytes each, peak", "kept", "of it paths")


def make_tree(root: Path, files: int) -> Path:
    """Make `files` empty files named as in ImageNet, spread evenly over class folders."""
    for label in tqdm(range(CLASSES), unit=" folders", desc="making the tree"):
        name = f"n{1440764 + 7919 * label:08d}"
        (root / name).mkdir(parents=True)
        folder = os.open(root / name, os.O_RDONLY)
        for number in range(label * files // CLASSES, (label + 1) * files // CLASSES):
            os.close(os.open(f"{name}_{number}.JPEG", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=folder))
        os.close(folder)
    return root


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


def anonymous() -> int:
    """Bytes in memory that are this process's own, not pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def scan(bench: measure.Bench) -> None:
    """The part `scan`."""
    files, lines, rows = bench.size(1_000_000, 5000), bench.size(100_000_000, 5000), []
    with bench.folder() as name:
        make_manifests(Path(name), lines)
        sources = {f"{files:,} files in {CLASSES:,} folders": (make_tree(Path(name, "tree"), files), bench.rounds(3))}
        sources |= {f"{lines:,} lines, {kind}": (Path(name, file), 1) for kind, file in MANIFESTS.items()}
        for what, (path, rounds) in sources.items():
            runs = [measure.in_process("benchmarks.parts.scan", path) for _ in range(rounds)]
            seconds, counts, *memory = zip(*runs, strict=True)
            sizes = (f"{max(each) / counts[0]:.1f}" for each in memory)
            rows.append((what, measure.spread(seconds, 2), f"{counts[0] / min(seconds):,.0f}", *sizes))
    bench.publish(f"""# Listing a folder and manifests

Each line of a manifest has a path, a label, a split and a caption. Folders' entries are in the page cache. Bytes are of
the process's own memory.

{measure.table(HEADER, rows)}
""")


def main(path: Path) -> None:
    """List in this fresh process; print seconds, images, and bytes: the peak, what is kept, and its paths."""
    from iofast.source.scan import scan as scan_source

    before = anonymous()
    with sampled(anonymous, LOOK) as found:
        start = time.perf_counter()
        source = scan_source(path)
        seconds = time.perf_counter() - start
    print(seconds, len(source), max(found) - before, found[-1] - before, len(source.paths.blob))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
