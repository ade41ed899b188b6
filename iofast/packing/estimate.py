"""Estimate sizes: from file sizes if that is enough, else by transcoding a sample."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from iofast.containers.container_suffixes import LMDB, TAR
from iofast.containers.publish import Target, require_free
from iofast.containers.shard_target import ShardTarget, shard_bytes
from iofast.containers.writer import TRANSACTION_BYTES
from iofast.errors import IofastError, StorageError
from iofast.kernel.contract import TranscodeRecipe
from iofast.packing.pack_work import PackWork
from iofast.packing.sample import make_record
from iofast.source import Source

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


def mean_source_size(source: Source) -> float:
    """Bytes per file of the source, from a sample; unreadable files count as empty."""
    sizes = []
    for index in spread(len(source), _STAT_SAMPLE):
        with contextlib.suppress(OSError):
            sizes.append(source.size(index))
    return sum(sizes) / max(1, len(sizes))


def mean_size_in_memory(source: Source, recipe: TranscodeRecipe) -> float:
    """Bytes per image in a worker's memory: those of the file or of its raw pixels, whichever are more."""
    mean = mean_source_size(source)
    if recipe.format != "rgb":
        return mean
    bound = _most_per_image(recipe)
    return max(mean, _UNPACKED * mean if bound is None else bound)


class Room(NamedTuple):
    """What determines the size of a container beside its payloads: its suffix."""

    suffix: str

    def container(self, images: int, payload: float) -> int:
        """Bytes of the records in the container, of about `payload` bytes each, all fields together, and its rows."""
        rounding = _PAGE / 2 if payload > _PAGE / 2 else 0  # large values begin a page, small ones share one
        each = {LMDB: rounding, TAR: _TAR_FIELDS * (512 + 256)}.get(self.suffix, _EXAMPLE)
        return int(images * (payload + each + _ROW)) + (16 if self.suffix == LMDB else 2) * _PAGE

    def record(self, payloads: Sequence[int]) -> int:
        """Bytes of a record with these payloads in a section."""
        if self.suffix == TAR:
            return sum(512 + size + -size % 512 for size in payloads)
        return (0 if self.suffix == LMDB else _EXAMPLE) + sum(payloads)


def require_space(work: PackWork, target: Target) -> None:
    """Raise `TargetError` unless the disk can take everything; files in `<DST>.partial/` already count."""
    images, room = len(work.source), Room(target.path.suffix)
    staged = sum(entry.stat().st_size for entry in os.scandir(target.partial))
    bound = _bound(work)
    if bound is None or room.container(images, bound) > shutil.disk_usage(target.partial).free + staged:
        sizes = [sum(each) for each in _sampled(work)]
        mean = sum(sizes) / len(sizes) if sizes else mean_source_size(work.source)
        require_free(target.partial, room.container(images, mean) - staged)


def section_records(work: PackWork, target: Target) -> int:
    """How many positions a section gets: a shard of the wanted size, a transaction of LMDB.

    The number is decided once, from a sample that every run of the same source takes.
    """
    options, source, room = work.options, work.source, Room(target.path.suffix)
    if options.shard_records is not None:
        return options.shard_records
    is_shards = isinstance(target, ShardTarget)
    size = shard_bytes(options.shard_size, target) if is_shards else TRANSACTION_BYTES
    bound = _bound(work)
    if bound is not None and not source.columns and room.container(len(source), bound) <= size:
        return max(1, len(source))
    records = [room.record(sizes) for sizes in _sampled(work)]
    mean = sum(records) / len(records) if records else room.record([int(mean_source_size(source))])
    return max(1, int(size / max(1.0, mean)))


def _bound(work: PackWork) -> float | None:
    return None if work.source.has_payloads else _most_per_image(work.options.recipe())


def _most_per_image(recipe: TranscodeRecipe) -> float | None:
    """Bytes that images of this recipe hardly reach on average; None if the size of the sources decides."""
    if recipe.size is None or recipe.format == "npy":  # channels and type are those of the sources
        return None
    aspect = 2 if recipe.mode == "short" else 1  # more than the mean of any collection of photographs
    compressed = recipe.format in ("jpeg", "webp") and recipe.quality <= 95
    per_pixel = 1.0 if compressed else 3.0 if recipe.format == "rgb" else 4.0
    return recipe.size**2 * aspect * per_pixel + _PAGE


def _sampled(work: PackWork) -> list[list[int]]:
    """Sizes of all payloads of some records, after transcoding; images that fail are not among them."""
    if work.sampled is None:
        origin, recipe, work.sampled = work.origin(), work.options.sample_recipe(), []
        images = {index: work.image(index) for index in spread(len(work.source), _TRANSCODE_SAMPLE)}
        if work.source.objects is not None:
            origin.begin(list(images.values()))
        for index, image in images.items():
            try:
                record = make_record(origin.read(image), recipe)
            except StorageError:
                raise
            except (IofastError, OSError):
                continue
            if record is not None:
                payloads = {**work.source.extra(index), **record.fields}
                work.sampled.append([len(payload) for payload in payloads.values()])
    return work.sampled
