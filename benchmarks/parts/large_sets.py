"""A set of 10^8 images of which only the index is real: shards are sparse files.

Every record's image is the same JPEG at the start of its shard, which is written only into the shards that are read.
"""

import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

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

IMAGE_BYTES = 110_000  # of a shard, for each image: those of ImageNet's
CLASSES = 1000
ROUNDS = 3
READER, FIRST, TARGETS = "open_reader, one record", "first batch", "targets"
BATCH, BATCHES = 256, 32  # batches of a shuffled epoch whose images are there: the loader reads ahead

_OFFSET = 512  # of the JPEG in each shard, behind a tar header
_FIELDS = ("jpg",)
_ROWS = 1 << 18  # of the index that are made at once


class SyntheticSet:
    """The set of `count` images at `path`; the constructor writes it. `seconds` and `disk` say what that took."""

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
        self._read = _first(count, BATCH * BATCHES)
        (folder / (self.path.name + MANIFEST_SUFFIX)).write_bytes(self.manifest.to_json())
        self._write_shards(folder, set((self._read // per).tolist()))
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


def _first(count: int, samples: int) -> NDArray[np.int64]:
    """The first samples of the shuffled epoch that is read."""
    return Shuffled().bind(Population(count), seed=0).indices(0, np.arange(min(count, samples)))


def picture() -> bytes:
    """A JPEG of 500 x 375 pixels."""
    rng, out = np.random.default_rng(0), io.BytesIO()
    coarse = Image.fromarray(rng.integers(0, 256, (38, 50, 3), np.uint8))
    coarse.resize((500, 375), Image.Resampling.BICUBIC).save(out, "jpeg", quality=90)
    return out.getvalue()


def section(folder: Path, counts: Sequence[int]) -> str:
    """The section on synthetic sets."""
    facts, rows = [], []
    for count in counts:
        made = SyntheticSet(Path(tempfile.mkdtemp(dir=folder)), count)
        manifest = made.path.with_name(f"{made.path.name}.manifest").stat().st_size
        facts.append(
            f"- {count:,} images: {len(made.manifest.shards):,} shards of 1 GB, a manifest of {manifest / 1e6:.1f} MB, "
            f"an index of {made.index_bytes / 1e9:.2f} GB ({made.index_bytes / count:.1f} bytes a record); "
            f"made in {made.seconds:.0f} s, {made.disk / 1e9:.1f} GB on the disk"
        )
        for what in (READER, FIRST, TARGETS):
            taken = [measure.in_process("benchmarks.parts.large_sets", what, made.path) for _ in range(ROUNDS)]
            seconds, memory = map(list, zip(*taken, strict=True))
            rows.append([what, f"{count:,}", measure.spread(seconds, 2), measure.spread(memory, 0)])
        shutil.rmtree(made.path.parent)
    table = measure.table(("", "images", "s: median (least – most)", "MiB more: median (least – most)"), rows)
    return f"""
## Large sets

{table}

Sets with the field jpg, {IMAGE_BYTES:,} bytes of a shard for each image, in {ROUNDS} fresh processes
each that have imported everything. Shards are sparse files; the sampled images are one JPEG of 500 x 375 pixels in each
shard. A first batch is {BATCH} images of 224 x 224 pixels of a shuffled epoch, from `FastLoader(…)` on, with the
dataset open; the loader reads further batches ahead. `targets` is `FastDataset.labels()`, which reads the columns of
labels alone.

{chr(10).join(facts)}
"""


def main(what: str, path: str) -> None:
    """Do one thing with a large set in this fresh process; print seconds and MiB of growth."""
    from iofast import FastDataset, FastLoader, open_reader
    from iofast import transforms as T

    dataset = None if what == READER else FastDataset(path)
    kept: list[object] = []

    def take() -> None:
        if dataset is None:
            reader = open_reader(path)
            kept.extend((reader, reader.view(_first(len(reader), 1)[0])))
        elif what == TARGETS:
            kept.append(dataset.labels())
        else:
            loader = FastLoader(dataset, BATCH, shuffle=True, num_workers=2, transform=[T.RandomResizedCrop(224)])
            kept.append(next(iter(loader)))
            if loader.failures:
                raise SystemExit(f"the synthetic set is wrong: {loader.failures[0]}")

    seconds, grown = measure.grown(take)
    print(seconds, grown / 1024)


if __name__ == "__main__":
    main(*sys.argv[1:])
