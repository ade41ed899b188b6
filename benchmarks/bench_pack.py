"""How fast does `iofast pack --resize 256` run beside Pillow in a process pool and FFCV, and in how much memory?

python -m benchmarks.bench_pack [--part pack|containers|scan|scale|size ...] [--photos FOLDER] [--rounds N]

    pack        whole processes in turn on the same photographs, and on copies of them as PNG and WebP files. Pillow's
                script ignores colour profiles, as such scripts do: `--icc drop` is the same work. FFCV's writer ignores
                them too, runs in the environment of `make interop` and is timed without its imports
    containers  LMDB, tar and TFRecord, resized and kept, beside pure transcoding and `cp -r`
    scan        listing a million files, and manifests of 10^8 lines
    scale       opening, the first sample, and the first batch of sets of up to 10^9 records
    size        what restart markers and our Huffman tables cost

Photographs come from the page cache.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import measure
from benchmarks.photographs import files_in, folder_bytes, link, payload_lengths, place
from tools.environments import Missing
from tools.interop.environments import ENVIRONMENTS

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
            image.convert("RGB").save(target, kind, icc_profile=image.info.get("icc_profile"), **COPIES.get(kind, {}))
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
    """Seconds of FFCV's writing. Raises `Missing` if FFCV cannot be installed here."""
    command = [str(ENVIRONMENTS["ffcv"].python()), str(SCRIPT), str(source), str(folder / "out.beton")]

    def run() -> float:
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return float(printed.split()[-1])

    return run


def seconds(command: list[str]) -> float:
    """Wall time of a process that must end well."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def page(figures: measure.Figures, images: int, sizes: Sequence[int], copies: list[list[str]], ffcv: str) -> str:
    """The result as markdown. `ffcv`: why FFCV was not measured."""
    ours, dropping, theirs, *peers = figures
    same_work = measure.ratio(figures, theirs, dropping)
    rows = [
        [name, measure.spread(values, 2), f"{images / statistics.median(values):,.0f}", f"{size / images / 1e3:.2f}"]
        for (name, values), size in zip(figures.items(), sizes, strict=True)
    ]
    if peers:
        ratios = [f"**{measure.ratio(figures, FFCV, own):.2f}×**" for own in (ours, dropping)]
        ffcv = f"FFCV's writer takes {ratios[0]} the time of `iofast pack`, {ratios[1]} without profiles."
    return f"""# Packing: `iofast pack --resize 256 --quality 90` beside Pillow in a process pool of two

{images:,} images, two cores, sources in the page cache, whole processes including start-up, {len(figures[ours])} rounds
in turn. Pillow writes plain files, with the same filter and quality; iofast writes checksums, an index and an LMDB,
durably.

{measure.table(("", "seconds: median (least – most)", "images/s", "kB per image"), rows)}

`{ours}` is **{measure.ratio(figures, theirs, ours):.2f}×** as fast as Pillow's script although it turns colours with a
profile into sRGB, which the script does not; without (`--icc drop`) it is **{same_work:.2f}×** as fast. Its images take
{sizes[0] / sizes[2]:.3f} of the bytes. {ffcv}

The same photographs as files of other formats, which Pillow decodes for both; seconds, and
how many times as fast as Pillow's script `iofast pack` is, profiles turned into sRGB:

{measure.table(("", "iofast pack", PILLOW, ""), copies)}
"""


def pack(bench: measure.Bench) -> None:
    """The part `pack`."""
    images, copies = bench.size(4000, 64), [300, 1000] if bench.size(1, 0) else [16]
    with bench.workplace() as (folder, photos):
        source = link(photos, folder / "source", images)
        contenders = {
            "iofast pack": iofast_pack(source, folder / "out.lmdb"),
            "iofast pack --icc drop": iofast_pack(source, folder / "drop.lmdb", "--icc", "drop"),
            PILLOW: pillow_pack(source, folder),
        }
        absent = ""
        try:
            contenders[FFCV] = ffcv_pack(source, folder)
        except Missing as error:
            absent = f"FFCV's writer was not measured: {error}."
        for run in contenders.values():  # reads everything once, and leaves the output whose size is compared
            run()
        figures = measure.in_turn(contenders, bench.rounds(5))
        packed = [int(payload_lengths(folder / name).sum()) for name in ("out.lmdb", "drop.lmdb")]
        sizes = [*packed, folder_bytes(folder / "pillow"), *(path.stat().st_size for path in folder.glob("*.beton"))]
        others = time_copies(photos, folder, copies, bench.rounds(5))
    bench.publish(page(figures, images, sizes, others, absent), figures)


def main() -> None:
    from benchmarks.parts import containers, scale, scan, size  # which import this module

    others = {"containers": containers.containers, "scan": scan.scan, "scale": scale.scale, "size": size.size}
    measure.run(__doc__, {"pack": pack, **others})


if __name__ == "__main__":
    main()
