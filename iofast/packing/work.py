"""One packing run: what is to be done, as workers get it, and what was done, as the report has it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from iofast.containers.base import Description
from iofast.packing.child import Job
from iofast.packing.failures import Failure, Failures
from iofast.packing.options import PackOptions
from iofast.packing.plan import Plan, recipe
from iofast.packing.pool import Done
from iofast.packing.report import Report
from iofast.source import Source
from iofast.source.listing import printable


@dataclass(slots=True)
class Work:
    """What `source` (in packing order) is made into, and how far that is.

    `finished` maps chunks that an earlier run has done to the journal and offset of their block. `begun` says that
    there is now something to go on with.
    """

    name: str  # of the source, as the user wrote it
    source: Source
    options: PackOptions
    plan: Plan
    workers: int
    started: float  # time.monotonic()
    bytes_in: int = 0
    begun: bool = False
    finished: dict[int, tuple[Path, int]] = field(default_factory=dict)

    @property
    def resumed(self) -> int:
        """Images of finished chunks."""
        return sum(len(self.span(chunk)) for chunk in self.finished)

    def span(self, chunk: int) -> range:
        """The positions of a chunk."""
        return range(*self.plan.span(chunk))

    def setup(self) -> dict[str, object]:
        """What every worker must know."""
        return {"root": os.fspath(self.source.root), "recipe": asdict(self.options.sample_recipe())}

    def jobs(self) -> Iterator[Job]:
        """All chunks that are not finished, as workers get them."""
        todo = (chunk for chunk in range(self.plan.chunks) if chunk not in self.finished)
        return (self.job(chunk, self.span(chunk)) for chunk in todo)

    def job(self, chunk: int, positions: Iterable[int]) -> Job:
        """Images at rising positions as one job."""
        rows, split = [], 0
        for position in positions:
            while position >= self.source.splits[split][2]:
                split += 1
            path = os.fsdecode(self.source.path(position))
            row: tuple[object, ...] = (position, split, self.source.label(position), path)
            rows.append((*row, *self._beside(position)) if self.source.columns else row)
        return Job(chunk, rows)

    def _beside(self, position: int) -> tuple[object, object]:
        """Files and texts of `sample.Image`."""
        files = [(field, os.fsdecode(path)) for field, path in self.source.files(position)]
        followed = {self.options.boxes, self.options.keypoints}
        values = self.source.extra(position) if followed - {None} else {}
        return files, {field: value.decode() for field, value in values.items() if field in followed}

    def failures(self, done: Done) -> Iterator[Failure]:
        """The failed images of a chunk."""
        return (Failure(position, printable(self.source.path(position)), reason) for position, reason in done.failed)

    def description(self) -> Description:
        """What the container's writer cannot know by itself."""
        source, options = self.source, self.options
        return Description(source.classes, source.class_order, recipe(options), options.shuffle)

    def report(self, target: Path, failures: Failures, packed: int, size: int) -> Report:
        """What became of it all. What was neither packed nor failed was left out, but for a dry run."""
        left_out = 0 if self.options.dry_run else len(self.source) - packed - len(failures)
        return Report(
            source=self.name,
            target=os.fspath(target),
            images=len(self.source),
            packed=packed,
            failed=len(failures),
            left_out=left_out,
            classes=None if self.source.classes is None else len(self.source.classes),
            splits={name: stop - start for name, start, stop in self.source.splits},
            bytes_in=self.bytes_in + self._finished_bytes(),
            bytes_out=size,
            seconds=time.monotonic() - self.started,
            workers=self.workers,
            resumed=self.resumed,
            errors=failures.causes(),
            errors_file=os.fspath(failures.file) if failures else None,
            warnings=self.source.warnings,
        )

    def _finished_bytes(self) -> int:
        """Bytes of the source's files behind the finished chunks, which no worker of this run has read."""
        total = 0
        for chunk in self.finished:
            for position in self.span(chunk):
                with contextlib.suppress(OSError):
                    total += os.stat(self.source.file(position)).st_size
        return total
