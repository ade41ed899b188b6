"""How do restart markers and our Huffman tables change the size of packed JPEGs, and the time of packing?

Each photograph is packed once (short side 256, quality 90, 4:2:0, one core, in memory), and its coefficients are
written again in every way: all ways store the same pixels. Times are sums of each image's quickest round.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks import measure
from benchmarks.photographs import files_in
from iofast.kernel import native
from iofast.kernel.contract import TranscodeRecipe

PLAIN = "no markers, standard tables"
OURS = "markers, tables for photographs (what `pack` writes)"
WAYS: dict[str, tuple[bool, int | None]] = {  # markers? tables, None = those for photographs
    PLAIN: (False, native.STANDARD),
    "no markers, tables for photographs": (False, None),
    "no markers, the best tables for each image": (False, native.OPTIMAL),
    "markers, standard tables": (True, native.STANDARD),
    OURS: (True, None),
    "markers, the best tables for each image": (True, native.OPTIMAL),
}


def quickest(run: Callable[[], object], rounds: int) -> float:
    """Seconds of the quickest of `rounds` runs."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def compare(
    files: Sequence[Path], recipe: TranscodeRecipe, rounds: int
) -> tuple[dict[str, list[int]], dict[str, float], float]:
    """Bytes of each image in each way, seconds of writing all coefficients in each way, seconds of packing them."""
    sizes: dict[str, list[int]] = {name: [] for name in WAYS}
    seconds, packing = dict.fromkeys(WAYS, 0.0), 0.0
    for file in tqdm(files, unit=" images", disable=not sys.stderr.isatty()):
        data = file.read_bytes()
        packed = native.transcode(data, recipe).data
        packing += quickest(partial(native.transcode, data, recipe), rounds)
        interval = native.read_header(packed).restart
        for name, (marked, tables) in WAYS.items():
            restart = interval if marked else 0
            write = partial(native.rewrite, packed, restart, recipe.quality if tables is None else tables)
            sizes[name].append(len(write()))
            seconds[name] += quickest(write, rounds)
    return sizes, seconds, packing


def page(sizes: dict[str, list[int]], seconds: dict[str, float], packing: float, rounds: int) -> str:
    """The result as markdown."""
    images = len(sizes[PLAIN])
    rows = []
    for name, own in sizes.items():
        share = np.array(own) / np.array(sizes[PLAIN])
        shares = [f"{sum(own) / sum(sizes[PLAIN]) - 1:+.2%}", f"{share.mean() - 1:+.2%}", f"{share.max() - 1:+.1%}"]
        milliseconds = (packing + seconds[name] - seconds[OURS]) / images * 1e3
        rows.append([name, f"{np.mean(own) / 1e3:.2f}", *shares, f"{milliseconds:.3f}"])
    header = ("", "kB per image", "bytes in all", "mean of images", "worst image", "ms to pack an image")
    return f"""# Size: restart markers and Huffman tables

{images:,} photographs, short side 256, quality 90, 4:2:0; shares are of the first row.
Time is of one core; each image counts with the quickest of {rounds} rounds.

{measure.table(header, rows)}
"""


def size(bench: measure.Bench) -> None:
    """The part `size`."""
    recipe, rounds = TranscodeRecipe(size=256, mode="short", quality=90, restart="auto"), bench.rounds(5)
    with bench.workplace() as (_, photos):
        files = [path for path in files_in(photos) if path.suffix.lower() in (".jpg", ".jpeg")]
        sizes, seconds, packing = compare(files[: bench.size(500, 20)], recipe, rounds)
    bench.publish(page(sizes, seconds, packing, rounds))
