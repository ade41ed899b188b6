"""How fast does `iofast pack --resize 256` run beside Pillow in a process pool, and in how much memory?

python -m benchmarks.bench_pack [--photos FOLDER] [--images 4000] [--copies 300 1000] [--large 50000] [--rounds 5]
[--output PAGE.md]
times them as whole processes, in turn, on the same photographs (linked as often as makes `--images`), on `--copies` of
them as PNG and WebP files, and measures the peak memory of `iofast pack` and its workers together (proportional set
size, sampled 20 times a second) at 500 images and at `--large`. Photographs come from the page cache; output goes to a
temporary folder. Pillow's script ignores colour profiles, as such scripts do: `--icc drop` is the same work.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from benchmarks import measure

COPIES: dict[str, dict[str, int]] = {"PNG": {}, "WebP": {"quality": 85}}  # formats, and what Pillow's save is given
PILLOW = "Pillow, Pool(2)"
PACK = ("--resize", "256", "--quality", "90", "--workers", "2", "--quiet")


def link(photos: Path, folder: Path, images: int) -> Path:
    """`images` links to the photographs, in their class folders."""
    files = sorted(path for path in photos.rglob("*") if path.is_file())
    for number in range(images):
        path = files[number % len(files)]
        place = folder / path.parent.name / f"{number:07d}{path.suffix}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path.resolve())
    return folder


def copy(photos: Path, folder: Path, kind: str, most: int) -> Path:
    """The first `most` photographs as files of another format, in their class folders, profiles included."""
    from PIL import Image

    for path in sorted(path for path in photos.rglob("*") if path.is_file())[:most]:
        place = folder / path.parent.name / f"{path.stem}.{kind.lower()}"
        place.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.convert("RGB").save(place, kind, icc_profile=image.info.get("icc_profile"), **COPIES[kind])
    return folder


def time_copies(photos: Path, folder: Path, counts: Sequence[int], rounds: int) -> list[list[str]]:
    """Rows of a table: what packing `counts` PNG and WebP files takes, beside Pillow's script."""
    rows = []
    for kind in COPIES:
        copies = copy(photos, folder / kind, kind, max(counts))
        for count in counts:
            source = link(copies, folder / f"{count} {kind}", count)
            contenders = {
                "iofast pack": iofast_pack(source, folder / f"{kind}.lmdb"),
                PILLOW: pillow_pack(source, folder / f"pillow {kind}"),
            }
            for run in contenders.values():
                run()
            figures = measure.in_turn(contenders, rounds)
            ratio = measure.ratio(figures, PILLOW, "iofast pack")
            rows.append(
                [f"{count:,} {kind}", *(measure.spread(values, 2) for values in figures.values()), f"{ratio:.2f}×"]
            )
    return rows


def iofast_pack(source: Path, target: Path, *options: str) -> Callable[[], float]:
    """Seconds of a whole `iofast pack`."""
    command = [sys.executable, "-m", "iofast", "pack", str(source), str(target), *PACK, *options, "--overwrite"]
    return lambda: seconds(command)


def pillow_pack(source: Path, folder: Path) -> Callable[[], float]:
    """Seconds of the whole Pillow script."""
    command = [sys.executable, "-m", "benchmarks.peers.pillow_pack", str(source), str(folder / "pillow")]
    return lambda: seconds(command)


def seconds(command: list[str]) -> float:
    """Wall time of a process that must end well."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def peak_memory(command: list[str]) -> int:
    """Most bytes that the process and its descendants held at one moment."""
    peak, process = 0, psutil.Popen(command)
    while process.poll() is None:
        peak = max(peak, tree_memory(process))
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{command} ended with status {process.returncode}")
    return peak


def tree_memory(process: psutil.Process) -> int:
    """Proportional set size of a process and its descendants: shared pages count once."""
    total = 0
    try:
        for each in [process, *process.children(recursive=True)]:
            total += each.memory_full_info().pss
    except psutil.Error:
        return total  # one has just ended
    return total


def payload_bytes(container: Path) -> int:
    """Bytes of all images in a container."""
    import numpy as np

    from iofast import open_reader

    with open_reader(container) as reader:
        return int(reader.locate(np.arange(len(reader))).length.sum())


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def page(
    figures: measure.Figures, images: int, sizes: Sequence[int], copies: list[list[str]], peaks: dict[int, int]
) -> str:
    """The result as markdown."""
    ours, dropping, theirs = figures
    same_work = measure.ratio(figures, theirs, dropping)
    rows = [
        [name, measure.spread(values, 2), f"{images / statistics.median(values):,.0f}", f"{size / images / 1e3:.2f}"]
        for (name, values), size in zip(figures.items(), sizes, strict=True)
    ]
    memory = [[f"{count:,}", f"{peak / (1 << 20):.0f} MiB"] for count, peak in peaks.items()]
    return f"""# Packing: `iofast pack --resize 256 --quality 90` beside Pillow in a process pool of two

{images:,} images, two cores, sources in the page cache, whole processes including start-up, {len(figures[ours])} rounds
in turn.
Pillow writes plain files, with the same filter and quality; iofast writes checksums, an index and an LMDB, durably.

{measure.table(("", "seconds: median (least – most)", "images/s", "kB per image"), rows)}

`{ours}` is **{measure.ratio(figures, theirs, ours):.2f}×** as fast as Pillow's script although it turns colours with a
profile into sRGB, which the script does not; without (`--icc drop`) it is **{same_work:.2f}×** as fast. Its images take
{sizes[0] / sizes[-1]:.3f} of the bytes.

The same photographs as files of other formats, which Pillow decodes for both, but for the filters of PNGs; seconds, and
how many times as fast as Pillow's script `iofast pack` is, profiles turned into sRGB:

{measure.table(("", "iofast pack", PILLOW, ""), copies)}

Peak memory of `iofast pack` with its two workers (proportional set size, sampled every 50 ms):

{measure.table(("images", "peak"), memory)}

{measure.machine(figures)}
- Command: `python -m benchmarks.bench_pack`
"""


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--copies", type=int, nargs="+", default=[300, 1000], help="how many PNG and WebP files")
    parser.add_argument("--large", type=int, default=50_000, help="images of the second memory measurement")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with measure.workplace(arguments.photos) as (folder, photos):
        source = link(photos, folder / "source", arguments.images)
        contenders = {
            "iofast pack": iofast_pack(source, folder / "out.lmdb"),
            "iofast pack --icc drop": iofast_pack(source, folder / "drop.lmdb", "--icc", "drop"),
            PILLOW: pillow_pack(source, folder),
        }
        for run in contenders.values():  # reads everything once, and leaves the output whose size is compared
            run()
        figures = measure.in_turn(contenders, arguments.rounds)
        packed = [payload_bytes(folder / name) for name in ("out.lmdb", "drop.lmdb")]
        sizes = [*packed, folder_bytes(folder / "pillow")]
        copies = time_copies(photos, folder, arguments.copies, arguments.rounds)
        peaks = {}
        for count in (500, arguments.large):
            many = link(photos, folder / "many", count)
            command = [sys.executable, "-m", "iofast", "pack", str(many), str(folder / "many.lmdb"), *PACK]
            peaks[count] = peak_memory([*command, "--overwrite"])
            shutil.rmtree(many)
    measure.publish("pack", page(figures, arguments.images, sizes, copies, peaks), arguments.output)


if __name__ == "__main__":
    main()
