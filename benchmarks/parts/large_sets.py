"""A set of 10^8 images of which only the index is real: shards are sparse files.

Every record's image is the same JPEG at the start of its shard, which is written only into the shards that are read.
"""

import io
import os
import time
from collections.abc import Iterable
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from iofast.containers.columns import Arrays
from iofast.containers.index import IndexWriter, Layout
from iofast.containers.manifest import Manifest, Shard
from iofast.containers.shards import MANIFEST_SUFFIX, SHARD_SIZE
from iofast.containers.writer import INDEX_SUFFIX
from iofast.order import Population, Shuffled
from iofast.record import key_width

IMAGE_BYTES = 110_000  # of a shard, for each image: those of ImageNet's
CLASSES = 1000
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
