"""One packing run: jobs for workers, progress, and the report."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iofast.containers import journal
from iofast.containers.base import Description
from iofast.foreign.options import ForeignOptions
from iofast.packing.child import ChunkJob
from iofast.packing.failures import Failures, PackFailure
from iofast.packing.options import PackOptions
from iofast.packing.origin import Origin, origin_of
from iofast.packing.plan import PackPlan, recipe
from iofast.packing.pool import Done
from iofast.packing.report import PackReport
from iofast.packing.sample import Image
from iofast.record import KEY_WIDTH
from iofast.source import Source
from iofast.source.listing import printable


@dataclass(slots=True)
class PackWork:
    """The packing of `source` (in packing order), and its progress.

    `finished` maps chunks that an earlier run has done to the journal and offset of their block, or to None if their
    records are in the container. `again` counts their images that had failed. `begun`: there is work to resume.
    Positions are the container's: the first image has `first`.
    `sampled`: payload sizes of a sample, see `estimate`. `whole` is the number of images of the whole run if this is
    the work of one of its parts, else None.
    """

    names: Sequence[str]  # the sources as given by the user
    source: Source
    options: PackOptions
    plan: PackPlan
    workers: int
    bytes_in: int = 0
    begun: bool = False
    finished: dict[int, tuple[Path, int] | None] = field(default_factory=dict)
    again: int = 0
    first: int = 0
    key_width: int = KEY_WIDTH
    whole: int | None = None
    bytes_whole: int | None = None  # bytes of all image files, if an earlier run has stored them
    sampled: list[list[int]] | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def resumed(self) -> int:
        """The number of images done by an earlier run."""
        return sum(len(self.span(chunk)) for chunk in self.finished) - self.again

    def span(self, chunk: int) -> range:
        """The positions of a chunk."""
        start, stop = self.plan.span(chunk)
        return range(self.first + start, self.first + stop)

    def find_finished(self, folder: Path, written: int, *, remove: bool) -> None:
        """Find the chunks that an earlier run has finished; the first `written` are in the container already.

        With `remove`, journals without other chunks are removed; workers begin new ones.
        """
        self.finished = dict.fromkeys(range(written))
        for path in sorted(folder.glob("journal-*")):
            wanted = False
            for chunk, where in journal.scan(path).items():
                # repeat a chunk with a failure: the file may be readable now
                if written <= chunk < self.plan.chunks and not journal.read_block(path, where.offset).failures:
                    self.finished.setdefault(chunk, (path, where.offset))
                    wanted = True
            if remove and not wanted:
                path.unlink()

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

    def jobs(self) -> Iterator[ChunkJob]:
        """Jobs for all chunks that are not finished."""
        todo = (chunk for chunk in range(self.plan.chunks) if chunk not in self.finished)
        return (self.job(chunk, self.span(chunk)) for chunk in todo)

    def job(self, chunk: int, positions: Iterable[int]) -> ChunkJob:
        """A job for images at increasing positions."""
        rows, split = [], 0
        for position in positions:
            index = position - self.first
            while index >= self.source.splits[split][2]:
                split += 1
            rows.append(self._row(index, split))
        return ChunkJob(chunk, rows)

    def image(self, index: int) -> Image:
        """The image at `index` of the source, as in a job."""
        return Image(*self._row(index, 0))

    def _row(self, index: int, split: int) -> tuple[Any, ...]:
        """The members of `sample.Image`, without trailing ones that have their default."""
        source = self.source
        row = (self.first + index, split, source.label(index), os.fsdecode(source.path(index)))
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
            yield PackFailure(position, printable(self.source.path(position - self.first)), reason)

    def description(self) -> Description:
        """The description for the container's writer."""
        source, options = self.source, self.options
        return Description(source.classes, source.class_order, recipe(options), options.shuffle)

    def report(self, target: Path, failures: Failures, packed: int, size: int) -> PackReport:
        """The report. Images that were neither packed nor failed count as left out, except in a dry run."""
        left_out = 0 if self.options.dry_run else len(self.source) - packed - len(failures)
        return PackReport(
            source=", ".join(self.names),
            target=os.fspath(target),
            images=len(self.source),
            packed=packed,
            failed=len(failures),
            left_out=left_out,
            classes=None if self.source.classes is None else len(self.source.classes),
            unlabelled=self.source.unlabelled,
            splits={name: stop - start for name, start, stop in self.source.splits},
            bytes_in=self.bytes_in + self._finished_bytes() if self.bytes_whole is None else self.bytes_whole,
            bytes_out=size,
            seconds=time.monotonic() - self.started,
            workers=self.workers,
            resumed=self.resumed,
            errors=failures.causes(),
            errors_file=os.fspath(failures.file) if failures else None,
            warnings=self.source.warnings,
            notes=self.source.notes,
        )

    def _finished_bytes(self) -> int:
        """Bytes of the source files of chunks that an earlier run finished."""
        total = 0
        for chunk in self.finished:
            for position in self.span(chunk):
                with contextlib.suppress(OSError):
                    total += self.source.size(position - self.first)
        return total
