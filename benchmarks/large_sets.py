"""A set of 10^8 or 10^9 images of which only the index is real: shards are sparse files.

Every record's image is the same JPEG at the start of its shard, which is written only into the shards that are read. An
index of up to 10^8 records is complete, with all checksums. That of more is sparse too: the heads of all chunks, and
the blocks of rows that are read. All else is a hole in the file, which no reader here looks at.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks import measure
from iofast.containers import index
from iofast.containers.index import BLOCK_ROWS, CHUNK_ROWS, IMAGES, LABELS, Stamp
from iofast.containers.manifest import Manifest, Shard
from iofast.containers.shards import INDEX_SUFFIX, MANIFEST_SUFFIX, SHARD_SIZE, write_directory, write_index
from iofast.order import Population, Shuffled
from iofast.record import key_width

IMAGE_BYTES = 110_000  # of a shard, for each image: those of ImageNet's
CLASSES = 1000
COUNTS = [100_000_000, 1_000_000_000]
ROUNDS = 3
READER, FIRST, FIRST_COLD, TARGETS = "open_reader, one record", "first batch", "first batch, index cold", "targets"
BATCH, BATCHES = 256, 32  # batches of a shuffled epoch whose images are there: the loader reads ahead
WHOLE = 100_000_000  # records of the largest complete index

_OFFSET = 512  # of the JPEG in each shard, behind a tar header
_FIELDS = ("cls", "jpg", "json")
_CODES = [IMAGES, LABELS, index.FIELDS, index.FIELDS + 2]
_NO_FIELD = struct.pack("<IHII", index.NOWHERE & 0xFFFFFFFF, index.NOWHERE >> 32, 0, 0)


class SyntheticSet:
    """The set of `count` images at `path`; the constructor writes it. `seconds` and `disk` say what that took."""

    def __init__(self, folder: Path, count: int) -> None:
        start = time.perf_counter()
        self.path, self.count = folder / f"large-{count}.tar", count
        per = SHARD_SIZE // IMAGE_BYTES
        names = [f"large-{count}-{number:06d}.tar" for number in range(-(-count // per))]
        shards = [Shard(name, min(per, count - number * per), SHARD_SIZE) for number, name in enumerate(names)]
        self.manifest = Manifest(
            count=count,
            fields=_FIELDS,
            splits={"all": ((0, count),)},
            fingerprint=f"sha256:{count:064x}",
            shards=tuple(shards),
            classes=tuple(f"n{number:08d}" for number in range(CLASSES)),
            key_width=key_width(count),
        )
        self._image, self._size = picture(), (500, 375)
        self._read = _first(count, BATCH * BATCHES)
        path = folder / (self.path.name + INDEX_SUFFIX)
        if count <= WHOLE:
            write_index(path, (self._chunk(first) for first in range(0, count, CHUNK_ROWS)))
        else:
            self._write_sparse(path)
        (folder / (self.path.name + MANIFEST_SUFFIX)).write_bytes(self.manifest.to_json())
        self._write_shards(folder, set((self._read // per).tolist()))
        self.seconds, self.index_bytes = time.perf_counter() - start, path.stat().st_size
        self.disk = sum(entry.stat().st_blocks * 512 for entry in os.scandir(folder) if str(count) in entry.name)

    def remove(self) -> None:
        """Remove all files."""
        for file in self.path.parent.glob(f"large-{self.count}*"):
            file.unlink()

    def _images(self, dense: NDArray[np.int64]) -> NDArray[np.void]:
        """The image rows of these records."""
        rows = np.zeros(len(dense), index.IMAGE_ROW)
        rows["place"], rows["length"] = _OFFSET | 1 << 51, len(self._image)
        rows["crc"], rows["label"] = google_crc32c.value(self._image), dense % CLASSES
        rows["width"], rows["height"] = self._size
        return rows

    def _chunk(self, first: int) -> bytes:
        """A complete chunk. No record has `cls` and `json`: their rows are as long, and read as fast."""
        dense = np.arange(first, min(first + CHUNK_ROWS, self.count))
        sections = {code: _NO_FIELD * len(dense) for code in _CODES}
        sections |= {IMAGES: self._images(dense).tobytes(), LABELS: (dense % CLASSES).astype("<i4").tobytes()}
        return index.encode_chunk(sections, first, len(dense), first, Stamp())

    def _write_sparse(self, path: Path) -> None:
        """An index with the heads of all chunks, and the blocks of image rows of the records that are read."""
        starts, at, end, within = [], index.PADDING, 0, 0
        with path.open("wb") as file:
            for first in range(0, self.count, CHUNK_ROWS):
                head = index.encode_head(_CODES, first, min(CHUNK_ROWS, self.count - first), first, Stamp())
                parsed = index.decode_head(head, len(_FIELDS))
                file.seek(at)
                file.write(head)
                starts.append(at)
                end, within = at + parsed.size, parsed.starts[IMAGES]
                at = end + -end % index.PADDING
            for block in np.unique(self._read // BLOCK_ROWS).tolist():
                dense = np.arange(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, self.count))
                rows = self._images(dense).tobytes()
                number = block % (CHUNK_ROWS // BLOCK_ROWS)  # in its chunk
                place = within + number * (BLOCK_ROWS * index.IMAGE_ROW.itemsize + index.CRC_SIZE)
                file.seek(starts[int(dense[0]) // CHUNK_ROWS] + place)
                file.write(rows + struct.pack("<I", index.block_crc(rows, int(dense[0]))))
            write_directory(file, starts, end)

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
        made = SyntheticSet(folder, count)
        manifest = made.path.with_name(f"{made.path.name}.manifest").stat().st_size
        sparse = ", most of it a hole" if count > WHOLE else ""
        facts.append(
            f"- {count:,} images: {len(made.manifest.shards):,} shards of 1 GB, a manifest of {manifest / 1e6:.1f} MB, "
            f"an index of {made.index_bytes / 1e9:.2f} GB ({made.index_bytes / count:.1f} bytes a record{sparse}); "
            f"made in {made.seconds:.0f} s, {made.disk / 1e9:.1f} GB on the disk"
        )
        for what in (READER, FIRST, FIRST_COLD, *([TARGETS] if count <= WHOLE else [])):
            taken = [_process(what, made.path) for _ in range(ROUNDS)]
            seconds, memory = map(list, zip(*taken, strict=True))
            rows.append([what, f"{count:,}", measure.spread(seconds, 2), measure.spread(memory, 0)])
        made.remove()
    if not rows:
        return ""
    table = measure.table(("", "images", "s: median (least – most)", "MiB more: median (least – most)"), rows)
    return f"""
## Large sets

{table}

Sets with the fields cls, jpg and json, {IMAGE_BYTES:,} bytes of a shard for each image, in {ROUNDS} fresh processes
each that have imported everything. Shards are sparse files; the sampled images are one JPEG of 500 x 375 pixels in each
shard. A first batch is {BATCH} images of 224 x 224 pixels of a shuffled epoch, from `FastLoader(…)` on, with the
dataset open; the loader reads further batches ahead. Cold: the index is not in the page cache. `targets` is
`FastDataset.labels()`, which reads the sections of labels alone.

{chr(10).join(facts)}
"""


def _process(what: str, path: Path) -> tuple[float, float]:
    """Seconds, and MiB that the process grew by, in a fresh process."""
    if what == FIRST_COLD:
        fd = os.open(f"{path}.index", os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    command = [sys.executable, "-m", "benchmarks.bench_scale", "--large-once", what, str(path)]
    seconds, mebibytes = map(float, subprocess.check_output(command, text=True).split())
    return seconds, mebibytes


def once(what: str, path: str) -> str:
    """Do one thing with a large set in this fresh process; return seconds and MiB of growth as text."""
    from iofast import FastDataset, FastLoader, open_reader
    from iofast import transforms as T

    if what == READER:
        before, start = measure.pss(), time.perf_counter()
        reader = open_reader(path)
        reader.view(_first(len(reader), 1)[0])
        return f"{time.perf_counter() - start} {(measure.pss() - before) / 1024}"
    dataset = FastDataset(path)
    before, start = measure.pss(), time.perf_counter()
    if what == TARGETS:
        kept: object = dataset.labels()
    else:
        loader = FastLoader(dataset, BATCH, shuffle=True, num_workers=2, transform=[T.RandomResizedCrop(224)])
        kept = next(iter(loader))
        if loader.failures:
            raise SystemExit(f"the synthetic set is wrong: {loader.failures[0]}")
    return f"{time.perf_counter() - start} {(measure.pss() - before) / 1024}" if kept is not None else ""
