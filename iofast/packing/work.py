"""What a packing run does: jobs for workers, and what the container's manifest and the report say of the source."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from iofast.containers.manifest import Description
from iofast.containers.publish import Target
from iofast.containers.writer import Section
from iofast.foreign.options import ForeignOptions
from iofast.packing.child import ChunkJob
from iofast.packing.estimate import Estimates
from iofast.packing.options import PackOptions
from iofast.packing.origin import Origin, origin_of
from iofast.packing.plan import PackPlan, recipe
from iofast.packing.pool import Done, WorkerPool
from iofast.packing.sample import Image
from iofast.record import key_width
from iofast.source import Listing
from iofast.source.listing import printable

MAX_CHUNK = 32  # images
CHUNK_BYTES = 8 << 20  # approximate size of a chunk; a worker holds its records in memory
_CHUNKS = 64  # at least so many, so that a small source keeps all workers busy


@dataclass
class PackWork:
    """The packing of `source` (in packing order). Positions count its images; `names` are the sources as given."""

    names: Sequence[str]
    source: Listing
    options: PackOptions
    plan: PackPlan

    @property
    def key_width(self) -> int:
        """Digits of the keys."""
        return key_width(len(self.source))

    @cached_property
    def chunk(self) -> int:
        """The most images of a chunk."""
        by_size = int(CHUNK_BYTES / max(1.0, self.estimates.mean_in_memory()))
        return max(1, min(MAX_CHUNK, len(self.source) // _CHUNKS, by_size))

    @cached_property
    def setup(self) -> dict[str, object]:
        """The set-up message of every worker."""
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
        return {
            "root": os.fspath(self.source.root),
            "records": records,
            "recipe": asdict(self.options.sample_recipe()),
        }

    @cached_property
    def estimates(self) -> Estimates:
        """Sizes of its records."""
        return Estimates(self.source, self.options, self.origin, self.image)

    def origin(self) -> Origin:
        """The origin of samples, for this process."""
        return origin_of(self.setup)

    def results(self, pool: WorkerPool, sections: Sequence[Section]) -> Iterator[Done]:
        """Have the images of these sections transcoded, in order; no chunk has those of two sections."""
        step = self.chunk
        starts = ((start, each.stop) for each in sections for start in range(each.start, each.stop, step))
        jobs = (self.job(start, range(start, min(start + step, stop))) for start, stop in starts)
        for done in pool.results(self.setup, jobs):
            yield self._completed(done) if self.source.columns else done
        if sections:
            self.origin().check()

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

    def section_records(self, target: Target) -> int:
        """How many positions a section gets."""
        return self.estimates.section_records(target)

    def require_space(self, target: Target) -> None:
        """Raise `TargetError` unless the disk can take everything."""
        self.estimates.require_space(target)

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
