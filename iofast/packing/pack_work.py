"""The work of one packing run: jobs for workers, and the report."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iofast.containers.manifest import Description
from iofast.containers.writer import Finished, Section
from iofast.foreign.options import ForeignOptions
from iofast.packing.child import ChunkJob
from iofast.packing.failures import Failures, PackFailure
from iofast.packing.options import PackOptions
from iofast.packing.origin import Origin, origin_of
from iofast.packing.plan import PackPlan, recipe
from iofast.packing.pool import Done
from iofast.packing.report import PackReport
from iofast.packing.sample import Image
from iofast.record import key_width
from iofast.source import Source
from iofast.source.listing import printable

MAX_CHUNK = 32  # images
CHUNK_BYTES = 8 << 20  # approximate size of a chunk; a worker holds its records in memory
_CHUNKS = 64  # at least so many, so that a small source keeps all workers busy


@dataclass(slots=True)
class PackWork:
    """The packing of `source` (in packing order). Positions count its images.

    `mean_size`: bytes of an image in a worker's memory. `sampled`: payload sizes of a sample, see `estimate`.
    """

    names: Sequence[str]  # the sources as given by the user
    source: Source
    options: PackOptions
    plan: PackPlan
    workers: int
    mean_size: float
    sampled: list[list[int]] | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def key_width(self) -> int:
        """Digits of the keys."""
        return key_width(len(self.source))

    def sections(self) -> list[Section]:
        """The sections of the whole run."""
        return self.plan.sections()

    @property
    def chunk(self) -> int:
        """The most images of a chunk."""
        by_size = int(CHUNK_BYTES / max(1.0, self.mean_size))
        return max(1, min(MAX_CHUNK, len(self.source) // _CHUNKS, by_size))

    def setup(self) -> dict[str, object]:
        """The set-up message of every worker."""
        recipe, container, foreign = self.options.sample_recipe(), self.source.container, self.options.foreign
        records = None  # the images are files
        if container is not None:
            records = {
                "sources": [*self.names],  # as given: an absolute path's brackets would be part of a pattern
                "foreign": None if foreign is None else asdict(ForeignOptions.of(foreign)),
                "fields": dict(container.fields),
                "state": container.state,
                "upright": list(container.upright),
            }
        return {"root": os.fspath(self.source.root), "records": records, "recipe": asdict(recipe)}

    def origin(self) -> Origin:
        """The origin of samples, for this process."""
        return origin_of(self.setup())

    def chunks(self, section: Section) -> list[range]:
        """The positions of each chunk of a section."""
        step = self.chunk
        return [range(start, min(start + step, section.stop)) for start in range(section.start, section.stop, step)]

    def jobs(self, sections: Sequence[Section]) -> Iterator[ChunkJob]:
        """Jobs for the chunks of these sections, in order. A job is called by its first position."""
        return (self.job(own[0], own) for section in sections for own in self.chunks(section))

    def job(self, chunk: int, positions: Iterable[int]) -> ChunkJob:
        """A job for images at increasing positions."""
        return ChunkJob(chunk, [self._row(position) for position in positions])

    def image(self, index: int) -> Image:
        """The image at `index` of the source, as in a job."""
        return Image(*self._row(index))

    def _row(self, index: int) -> tuple[Any, ...]:
        """The members of `sample.Image`, without trailing ones that have their default."""
        source = self.source
        row = (index, source.label(index), os.fsdecode(source.path(index)))
        if source.container is not None:
            return (*row, (), {}, source.row(index))
        if not source.columns and source.objects is None:
            return row
        files = [(field, os.fsdecode(path)) for field, path in source.files(index)]
        followed = {self.options.boxes, self.options.keypoints}
        values = source.extra(index) if followed - {None} else {}
        texts = {field: value.decode() for field, value in values.items() if field in followed}
        return (*row, files, texts) if source.objects is None else (*row, files, texts, -1, source.versions(index))

    def failures(self, done: Done) -> Iterator[PackFailure]:
        """The failed images of a chunk."""
        for position, reason in done.failed:
            yield PackFailure(position, printable(self.source.path(position)), reason)

    def description(self) -> Description:
        """The description for the container's writer."""
        source, options = self.source, self.options
        return Description(source.classes, source.class_order, recipe(options), options.shuffle)

    def report(self, target: Path, failures: Failures, done: Iterable[Finished], size: int, resumed: int) -> PackReport:
        """The report of finished sections, whose container has `size` bytes; an earlier run had done `resumed`."""
        done = list(done)
        return PackReport(
            source=", ".join(self.names),
            target=os.fspath(target),
            images=len(self.source),
            packed=sum(each.count for each in done),
            failed=len(failures),
            left_out=sum(each.notes["left_out"] for each in done),
            classes=None if self.source.classes is None else len(self.source.classes),
            unlabelled=self.source.unlabelled,
            splits={name: stop - start for name, start, stop in self.source.splits},
            bytes_in=sum(each.notes["bytes_in"] for each in done),
            bytes_out=size,
            seconds=time.monotonic() - self.started,
            workers=self.workers,
            resumed=resumed,
            errors=failures.causes(),
            errors_file=os.fspath(failures.file) if failures else None,
            warnings=self.source.warnings,
            notes=self.source.notes,
        )
