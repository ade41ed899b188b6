"""Estimate sizes: from file sizes if that is enough, else by transcoding a sample in this process."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from iofast.containers.container_suffixes import LMDB, TAR
from iofast.containers.publish import Target, require_free
from iofast.containers.shard_target import ShardTarget, shard_bytes
from iofast.containers.writer import TRANSACTION_BYTES
from iofast.errors import IofastError, StorageError
from iofast.packing.options import PackOptions
from iofast.packing.origin import Origin
from iofast.packing.sample import Image, make_record
from iofast.source import Listing

_PAGE = 4096  # of the file system and of LMDB
_ROW = 250  # bytes of a record's keys, of its columns in the index, and in the rows of its section
_TAR_FIELDS = 3  # members of a record: image, cls, json; each has a header of 512 bytes and is padded to 512
_EXAMPLE = 400  # bytes of a TFRecord's own features, names and framing
_STAT_SAMPLE = 256  # files; their mean size is within a few percent, in a few milliseconds
_UNPACKED = 12  # bytes of pixels per byte of a JPEG of two bits a pixel, which is quality 90
_TRANSCODE_SAMPLE = 64  # images; 0.2 s, paid only if the disk might be too small, or the set for one shard


def spread(images: int, most: int) -> list[int]:
    """At most `most` indices spread evenly over `images`."""
    count = min(images, most)
    return [(2 * i + 1) * images // (2 * count) for i in range(count)]


def container_size(suffix: str, images: int, payload: float) -> int:
    """Bytes of a container of records with about `payload` bytes each, all fields together, and of its rows."""
    rounding = _PAGE / 2 if payload > _PAGE / 2 else 0  # large values begin a page, small ones share one
    each = rounding if suffix == LMDB else _TAR_FIELDS * (512 + 256) if suffix in TAR else _EXAMPLE
    return int(images * (payload + each + _ROW)) + (16 if suffix == LMDB else 2) * _PAGE


def record_size(suffix: str, payloads: Sequence[int]) -> int:
    """Bytes of a record with these payloads in a section."""
    if suffix in TAR:
        return sum(512 + size + -size % 512 for size in payloads)
    return (0 if suffix == LMDB else _EXAMPLE) + sum(payloads)


@dataclass
class Estimates:
    """Sizes of the records that the images of `source` become. `image` gives one of them, to be read by `origin`."""

    source: Listing
    options: PackOptions
    origin: Callable[[], Origin]
    image: Callable[[int], Image]

    def mean_in_memory(self) -> float:
        """Bytes per image in a worker's memory: those of the file or of its raw pixels, whichever are more."""
        if self.options.recipe().format != "rgb":
            return self._mean_file
        return max(self._mean_file, _UNPACKED * self._mean_file if self._most is None else self._most)

    def require_space(self, target: Target) -> None:
        """Raise `TargetError` unless the disk can take everything; files in `<DST>.partial/` already count."""
        images, suffix, bound = len(self.source), target.path.suffix, self._bound
        staged = sum(entry.stat().st_size for entry in os.scandir(target.partial))
        if bound is None or container_size(suffix, images, bound) > shutil.disk_usage(target.partial).free + staged:
            sizes = [sum(each) for each in self._sampled]
            mean = sum(sizes) / len(sizes) if sizes else self._mean_file
            require_free(target.partial, container_size(suffix, images, mean) - staged)

    def section_records(self, target: Target) -> int:
        """How many positions a section gets: a shard of the wanted size, a transaction of LMDB.

        The number is decided once, from a sample that every run of the same source takes.
        """
        if self.options.shard_records is not None:
            return self.options.shard_records
        suffix, is_shards = target.path.suffix, isinstance(target, ShardTarget)
        size = shard_bytes(self.options.shard_size, target) if is_shards else TRANSACTION_BYTES
        images, bound = len(self.source), self._bound
        if bound is not None and not self.source.columns and container_size(suffix, images, bound) <= size:
            return max(1, images)
        records = [record_size(suffix, sizes) for sizes in self._sampled]
        mean = sum(records) / len(records) if records else record_size(suffix, [int(self._mean_file)])
        return max(1, int(size / max(1.0, mean)))

    @cached_property
    def _mean_file(self) -> float:
        """Bytes per file of the source, from a sample; unreadable files count as empty."""
        sizes = []
        for index in spread(len(self.source), _STAT_SAMPLE):
            with contextlib.suppress(OSError):
                sizes.append(self.source.size(index))
        return sum(sizes) / max(1, len(sizes))

    @property
    def _bound(self) -> float | None:
        """The most bytes of a record, None if it may have files beside the image."""
        return None if self.source.has_payloads else self._most

    @cached_property
    def _most(self) -> float | None:
        """Bytes that images of this recipe hardly reach on average; None if the size of the sources decides."""
        recipe = self.options.recipe()
        if recipe.size is None or recipe.format == "npy":  # channels and type are those of the sources
            return None
        aspect = 2 if recipe.mode == "short" else 1  # more than the mean of any collection of photographs
        compressed = recipe.format in ("jpeg", "webp") and recipe.quality <= 95
        per_pixel = 1.0 if compressed else 3.0 if recipe.format == "rgb" else 4.0
        return recipe.size**2 * aspect * per_pixel + _PAGE

    @cached_property
    def _sampled(self) -> list[list[int]]:
        """Sizes of all payloads of some records, after transcoding; images that fail are not among them."""
        origin, recipe, found = self.origin(), self.options.sample_recipe(), list[list[int]]()
        images = {index: self.image(index) for index in spread(len(self.source), _TRANSCODE_SAMPLE)}
        if self.source.objects is not None:
            origin.begin(list(images.values()))
        for index, image in images.items():
            try:
                record = make_record(origin.read(image), recipe)
            except StorageError:
                raise
            except (IofastError, OSError):
                continue
            if record is not None:
                payloads = {**self.source.extra(index), **record.fields}
                found.append([len(payload) for payload in payloads.values()])
        return found
