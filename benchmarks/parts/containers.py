"""How fast are the three containers packed, beside each other, pure transcoding, and `cp -r`?

Copies of the photographs (each with another quantisation table, so that none equals another) are packed by whole
processes with two workers, in turn:

    resize to 256   into LMDB, tar and TFRecord; beside them the kernel's `transcode` of the same files in memory, in
                    two threads of a running process: nothing but decoding, resizing, encoding
    keep            the files as they are into the three, with `--check end` and with `--check decode`, the default;
                    beside them `cp -r` and `sync`

Sources are in the page cache. Every run begins with an empty folder and nothing left to be written to the disk.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks import measure
from benchmarks.bench_pack import seconds
from benchmarks.photographs import files_in, folder_bytes, place

SUFFIXES = {"LMDB": ".lmdb", "tar": ".tar", "TFRecord": ".tfrecord"}
WORKERS = 2
RESIZE = ("--resize", "256", "--quality", "90")
KEEP = ("--format", "keep", "--check")
PURE, COPY = "pure transcoding, 2 threads", "cp -r, sync"
CHECKS = ("end", "decode")


def containers(bench: measure.Bench) -> None:
    """The part `containers`."""
    images = bench.size(8000, 64)
    with bench.workplace() as (folder, photos):
        source, target = copies(photos, folder / "source", images), folder / "out"
        resized: dict[str, Callable[[], float]] = {
            kind: partial(timed, pack_command(source, target / f"set{suffix}", RESIZE), target)
            for kind, suffix in SUFFIXES.items()
        }
        kept = {
            f"{kind}, {check}": partial(timed, pack_command(source, target / f"set{suffix}", (*KEEP, check)), target)
            for check in CHECKS
            for kind, suffix in SUFFIXES.items()
        }
        resized[PURE] = partial(pure, [path.read_bytes() for path in files_in(source)])
        kept[COPY] = partial(timed, ["sh", "-c", 'cp -r "$0" "$1" && sync', str(source), str(target / "copy")], target)
        for run in (*resized.values(), *kept.values()):  # fill the page cache; whatever happens only once
            run()
        resizing, keeping = (measure.in_turn(contenders, bench.rounds(5)) for contenders in (resized, kept))
        size = folder_bytes(source)
    text = page(resizing, keeping, images, size)
    resizing.add(keeping)
    bench.publish(text, resizing)


def copies(photos: Path, folder: Path, images: int) -> Path:
    """So many photographs in their class folders, no two with the same pixels."""
    files = files_in(photos)
    for number in range(images):
        path = files[number % len(files)]
        place(folder, path, f"{number:07d}").write_bytes(varied(path.read_bytes(), number // len(files)))
    return folder


def varied(data: bytes, number: int) -> bytes:
    """The JPEG with another step for one low frequency: other pixels in the same decoding time."""
    at = 2
    while data[at + 1] != 0xDB:  # DQT; thumbnails, which have one too, are within segments
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    wide = 2 if data[at + 4] >> 4 else 1
    place = at + 4 + wide * (2 + number % 8)
    changed = bytearray(data)
    changed[place] = min(255, changed[place] + (number + 7) // 8)
    return bytes(changed)


def pack_command(source: Path, target: Path, options: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "iofast", "pack", str(source), str(target), "--workers", str(WORKERS), "--quiet"]
    return [*command, *options]


def timed(command: list[str], target: Path) -> float:
    """Seconds of a process that fills the empty folder `target`."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    os.sync()
    return seconds(command)


def pure(images: Sequence[bytes]) -> float:
    """Seconds of transcoding and nothing else."""
    from iofast import PackOptions, kernel

    recipe = PackOptions(resize=256, quality=90).recipe()

    def work(own: Sequence[bytes]) -> None:
        for data in own:
            kernel.transcode(data, recipe)

    with ThreadPoolExecutor(WORKERS) as threads:
        parts = [images[number::WORKERS] for number in range(WORKERS)]
        start = time.perf_counter()
        for done in [threads.submit(work, part) for part in parts]:
            done.result()
        return time.perf_counter() - start


def page(resized: measure.Figures, kept: measure.Figures, images: int, size: int) -> str:
    """The result as markdown."""
    rows = [[name, measure.spread(own, 2), f"{images / statistics.median(own):,.0f}"] for name, own in resized.items()]
    over = {kind: measure.ratio(resized, kind, PURE) - 1 for kind in SUFFIXES}
    apart = max(measure.ratio(resized, one, other) for one, other in itertools.permutations(SUFFIXES, 2)) - 1
    for row in rows:
        row.append(f"{over[row[0]]:+.1%}" if row[0] in over else "")
    copied = [
        [name, measure.spread(own, 2), f"{size / 1e6 / statistics.median(own):,.0f}"] for name, own in kept.items()
    ]
    shares = {name: measure.ratio(kept, COPY, name) for name in kept if name != COPY}
    for row in copied:
        row.append(f"{shares[row[0]]:.2f}" if row[0] in shares else "")
    quickest = max(min(resized[kind]) for kind in SUFFIXES) / min(resized[PURE]) - 1
    return f"""# Packing into the three containers

{images:,} photographs, {size / 1e6:,.0f} MB in the page cache, two workers, whole processes with start-up and
everything durable at the end, {len(resized[PURE])} rounds in turn.

## `iofast pack --resize 256`

{measure.table(("", "seconds: median (least – most)", "images/s", "over pure transcoding"), rows)}

The slowest takes {apart:.1%} longer than the quickest. Of the quickest runs, the most over pure transcoding is
{quickest:.1%}, which is what the programs take where the disk keeps none of them waiting.

## `iofast pack --format keep`

{measure.table(("", "seconds: median (least – most)", "MB/s", "of the speed of cp"), copied)}

`cp` took {max(kept[COPY]) / min(kept[COPY]):.1f} times as long at worst as at best: if that is much more than one, the
disk and not the programs decides.
"""
