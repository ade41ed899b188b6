"""How fast does `iofast pack --resize 256` run beside Pillow in a process pool?

python -m benchmarks.bench_pack [--part pack|scan|scale ...] [--photos FOLDER] [--rounds N]

    pack   whole processes in turn on the same photographs. Pillow's script ignores colour profiles, as such scripts do:
           `--icc drop` is the same work. Other programs: the case `packing` of `benchmarks.rivals`
    scan   listing a million files, and manifests of 10^8 lines
    scale  opening, the first sample, and the first batch of sets of up to 10^9 records

Photographs come from the page cache.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import measure
from benchmarks.parts import scale, scan
from benchmarks.photographs import folder_bytes, link, payload_lengths

PILLOW = "Pillow, Pool(2)"
PACK = ("iofast", "pack", "--resize", "256", "--quality", "90", "--workers", "2", "--quiet", "--overwrite")


def seconds(*words: str | Path) -> float:
    """Wall time of a whole program, which must end well."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def page(figures: measure.Figures, images: int, sizes: Sequence[int]) -> str:
    """The result as markdown."""
    ours, dropping, theirs = figures
    same_work = measure.ratio(figures, theirs, dropping)
    rows = [
        [name, measure.spread(values, 2), f"{images / statistics.median(values):,.0f}", f"{size / images / 1e3:.2f}"]
        for (name, values), size in zip(figures.items(), sizes, strict=True)
    ]
    return f"""# Packing: `iofast pack --resize 256 --quality 90` beside Pillow in a process pool of two

{images:,} images, two cores, sources in the page cache, whole processes including start-up, {len(figures[ours])} rounds
in turn. Pillow writes plain files, with the same filter and quality; iofast writes checksums, an index and an LMDB,
durably.

{measure.table(("", "seconds: median (least – most)", "images/s", "kB per image"), rows)}

`{ours}` is **{measure.ratio(figures, theirs, ours):.2f}×** as fast as Pillow's script although it turns colours with a
profile into sRGB, which the script does not; without (`--icc drop`) it is **{same_work:.2f}×** as fast. Its images take
{sizes[0] / sizes[2]:.3f} of the bytes.
"""


def pack(bench: measure.Bench) -> None:
    """The part `pack`."""
    images = bench.size(4000, 64)
    with bench.workplace() as (folder, photos):
        source = link(photos, folder / "source", images)
        contenders = {
            "iofast pack": partial(seconds, *PACK, source, folder / "out.lmdb"),
            "iofast pack --icc drop": partial(seconds, *PACK, source, folder / "drop.lmdb", "--icc", "drop"),
            PILLOW: partial(seconds, "benchmarks.peers.pillow_pack", source, folder / "pillow"),
        }
        for run in contenders.values():  # reads everything once, and leaves the output whose size is compared
            run()
        figures = measure.in_turn(contenders, bench.rounds(5))
        packed = [int(payload_lengths(folder / name).sum()) for name in ("out.lmdb", "drop.lmdb")]
        sizes = [*packed, folder_bytes(folder / "pillow")]
    bench.publish(page(figures, images, sizes), figures)


if __name__ == "__main__":
    measure.run(__doc__, {"pack": pack, "scan": scan.scan, "scale": scale.scale})
