"""How fast does `iofast pack --resize 256` run beside Pillow in a process pool and FFCV, and in how much memory?

python -m benchmarks.bench_pack [--photos FOLDER] [--images 4000] [--copies 300 1000] [--large 50000] [--rounds 5]
times them as whole processes, in turn, on the same photographs (linked to make `--images`) and on `--copies` of them as
PNG and WebP files, and measures the peak memory of `iofast pack` and its workers (proportional set size, sampled 20
times a second) at 500 images and at `--large`. Photographs come from the page cache; output goes to a temporary folder.
Pillow's script ignores colour profiles, as such scripts do: `--icc drop` is the same work. FFCV's writer, which ignores
them too, runs in the environment of `make interop` and is timed without its imports; where that environment cannot be
made, the page says why.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import measure
from benchmarks.photographs import files_in, folder_bytes, link, payload_lengths, place, workplace
from tools.interop import environments
from tools.processes import peak_memory

SCRIPT = Path(__file__).with_name("peers") / "ffcv_pack.py"
COPIES: dict[str, dict[str, int]] = {"PNG": {}, "WebP": {"quality": 85}}  # formats, and what Pillow's save is given
PILLOW, FFCV = "Pillow, Pool(2)", "FFCV's writer"
PACK = ("--resize", "256", "--quality", "90", "--workers", "2", "--quiet")


def copy(photos: Path, folder: Path, kind: str, most: int) -> Path:
    """The first `most` photographs as files of another format, in their class folders, profiles included."""
    from PIL import Image

    for path in files_in(photos)[:most]:
        target = place(folder, path, path.stem).with_suffix(f".{kind.lower()}")
        with Image.open(path) as image:
            image.convert("RGB").save(target, kind, icc_profile=image.info.get("icc_profile"), **COPIES[kind])
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
            times = [measure.spread(values, 2) for values in figures.values()]
            rows.append([f"{count:,} {kind}", *times, f"{ratio:.2f}×"])
    return rows


def iofast_pack(source: Path, target: Path, *options: str) -> Callable[[], float]:
    """Seconds of a whole `iofast pack`."""
    command = [sys.executable, "-m", "iofast", "pack", str(source), str(target), *PACK, *options, "--overwrite"]
    return lambda: seconds(command)


def pillow_pack(source: Path, folder: Path) -> Callable[[], float]:
    """Seconds of the whole Pillow script."""
    command = [sys.executable, "-m", "benchmarks.peers.pillow_pack", str(source), str(folder / "pillow")]
    return lambda: seconds(command)


def ffcv_pack(source: Path, folder: Path) -> Callable[[], float]:
    """Seconds of FFCV's writing. Raises `environments.Missing` if FFCV cannot be installed here."""
    command = [str(environments.python("ffcv")), str(SCRIPT), str(source), str(folder / "out.beton")]

    def run() -> float:
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return float(printed.split()[-1])

    return run


def seconds(command: list[str]) -> float:
    """Wall time of a process that must end well."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def page(
    figures: measure.Figures,
    images: int,
    sizes: Sequence[int],
    copies: list[list[str]],
    peaks: dict[int, int],
    absent: str,
) -> str:
    """The result as markdown. `absent`: why FFCV was not measured."""
    ours, dropping, theirs, *peers = figures
    same_work = measure.ratio(figures, theirs, dropping)
    rows = [
        [name, measure.spread(values, 2), f"{images / statistics.median(values):,.0f}", f"{size / images / 1e3:.2f}"]
        for (name, values), size in zip(figures.items(), sizes, strict=True)
    ]
    ffcv = absent
    if peers:
        ratios = (measure.ratio(figures, FFCV, own) for own in (ours, dropping))
        ffcv = "FFCV's writer takes **{:.2f}×** the time of `iofast pack`, **{:.2f}×** without profiles.".format(
            *ratios
        )
    memory = [[f"{count:,}", f"{peak / (1 << 20):.0f} MiB"] for count, peak in peaks.items()]
    return f"""# Packing: `iofast pack --resize 256 --quality 90` beside Pillow in a process pool of two

{images:,} images, two cores, sources in the page cache, whole processes including start-up, {len(figures[ours])} rounds
in turn.
Pillow writes plain files, with the same filter and quality; iofast writes checksums, an index and an LMDB, durably.

{measure.table(("", "seconds: median (least – most)", "images/s", "kB per image"), rows)}

`{ours}` is **{measure.ratio(figures, theirs, ours):.2f}×** as fast as Pillow's script although it turns colours with a
profile into sRGB, which the script does not; without (`--icc drop`) it is **{same_work:.2f}×** as fast. Its images take
{sizes[0] / sizes[2]:.3f} of the bytes. {ffcv}

The same photographs as files of other formats, which Pillow decodes for both; seconds, and
how many times as fast as Pillow's script `iofast pack` is, profiles turned into sRGB:

{measure.table(("", "iofast pack", PILLOW, ""), copies)}

Peak memory of `iofast pack` with its two workers (proportional set size, sampled every 50 ms):

{measure.table(("images", "peak"), memory)}
"""


def main() -> None:
    arguments = measure.arguments(__doc__, images=4000, copies=[300, 1000], large=50_000, rounds=5)
    with workplace(arguments.photos) as (folder, photos):
        source = link(photos, folder / "source", arguments.images)
        contenders = {
            "iofast pack": iofast_pack(source, folder / "out.lmdb"),
            "iofast pack --icc drop": iofast_pack(source, folder / "drop.lmdb", "--icc", "drop"),
            PILLOW: pillow_pack(source, folder),
        }
        absent = ""
        try:
            contenders[FFCV] = ffcv_pack(source, folder)
        except environments.Missing as error:
            absent = f"FFCV's writer was not measured: {error}."
        for run in contenders.values():  # reads everything once, and leaves the output whose size is compared
            run()
        figures = measure.in_turn(contenders, arguments.rounds)
        packed = [int(payload_lengths(folder / name).sum()) for name in ("out.lmdb", "drop.lmdb")]
        sizes = [*packed, folder_bytes(folder / "pillow"), *(path.stat().st_size for path in folder.glob("*.beton"))]
        copies = time_copies(photos, folder, arguments.copies, arguments.rounds)
        peaks = {}
        for count in (500, arguments.large):
            many = link(photos, folder / "many", count)
            command = [sys.executable, "-m", "iofast", "pack", str(many), str(folder / "many.lmdb"), *PACK]
            peaks[count] = peak_memory([*command, "--overwrite"])
            shutil.rmtree(many)
    measure.publish("pack", page(figures, arguments.images, sizes, copies, peaks, absent), arguments.output, figures)


if __name__ == "__main__":
    main()
