"""How large and how long: from file sizes where that is enough, from really transcoding a sample where it is not."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from iofast.containers.publish import Target, require_free
from iofast.containers.shard_target import ShardTarget, shard_bytes
from iofast.containers.shards import SHARD_SIZE, parse_size
from iofast.errors import IofastError
from iofast.kernel.contract import TranscodeRecipe
from iofast.packing.origin import Origin
from iofast.packing.pack_work import PackWork
from iofast.packing.plan import CHUNK_BYTES
from iofast.packing.pool import JOURNAL
from iofast.packing.sample import Image, SampleRecipe, make_record
from iofast.source import Source

_PAGE = 4096  # of the file system and of LMDB
_ROW = 200  # bytes of a record's keys and index row, and of its head in the journal
_TAR_FIELDS = 3  # members of a record: image, cls, json; each has a header of 512 bytes and is padded to 512
_EXAMPLE = 400  # bytes of a TFRecord's own features, names and framing
_NOTES = 150  # bytes of a record's entry beside its shard
_STAT_SAMPLE = 256  # files; their mean size is within a few percent, in a few milliseconds
_PER_PIXEL = {"rgb": 3.0, "yuv420": 1.5}
_UNPACKED = 12  # times the file are the pixels of a JPEG of two bits a pixel, which is quality 90
_TRANSCODE_SAMPLE = 64  # images; 0.2 s, paid only where the disk might be too small, or the set for one shard


def spread(images: int, most: int) -> list[int]:
    """At most `most` positions evenly over `images`."""
    count = min(images, most)
    return [(2 * i + 1) * images // (2 * count) for i in range(count)]


def mean_source_size(source: Source) -> float:
    """Bytes per file of the source, from a sample; files that cannot be looked at count as empty."""
    sizes = []
    for index in spread(len(source), _STAT_SAMPLE):
        with contextlib.suppress(OSError):
            sizes.append(source.size(index))
    return sum(sizes) / max(1, len(sizes))


def size_in_hand(source: Source, recipe: TranscodeRecipe) -> float:
    """Bytes per image while a worker has it: those of the file or, where they are more, of its raw pixels."""
    mean = mean_source_size(source)
    if recipe.format not in _PER_PIXEL:
        return mean
    made = _most_per_image(recipe)
    return max(mean, _UNPACKED * mean if made is None else made)


class Room(NamedTuple):
    """What a container needs on disk: its suffix and workers, bytes of one that is copied, and how large a shard is.

    `shard` is in bytes, `records` is their number in a shard; None while only the bytes are known.
    """

    suffix: str
    workers: int
    copied: int = 0
    shard: int = 0
    records: int | None = None

    @classmethod
    def of(cls, work: PackWork, target: Path) -> Room:
        """That of the container that `work` makes at `target`."""
        rebuilt = work.addition is not None and target.suffix == ".lmdb"
        copied = target.stat().st_size if rebuilt and target.exists() else 0
        shard, records = parse_size(work.options.shard_size or SHARD_SIZE), work.plan.shard_records
        return cls(target.suffix, work.workers, copied, shard, records or work.options.shard_records)

    def container(self, images: int, payload: float) -> int:
        """Bytes of the new records in the container, of about `payload` bytes each, all fields together."""
        rounding = _PAGE / 2 if payload > _PAGE / 2 else 0  # large values begin a page, small ones share one
        each = {".lmdb": rounding, ".tar": _TAR_FIELDS * (512 + 256)}.get(self.suffix, _EXAMPLE)
        return int(images * (payload + each + _ROW)) + (16 if self.suffix == ".lmdb" else 2) * _PAGE

    def record(self, payloads: Sequence[int]) -> int:
        """Bytes of a record with these payloads in a shard."""
        if self.suffix == ".tar":
            return sum(512 + size + -size % 512 for size in payloads)
        return _EXAMPLE + sum(payloads)

    def peak(self, images: int, payload: float) -> int:
        """Bytes on disk at the worst moment: LMDB has journal and container complete, shards the journals of one."""
        journals = int(images * (payload + _ROW))
        if self.suffix != ".lmdb":
            shard = self.shard if self.records is None else int(self.records * (payload + _ROW))
            journals = min(journals, shard + 2 * self.workers * (JOURNAL + CHUNK_BYTES)) + images * _NOTES
        return self.copied + self.container(images, payload) + journals


def require_space(work: PackWork, place: Target) -> None:
    """Raise `TargetError` unless the disk can take everything; what `<DST>.partial/` holds already counts."""
    source, recipe, room = work.source, work.options.recipe(), Room.of(work, place.path)
    there = 0
    for entry in os.scandir(place.partial):
        status = entry.stat()
        if entry.name.startswith(("journal-", "shard-", "rows-")) and status.st_nlink == 1:  # 2: of the old set
            there += status.st_size
    free = shutil.disk_usage(place.partial).free + there
    bound = None if source.has_payloads else _most_per_image(recipe)
    if bound is not None and room.peak(len(source), bound) <= free:
        return
    require_free(place.partial, room.peak(len(source), _measured(work)) - there)


def shard_records(work: PackWork, place: Target) -> int | None:
    """Return how many records a shard gets at most, or None for a target without shards.

    The number is decided once, from a sample that every run of the same source takes.
    """
    if not isinstance(place, ShardTarget):
        return None
    if work.options.shard_records is not None:
        return work.options.shard_records
    source, size, room = work.source, shard_bytes(work.options.shard_size, place), Room.of(work, place.path)
    bound = None if source.has_payloads else _most_per_image(work.options.recipe())
    if bound is not None and not source.columns and room.container(len(source), bound) <= size:
        return max(1, len(source))
    records = [room.record(sizes) for sizes in _sampled(work)]
    mean = sum(records) / len(records) if records else room.record([int(mean_source_size(source))])
    return max(1, int(size / mean))


def _most_per_image(recipe: TranscodeRecipe) -> float | None:
    """Bytes that images of this recipe hardly reach on average; None where the size of the sources decides."""
    if recipe.size is None:
        return None
    aspect = 2 if recipe.mode == "short" else 1  # more than the mean of any collection of photographs
    compressed = recipe.format in ("jpeg", "webp") and recipe.quality <= 95
    return recipe.size**2 * aspect * (1.0 if compressed else _PER_PIXEL.get(recipe.format, 4.0)) + _PAGE


def _measured(work: PackWork) -> float:
    """Mean payload bytes of a transcoded sample; where nothing can be transcoded, the sources' mean size."""
    sizes = [sum(each) for each in _sampled(work)]
    return sum(sizes) / len(sizes) if sizes else mean_source_size(work.source)


def _sampled(work: PackWork) -> list[list[int]]:
    """Sizes of the payloads of some records, after transcoding."""
    origin, recipe, found = work.origin(), work.options.sample_recipe(), []
    for index in spread(len(work.source), _TRANSCODE_SAMPLE):
        fields = _made(origin, work.image(index), recipe)
        if fields is not None:
            found.append([len(payload) for payload in {**work.source.extra(index), **fields}.values()])
    return found


def _made(origin: Origin, image: Image, recipe: SampleRecipe) -> Mapping[str, bytes] | None:
    try:
        found = origin.read(image)
        record = make_record(found.data, found.image, recipe, found.beside, found.upright)
    except (IofastError, OSError):
        return None
    return None if record is None else record.fields
