"""How fast does FastLoader train from an object store, with a cold and a warm cache?

python -m benchmarks.bench_stored [--photos FOLDER] [--rounds 5]
packs the photographs with `iofast pack --resize 256 --quality 90`, repeats them to tar shards of 1.2 GB, and serves
them on loopback by a web server in a process of its own. In turn, whole epochs of

    local, warm     the set on disk, in the page cache, and the set in the store with everything in the cache
    download        only the set's blocks, 16 at a time, with a latency of 30 ms and 100 MB/s of all answers together
    cold            an epoch with an empty cache, from opening the dataset on, at the same latency and rate
"""

import json
import os
import shutil
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import measure, photographs
from benchmarks.bench_load import BATCH, CROP, WORKERS
from iofast import FastDataset, FastLoader
from iofast.mirror import cache
from iofast.mirror.copies import BLOCK
from iofast.mirror.stored import StoredObject
from iofast.order import Blocks, Mode, Sequential, Shuffled
from iofast.remote import requests

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from web_server import web_server

MB = 1e6
LATENCY, RATE = 0.03, 100  # seconds until an answer begins; MB/s of all answers together
SHARD = 64 << 20
COLD = Blocks(1024, 4)
HEADER = ("", "MB/s: median (least – most)", "of the download", "bytes sent for one of the set", "first batch, s")
AT_ONCE = 16  # as many blocks as `fetching` has in flight


class Epoch(NamedTuple):
    """A cold epoch: seconds to the first batch and to the end, and bytes that the server sent."""

    first: float
    seconds: float
    sent: int


def loader(path: str, mode: Mode) -> FastLoader:
    seed = time.perf_counter_ns()
    return FastLoader(FastDataset(path), BATCH, order=mode, transform=CROP, num_workers=WORKERS, seed=seed)


def rate(path: str, mode: Mode, costs: list[float]) -> float:
    """Images a second of an epoch. Its µs of processor time an image go to `costs`."""
    made, count = loader(path, mode), 0
    start, before = time.perf_counter(), time.process_time()
    for images, _ in made:
        count += len(images)
    costs.append((time.process_time() - before) / count * 1e6)
    return count / (time.perf_counter() - start)


def sent(url: str) -> int:
    """Bytes that the server has sent."""
    with urllib.request.urlopen(f"{url}/-/counts") as answer:
        return int(json.load(answer)["bytes"])


def cold(url: str, mode: Mode, found: list[Epoch]) -> float:
    """Bytes of the set a second, of an epoch with an empty cache."""
    shutil.rmtree(os.environ[cache.FOLDER], ignore_errors=True)
    before, start = sent(url), time.perf_counter()
    first = 0.0
    for _ in loader(f"{url}/large.tar", mode):
        first = first or time.perf_counter() - start
    seconds = time.perf_counter() - start
    found.append(Epoch(first, seconds, sent(url) - before))
    return found[-1].sent / seconds


def download(url: str, folder: Path) -> float:
    """Bytes a second of all blocks, which are dropped."""
    objects = [StoredObject(f"{url}/{path.name}") for path in sorted(folder.glob("large*.tar*"))]
    blocks = [(each, number) for each in objects for number in range(each.copy.blocks)]

    async def one(block: tuple[StoredObject, int]) -> int:
        each, number = block
        return len(await each.source.read(*each.copy.span(number)))

    start = time.perf_counter()
    return sum(requests.run(requests.each(one, blocks, AT_ONCE))) / (time.perf_counter() - start)


def stored(bench: measure.Bench) -> None:
    """The part `stored`."""
    rounds = bench.rounds(5)
    with bench.workplace() as (folder, photos):
        os.environ[cache.FOLDER] = str(folder / "cache")
        site = folder / "site"
        site.mkdir()
        packed = photographs.pack(photos, folder / "packed.lmdb")
        count = photographs.repeated(packed, site / "large.tar", bench.size(1200, 20) * MB, shard_size=SHARD)
        size = sum(path.stat().st_size for path in site.glob("large*.tar*"))
        local = str(site / "large.tar")
        warm: dict[str, Callable[[], float]] = {}
        costs: dict[str, list[float]] = {}
        found: dict[str, list[Epoch]] = {}
        with web_server(site) as url:
            for mode in (Shuffled(), COLD):
                for where, path in (("on disk", local), ("in the store, cached", f"{url}/large.tar")):
                    name = f"{mode}, {where}"
                    warm[name] = partial(rate, path, mode, costs.setdefault(name, []))
            rate(f"{url}/large.tar", Shuffled(), [])  # fills the cache
            in_turn = measure.in_turn(warm, rounds, 1)
        with web_server(site, LATENCY, RATE * MB) as url:
            empty: dict[str, Callable[[], float]] = {"download": partial(download, url, site)}
            for mode in (COLD, Sequential(), Shuffled()):
                empty[str(mode)] = partial(cold, url, mode, found.setdefault(str(mode), []))
            limited = measure.in_turn(empty, -(-rounds // 2), 0)
    bench.publish(page(bench.kind, count, size, (in_turn, costs), (limited, found)))


def page(
    kind: str,
    count: int,
    size: int,
    cached: tuple[measure.Figures, dict[str, list[float]]],
    empty: tuple[measure.Figures, dict[str, list[Epoch]]],
) -> str:
    """Both tables."""
    (warm, costs), (limited, found) = cached, empty
    names = list(warm)
    rows = [[name, measure.spread(values), measure.spread(costs[name])] for name, values in warm.items()]
    shares = [f"{statistics.median(costs[names[n]]) / statistics.median(costs[names[n + 1]]):.3f}" for n in (0, 2)]
    ratios = [f"{measure.ratio(warm, names[n + 1], names[n]):.3f}" for n in (0, 2)]
    lines = [["download", measure.spread([each / MB for each in limited["download"]], 1), "", "", ""]]
    for name, epochs in found.items():
        share = statistics.median(a / b for a, b in zip(limited[name], limited["download"], strict=True))
        lines.append(
            [
                name,
                measure.spread([each / MB for each in limited[name]], 1),
                f"{share:.2f}",
                f"{statistics.median(each.sent for each in epochs) / size:.3f}",
                f"{statistics.median(each.first for each in epochs):.2f}",
            ]
        )
    return f"""# Training from an object store

Batches of {BATCH}, RandomResizedCrop(224) + flip, {WORKERS} workers, checksums on. {kind},
packed with `--resize 256 --quality 90` and repeated to {count:,} images in
{size / MB:,.0f} MB of tar shards, served by a web server on the same {os.cpu_count()} cores. Whole epochs, the
contenders in turn, blocks of {BLOCK >> 20} MiB.

## Everything in the cache

{measure.table(("", "images/s: median (least – most)", "µs of processor time an image, of all runs"), rows)}

In the store to on disk: {ratios[0]} shuffled, {ratios[1]} block-local; asked: 0.95. By processor time, on disk to in
the store: {shares[0]} and {shares[1]}.

## An empty cache, {LATENCY * 1e3:.0f} ms, {RATE} MB/s

An epoch counts from the opening of the dataset to its last batch, and decodes all images.

{measure.table(HEADER, lines)}
"""


if __name__ == "__main__":
    measure.run(__doc__, {"stored": stored})
