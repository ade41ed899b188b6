"""How fast does iofast train from, and pack, what Hugging Face `datasets` has written?

Plain JPEGs with a short side of 256 pixels are packed as they are into LMDB; `datasets`, in an environment of its own
(made at the first use), writes them as Parquet and with `save_to_disk` as Arrow. In turn:

    training    an epoch of crops of 224 from each; only the LMDB has checksums, which are compared
    packing     each into LMDB, `--format keep`, as whole processes
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import measure, photographs
from benchmarks.bench_load import BATCH, WORKERS, fast, plain
from benchmarks.rivals.contenders import FOLDER as RIVALS
from iofast import FastDataset
from tools.environments import Environment

LMDB, FOLDER, PARQUET, ARROW = "LMDB", "a folder", "Parquet", "Arrow, save_to_disk"
DATASETS = Environment(RIVALS / "datasets", ("datasets==5.2.0", "pillow==12.1.1"))
ASKED = 0.9  # of the rate from LMDB


def written(photos: Path, folder: Path, images: int) -> dict[str, Path]:
    """The same JPEGs in all forms."""
    plain(photographs.pack(photographs.link(photos, folder / "copies", images), folder / "resized.lmdb"), folder)
    sets = {LMDB: folder / "kept.lmdb", FOLDER: folder / "files"}
    sets |= {PARQUET: folder / "hub.parquet", ARROW: folder / "hub"}
    subprocess.run(kept(sets[FOLDER], sets[LMDB]), check=True)
    # -P: our own peers/datasets.py must not be found first
    writer = Path(__file__).parents[1] / "peers" / "hub_writer.py"
    command = [DATASETS.python(), "-P", writer, sets[FOLDER], sets[PARQUET], sets[ARROW]]
    subprocess.run(command, check=True, capture_output=True)
    return sets


def kept(source: Path, out: Path) -> list[str]:
    """The command that packs without changing a file."""
    options = ["--format", "keep", "--workers", str(WORKERS), "--quiet"]
    return [sys.executable, "-m", "iofast", "pack", str(source), str(out), *options]


def packing(source: Path, folder: Path, images: int) -> Callable[[], float]:
    """Images a second of `iofast pack`."""
    out = folder / "again.lmdb"

    def run() -> float:
        out.unlink(missing_ok=True)
        os.sync()
        start = time.perf_counter()
        subprocess.run(kept(source, out), check=True)
        return images / (time.perf_counter() - start)

    return run


def page(training: measure.Figures, packed: measure.Figures, images: int, photos: str) -> str:
    """The result as markdown."""
    rows = [
        [
            name,
            measure.spread(training[name]),
            f"{measure.ratio(training, name, LMDB):.2f}",
            measure.spread(packed[name]),
        ]
        for name in training
    ]
    held = all(measure.ratio(training, name, LMDB) >= ASKED for name in (PARQUET, ARROW))
    return f"""# What `datasets` has written: trained from and packed

{images:,} JPEGs with a short side of 256 pixels, quality 90, without restart markers ({photos}): in LMDB as
`iofast pack --format keep` stores them, as files, and as Hugging Face `datasets` writes them. Batches of {BATCH} crops
of 224, {WORKERS} workers, all from the page cache; packing with `--format keep`, whole processes.
{len(training[LMDB])} rounds in turn.

{measure.table(("", "training, images/s", "to LMDB", "packing, images/s"), rows)}

Asked: at least {ASKED} of the rate from LMDB: **{"held" if held else "NOT held"}**.
"""


def hub(bench: measure.Bench) -> None:
    """The part `hub`."""
    with bench.workplace() as (folder, photos):
        sets = written(photos, folder, bench.size(10_000, 128))
        images = len(FastDataset(sets[PARQUET]))
        os.sync()  # as in bench_load
        training = measure.in_turn({name: fast(path) for name, path in sets.items()}, bench.rounds(5))
        runs = {name: packing(path, folder, images) for name, path in sets.items()}
        packed = measure.in_turn(runs, bench.rounds(5))
    text = page(training, packed, images, bench.kind)
    training.add(packed)
    bench.publish(text, training)
