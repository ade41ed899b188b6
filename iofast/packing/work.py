"""What a packing run does: jobs for workers, sizes of the result, what the manifest and the report say of the source.

Sizes are estimated by transcoding a sample, unless the disk has room for more than the images can take.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from iofast.containers.container_suffixes import LMDB, TAR
from iofast.containers.manifest import Description
from iofast.containers.publish import Target, require_free
from iofast.containers.targets import section_bytes
from iofast.containers.writer import Section
from iofast.foreign.options import ForeignOptions
from iofast.packing.messages import ChunkJob, Done
from iofast.packing.options import PackOptions
from iofast.packing.origin import origin_of
from iofast.packing.plan import PackPlan, recipe
from iofast.packing.pool import WorkerPool
from iofast.packing.sample import Image
from iofast.record import key_width
from iofast.source.listing import Listing, printable

MAX_CHUNK = 32  # images
CHUNK_BYTES = 8 << 20  # approximate size of a chunk; a worker holds its records in memory
_CHUNKS = 64  # at least so many, so that a small source keeps all workers busy
_PAGE = 4096  # of the file system and of LMDB
_ROW = 250  # bytes of a record's keys, of its columns in the index, and in the rows of its section
_TAR_FIELDS = 3  # members of a record: image, cls, json; each has a header of 512 bytes and is padded to 512
_EXAMPLE = 400  # bytes of a TFRecord's own features, names and framing
_STAT_SAMPLE = 256  # files; their mean size is within a few percent, in a few milliseconds
_UNPACKED = 12  # bytes of pixels per byte of a JPEG of two bits a pixel, which is quality 90
_TRANSCODE_SAMPLE = 32  # images


@dataclass
class PackWork:
    """The packing of `source` (in packing order). Positions count its images; `names` are the sources as given."""

    names: Sequence[str]
    source: Listing
    options: PackOptions
    plan: PackPlan
    _sizes: list[list[int]] | None = field(default=None, init=False)

    @property
    def key_width(self) -> int:
        """Digits of the keys."""
        return key_width(len(self.source))

    @cached_property
    def chunk(self) -> int:
        """The most images of a chunk, by their bytes in a worker's memory: of the file or of its raw pixels."""
        mean = self._mean_file
        if self.options.recipe().format == "rgb":
            mean *= _UNPACKED
        by_size = int(CHUNK_BYTES / max(1.0, mean))
        return max(1, min(MAX_CHUNK, len(self.source) // _CHUNKS, by_size))

    @cached_property
    def setup(self) -> dict[str, Any]:
        """What every worker needs: the members of `origin_of`, and those of `SampleRecipe.of`."""
        container, foreign = self.source.container, self.options.foreign
        records = None  # the images are files
        if container is not None:
            records = {
                "sources": [*self.names],  # as given: an absolute path's brackets would be part of a pattern
                "foreign": None if foreign is None else asdict(ForeignOptions.of(foreign)),
                "fields": dict(container.fields),
                "state": container.state,
                "upright": list(container.upright),
            }
        return {"root": os.fspath(self.source.root), "records": records, "recipe": asdict(self.options.sample_recipe())}

    def results(self, pool: WorkerPool, sections: Sequence[Section]) -> Iterator[Done]:
        """Have the images of these sections transcoded, in order; no chunk has those of two sections."""
        step = self.chunk
        starts = ((start, each.stop) for each in sections for start in range(each.start, each.stop, step))
        jobs = (self.job(start, range(start, min(start + step, stop))) for start, stop in starts)
        for done in pool.results(self.setup, jobs):
            yield self._completed(done) if self.source.columns else done
        if sections:
            origin_of(self.setup).check()

    def job(self, chunk: int, positions: Iterable[int]) -> ChunkJob:
        """A job for images at increasing positions."""
        return ChunkJob(chunk, [self.image(position) for position in positions])

    def image(self, index: int) -> Image:
        """The image at `index` of the source."""
        source, options = self.source, self.options
        image = Image(index, source.label(index), os.fsdecode(source.path(index)))
        if source.container is not None:
            return image._replace(place=source.row(index))
        if not source.columns and source.objects is None:
            return image
        followed = {options.boxes, options.keypoints} - {None}
        values = source.extra(index) if followed else {}
        return image._replace(
            files=[(field, os.fsdecode(path)) for field, path in source.files(index)],
            texts={field: value.decode() for field, value in values.items() if field in followed},
            versions=source.versions(index),
        )

    def path(self, position: int) -> str:
        """The path of an image, for messages."""
        return printable(self.source.path(position))

    def description(self) -> Description:
        """The description for the container's writer."""
        source, options = self.source, self.options
        return Description(source.classes, source.class_order, recipe(options), options.shuffle)

    def require_space(self, target: Target, pool: WorkerPool) -> None:
        """Raise `TargetError` unless the disk can take everything; files in `<DST>.partial/` already count."""
        images, suffix, bound = len(self.source), target.path.suffix, self._bound
        staged = sum(entry.stat().st_size for entry in os.scandir(target.partial))
        if bound is None or container_size(suffix, images, bound) > shutil.disk_usage(target.partial).free + staged:
            sizes = [sum(each) for each in self._sampled(pool)]
            mean = sum(sizes) / len(sizes) if sizes else self._mean_file
            require_free(target.partial, container_size(suffix, images, mean) - staged)

    def section_records(self, target: Target, pool: WorkerPool) -> int:
        """How many positions a section gets: a shard of the wanted size, a transaction of LMDB.

        The number is decided once, from a sample that every run of the same source takes.
        """
        if self.options.shard_records is not None:
            return self.options.shard_records
        suffix, size = target.path.suffix, section_bytes(self.options.shard_size, target)
        records = [record_size(suffix, sizes) for sizes in self._sampled(pool)]
        mean = sum(records) / len(records) if records else record_size(suffix, [int(self._mean_file)])
        return max(1, int(size / max(1.0, mean)))

    def facts(self) -> dict[str, Any]:
        """The members of `PackReport` that the source determines."""
        source = self.source
        return {
            "source": ", ".join(self.names),
            "images": len(source),
            "classes": None if source.classes is None else len(source.classes),
            "unlabelled": source.unlabelled,
            "splits": {name: stop - start for name, start, stop in source.splits},
            "warnings": source.warnings,
            "notes": source.notes,
        }

    def _completed(self, done: Done) -> Done:
        """Add the columns of a list, which no worker has."""
        records = []
        for record in done.records:
            extra = self.source.extra(record.position)
            known = None if extra.keys() - record.fields.keys() else record.crcs
            records.append(record._replace(fields={**extra, **record.fields}, crcs=known))
        return done._replace(records=records)

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
        """Bytes that records of this recipe hardly reach on average; None if the sizes of the sources decide."""
        recipe = self.options.recipe()
        if recipe.size is None or recipe.format == "npy" or self.source.has_payloads:  # or files beside the image do
            return None
        aspect = 2 if recipe.mode == "short" else 1  # more than the mean of any collection of photographs
        compressed = recipe.format in ("jpeg", "webp") and recipe.quality <= 95
        per_pixel = 1.0 if compressed else 3.0 if recipe.format == "rgb" else 4.0
        return recipe.size**2 * aspect * per_pixel + _PAGE

    def sample(self, pool: WorkerPool, count: int, chunk: int) -> Iterator[Done]:
        """Have `count` images transcoded, spread evenly over all, in chunks of so many."""
        rows = spread(len(self.source), count)
        for done in pool.results(self.setup, (self.job(at, rows[at : at + chunk]) for at in range(0, count, chunk))):
            yield self._completed(done)

    def _sampled(self, pool: WorkerPool) -> list[list[int]]:
        """Sizes of all payloads of some records; images that fail are not among them."""
        if self._sizes is None:
            found = self.sample(pool, min(len(self.source), _TRANSCODE_SAMPLE), 4)
            records = (record for done in found for record in done.records)
            self._sizes = [[len(payload) for payload in record.fields.values()] for record in records]
        return self._sizes


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
