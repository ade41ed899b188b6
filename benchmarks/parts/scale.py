"""What do opening a container and its first sample cost at a thousand, 100,000, ten million, 10^8 and 10^9 records?

Containers of tiny records (one field, `txt`, of some ten bytes) are written with `open_writer`, two at a time, and
opened in fresh processes, which take the record in the middle, as a reader and as a dataset. Times are those of opening
and sample alone: the process has imported everything and opened a container of one record before. Memory is the
proportional set size of the process. Everything is in the page cache. The containers take 16 GB.

Sets of 10^8 and 10^9 images have shards that are sparse files (6 GB and 1 GB of disk): opening, the first
batch of a shuffled epoch, and all labels.
"""

import gc
import io
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks import measure
from iofast.containers.columns import Arrays
from iofast.containers.index import IndexWriter, Layout
from iofast.containers.manifest import Manifest, Shard
from iofast.containers.shards import MANIFEST_SUFFIX, SHARD_SIZE
from iofast.containers.writer import INDEX_SUFFIX
from iofast.order import Population, Shuffled
from iofast.record import key_width

CONTAINERS = {"LMDB": ".lmdb", "tar": ".tar", "TFRecord": ".tfrecord"}
COUNTS = (1_000, 100_000, 10_000_000)
LARGE = (100_000_000, 1_000_000_000)
READER, DATASET, FIRST, TARGETS = "open_reader, one record", "FastDataset, one sample", "first batch", "targets"
LARGE_ROUNDS = 3
in_process = partial(measure.in_process, "benchmarks.parts.scale")
HEADER = ("", "records", "ms: median (least – most)", "times", "MiB: median (least – most)", "times", "KiB more")
IMAGE_BYTES = 110_000  # of a shard, for each image: those of ImageNet's
CLASSES = 1000
BATCH, BATCHES = 256, 32  # batches of a shuffled epoch whose images are there: the loader reads ahead

_OFFSET = 512  # of the JPEG in each shard, behind a tar header
_FIELDS = ("jpg",)
_ROWS = 1 << 18  # of the index that are made at once


def scale(bench: measure.Bench) -> None:
    """The part `scale`."""
    counts, whole, sections = COUNTS[: bench.size(3, 1)], measure.Figures(()), []
    with bench.folder() as name:
        folder = Path(name)
        # the largest and slowest first, so that both processes end at about the same time
        cases = list(itertools.product(sorted({1, *counts}, reverse=True), ("TFRecord", "tar", "LMDB")))
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda case: in_process("write", folder / f"{case[0]}{CONTAINERS[case[1]]}"), cases))
        for kind, suffix in CONTAINERS.items():
            rows = rows_of([folder / f"{count}{suffix}" for count in counts], bench.rounds(11), whole)
            sections.append(f"## {kind}\n\n{measure.table(HEADER, rows)}\n")
        large = large_sets(folder, LARGE[: bench.size(2, 0)] or (1_000_000,))
    bench.publish(
        f"""# Opening and first sample of {" / ".join(f"{count:,}" for count in counts)} tiny records

Fresh processes, {bench.rounds(11)} of each in turn, everything in the page cache. Milliseconds are those of opening and
sample in a process that has opened a container of one record before; MiB are the process (proportional set size), and
`KiB more` is what opening and sample added to it; `times` is the growth over the fewest records.

{chr(10).join(sections)}{large}""",
        whole,
    )


def rows_of(paths: list[Path], rounds: int, whole: measure.Figures) -> list[list[str]]:
    """What each way takes of each container, in fresh processes in turn."""
    memory: dict[tuple[str, Path], list[list[float]]] = defaultdict(list)

    def run(way: str, path: Path) -> float:
        milliseconds, *sizes = in_process(way, path)
        memory[way, path].append(sizes)
        return milliseconds

    cases = list(itertools.product((READER, DATASET), paths))
    contenders = {f"{way} {path.name}": partial(run, way, path) for way, path in cases}
    for contender in contenders.values():  # into the page cache
        contender()
    memory.clear()
    figures = measure.in_turn(contenders, rounds)
    whole.add(figures)
    rows = []
    for way, path in cases:
        own, least = figures[f"{way} {path.name}"], figures[f"{way} {paths[0].name}"]
        mebibytes, added = zip(*memory[way, path], strict=True)
        times = statistics.median(own) / statistics.median(least)
        larger = statistics.median(mebibytes) / statistics.median(each for each, _ in memory[way, paths[0]])
        sizes = (measure.spread(mebibytes, 1), f"{larger:.2f}", f"{statistics.median(added):,.0f}")
        rows.append([way, f"{int(path.stem):,}", measure.spread(own, 2), f"{times:.2f}", *sizes])
    return rows


def large_sets(folder: Path, counts: Sequence[int]) -> str:
    """The section on sets of which only the index is real."""
    facts, rows = [], []
    for count in counts:
        made = SyntheticSet(Path(tempfile.mkdtemp(dir=folder)), count)
        in_process("write", made.path.with_name("1.tar"))
        manifest = made.path.with_name(f"{made.path.name}.manifest").stat().st_size
        facts.append(
            f"- {count:,} images: {len(made.manifest.shards):,} shards of 1 GB, a manifest of {manifest / 1e6:.1f} MB, "
            f"an index of {made.index_bytes / 1e9:.2f} GB ({made.index_bytes / count:.1f} bytes a record); "
            f"made in {made.seconds:.0f} s, {made.disk / 1e9:.1f} GB on the disk"
        )
        for way in (READER, FIRST, TARGETS):
            taken = [in_process(way, made.path) for _ in range(LARGE_ROUNDS)]
            seconds, memory = [each[0] / 1e3 for each in taken], [each[2] / 1024 for each in taken]
            rows.append([way, f"{count:,}", measure.spread(seconds, 2), measure.spread(memory)])
        shutil.rmtree(made.path.parent)
    table = measure.table(("", "images", "s: median (least – most)", "MiB more: median (least – most)"), rows)
    return f"""
## Large sets

{table}

Sets with the field jpg, {IMAGE_BYTES:,} bytes of a shard for each image, in {LARGE_ROUNDS} fresh processes
each that have imported everything. Shards are sparse files; the sampled images are one JPEG of 500 x 375 pixels in each
shard. A first batch is {BATCH} images of 224 x 224 pixels of a shuffled epoch, from `FastLoader(…)` on, with the
dataset open; the loader reads further batches ahead. `targets` is `FastDataset.labels()`, which reads the columns of
labels alone.

{chr(10).join(facts)}
"""


class SyntheticSet:
    """`count` images at `path`, of which only the index is real; `seconds` and `disk` say what writing it took.

    Every record's image is the same JPEG at the start of its shard, which only the shards that are read have.
    """

    def __init__(self, folder: Path, count: int) -> None:
        start = time.perf_counter()
        self.path, self.count = folder / f"large-{count}.tar", count
        per = SHARD_SIZE // IMAGE_BYTES
        names = [f"large-{count}-{number:06d}.tar" for number in range(-(-count // per))]
        shards = [Shard(name, min(per, count - number * per), SHARD_SIZE) for number, name in enumerate(names)]
        self._image, self._size = picture(), (500, 375)
        path = folder / (self.path.name + INDEX_SUFFIX)
        self.manifest = Manifest(
            count=count,
            fields=_FIELDS,
            splits={"all": ((0, count),)},
            fingerprint=f"sha256:{count:064x}",
            shards=tuple(shards),
            classes=tuple(f"n{number:08d}" for number in range(CLASSES)),
            key_width=key_width(count),
            index=self._write_index(path),
        )
        (folder / (self.path.name + MANIFEST_SUFFIX)).write_bytes(self.manifest.to_json())
        first = Shuffled().bind(Population(count), seed=0).indices(0, np.arange(min(count, BATCH * BATCHES)))
        self._write_shards(folder, {count // 2 // per, *(first // per).tolist()})
        self.seconds, self.index_bytes = time.perf_counter() - start, path.stat().st_size
        self.disk = sum(entry.stat().st_blocks * 512 for entry in os.scandir(folder))

    def _write_index(self, path: Path) -> dict[str, str]:
        """Write the index; the checksums of its columns."""
        layout = Layout(self.count, _FIELDS)
        with path.open("wb") as file:

            def write_at(offset: int, data: memoryview) -> None:
                file.seek(offset)
                file.write(data)

            index = IndexWriter(layout, write_at)
            for first in range(0, self.count, _ROWS):
                index.add(self._columns(np.arange(first, min(first + _ROWS, self.count))))
            file.truncate(layout.size)
        return index.sums()

    def _columns(self, dense: NDArray[np.int64]) -> Arrays:
        """The columns of these records."""
        rows, crc = len(dense), google_crc32c.value(self._image)
        return {
            "position": dense.astype("<u8"),
            "orientation": np.ones(rows, "|u1"),
            "label": (dense % CLASSES).astype("<i4"),
            "width": np.full(rows, self._size[0], "<i4"),
            "height": np.full(rows, self._size[1], "<i4"),
            "jpg.offset": np.full(rows, _OFFSET, "<u8"),
            "jpg.length": np.full(rows, len(self._image), "<u4"),
            "jpg.crc32c": np.full(rows, crc, "<u4"),
        }

    def _write_shards(self, folder: Path, read: Iterable[int]) -> None:
        for number, shard in enumerate(self.manifest.shards):
            fd = os.open(folder / shard.name, os.O_CREAT | os.O_WRONLY, 0o666)
            os.ftruncate(fd, shard.size)
            if number in read:
                os.pwrite(fd, self._image, _OFFSET)
            os.close(fd)


def picture() -> bytes:
    """A JPEG of 500 x 375 pixels."""
    rng, out = np.random.default_rng(0), io.BytesIO()
    coarse = Image.fromarray(rng.integers(0, 256, (38, 50, 3), np.uint8))
    coarse.resize((500, 375), Image.Resampling.BICUBIC).save(out, "jpeg", quality=90)
    return out.getvalue()


def write(path: Path) -> None:
    """Write as many records as the file's name says."""
    from iofast import open_writer

    with open_writer(path) as writer:
        for number in range(int(path.stem)):
            writer.write({"txt": b"record %d" % number})


def one_record(path: Path) -> object:
    from iofast import open_reader

    reader = open_reader(path)
    return reader, reader.record(len(reader) // 2)


def one_sample(path: Path) -> object:
    from iofast import FastDataset

    dataset = FastDataset(path, fields=["txt"])
    return dataset, dataset[len(dataset) // 2]


def first_batch(make: Callable[[], Any]) -> object:
    loader = make()
    batch = next(iter(loader))
    if loader.failures:
        raise SystemExit(f"the synthetic set is wrong: {loader.failures[0]}")
    return batch


def main(what: str, path: Path) -> None:
    """In a fresh process: print milliseconds of a way, MiB of the process, and KiB of growth."""
    kept: list[object] = []
    if what == "write":
        write(path)
        return
    if what in (READER, DATASET):
        take = partial(one_record if what == READER else one_sample, path)
        kept.append(take.func(path.with_name(f"1{path.suffix}")))  # imports; code that runs once
    else:
        from iofast import FastDataset, FastLoader
        from iofast import transforms as T

        dataset, crop = FastDataset(path), [T.RandomResizedCrop(224)]
        loader = partial(FastLoader, dataset, BATCH, shuffle=True, num_workers=2, transform=crop)
        take = partial(first_batch, loader) if what == FIRST else partial(dataset.labels)
    gc.collect()
    seconds, grown = measure.grown(lambda: kept.append(take()))
    print(1e3 * seconds, measure.pss() / 1024, grown)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
