"""One run of packing: workers transcode, this process writes records in packing order, publishes, reports.

A dry run transcodes a sample, and estimates size and time of the whole run.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

from iofast.containers.publish import PLAN, Target, existing_folder
from iofast.containers.targets import writer_of
from iofast.containers.writer import Finished, Section, Writer
from iofast.errors import (
    ContainerError,
    ErrorBudgetError,
    ObjectConflictError,
    ObjectMissingError,
    SourceError,
    StorageError,
    TargetError,
    because,
)
from iofast.packing.copying import CopyWork
from iofast.packing.messages import Done
from iofast.packing.options import PackOptions
from iofast.packing.part import PackPart
from iofast.packing.plan import PackPlan, load_plan
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import Estimate, FailedImages, PackReport, completed, published
from iofast.packing.work import PackWork, container_size

_SAMPLE = 64  # images of a dry run per worker: a fraction of a second for photographs, half a minute for the largest
_START_UP = 0.3  # seconds until the first image, on any machine of today


@dataclass(slots=True)
class PackRun:
    """One command that packs `sources` into `target`. `planned` lists them and plans the whole run, which is `work`."""

    sources: Sequence[str]
    target: Target
    options: PackOptions
    planned: Callable[[], PackWork | CopyWork]
    pool: WorkerPool
    progress: PackProgress
    started: float = field(default_factory=time.monotonic)
    resumed: int = 0  # images in sections that an earlier run finished
    work: PackWork | CopyWork = field(init=False)
    failures: FailedImages = field(init=False)

    def begin(self, work: PackWork | CopyWork) -> None:
        """Begin to do `work`, without any failure."""
        images = work.plan.images
        self.work, self.failures = work, FailedImages(images, self.options.allowed_errors(images), self.target.path)

    def run(self) -> PackReport:
        """Pack everything and publish it. Raises `TargetError` for the unfinished work of another command."""
        self.begin(self.planned())
        with self.target as target:
            old = load_plan(target)
            if old is not None:
                self.work.plan.check_same(old, target.partial)
            with self.explained():
                self._begin_or_resume(old)
                if target.interrupted:
                    return completed(target, self.started)
                try:
                    return self.written(lambda writer: self.fill(writer, self.work.plan.sections()))
                except ContainerError:  # a record that cannot be stored, or is damaged in a container that is copied
                    target.discard()
                    raise

    def written(self, fill: Callable[[Writer], None]) -> PackReport:
        """Have `fill` write all sections, or find them finished; then publish the container."""
        writer = writer_of(self.target, self.work.description(), self.work.key_width)
        try:
            fill(writer)
            done = self.all_of(writer)
            writer.finish()
            self.failures.save()
            return published(self.target, writer.files, self.report(done))
        finally:
            writer.abort()

    def fill(self, writer: Writer, sections: Sequence[Section]) -> None:
        """Write those of the sections that no earlier run has finished."""
        left = writer.resume(sections)
        self.count(writer)
        self.resumed = images_of(sections) - images_of(left)
        self.progress.begin(images_of(sections), self.resumed)
        try:
            self.pack(writer, left)
        finally:
            self.progress.end()

    def pack(self, writer: Writer, sections: Sequence[Section]) -> None:
        """Write these sections."""
        results = self.work.results(self.pool, sections)
        for section in sections:
            self._write(writer, section, results)
        next(results, None)  # what the source checks at its end

    def _write(self, writer: Writer, section: Section, results: Iterator[Done]) -> None:
        """Write one section from the next results."""
        failed, left_out, bytes_in, left = list[list[object]](), 0, 0, section.stop - section.start
        writer.begin(section)
        while left:
            done = next(results)
            for position, info, fields, crcs in done.records:
                writer.write(position, fields, info, crcs)
            failed += self.note_failures(done)
            left, left_out, bytes_in = left - done.images, left_out + done.left_out, bytes_in + done.bytes_in
            self.progress.step(done.images, done.bytes_in, len(self.failures))
        writer.commit({"failed": failed, "left_out": left_out, "bytes_in": bytes_in})

    def note_failures(self, done: Done) -> list[list[object]]:
        """Count the failed images of a chunk; returns position, path and reason of each."""
        rows = [(position, self.work.path(position), reason) for position, reason in done.failed]
        for row in rows:
            self.failures.add(*row)
        return [list(row) for row in rows]

    def count(self, writer: Writer) -> None:
        """Count the failures of the sections that earlier runs finished."""
        for each in writer.finished.values():
            for position, path, reason in each.notes["failed"]:
                self.failures.add(position, path, reason)

    def all_of(self, writer: Writer) -> list[Finished]:
        """All sections, finished. Raises `SourceError` if no image of the source has become a record."""
        done = [writer.finished[number] for number in sorted(writer.finished)]
        failed, images = len(self.failures), self.work.plan.images
        if sum(each.count for each in done) or not images:
            return done
        if failed == images:
            raise SourceError(f"no image of {failed:,} could be packed: see {self.failures.save()}")
        raise SourceError(f"no image of {images:,} is left: min_size and max_aspect admit none")

    def report(self, done: Sequence[Finished], size: int = 0) -> PackReport:
        """The report of finished sections, whose container has `size` bytes."""
        failures = self.failures
        return PackReport(
            **self.work.facts(),
            target=os.fspath(self.target.path),
            packed=sum(each.count for each in done),
            failed=len(failures),
            left_out=sum(each.notes["left_out"] for each in done),
            bytes_in=sum(each.notes["bytes_in"] for each in done),
            bytes_out=size,
            seconds=time.monotonic() - self.started,
            workers=self.pool.count,
            resumed=self.resumed,
            errors=failures.causes(),
            errors_file=os.fspath(failures.file) if failures else None,
        )

    def report_of_part(
        self, part: PackPart, sections: Sequence[Section], writer: Writer, missing: tuple[int, ...]
    ) -> PackReport:
        """The report of a part, of these finished sections; the parts `missing` are not finished."""
        done = [*writer.finished.values()]
        report = self.report(done, sum(each.size for each in done))
        return replace(report, images=images_of(sections), errors_file=None, part=part, missing=missing)

    def forecast(self) -> PackReport:
        """The report of a dry run, with its `estimate`. Nothing is written beside the target."""
        self.begin(self.planned())
        work, path, workers = self.work, self.target.path, self.pool.count
        assert isinstance(work, PackWork)  # a copy is no dry run
        images, sampled = len(work.source), min(len(work.source), _SAMPLE * workers)
        size = max(1, min(work.chunk, sampled // (8 * workers)))  # so small that all workers end at about one time
        self.failures.allowed = images
        bytes_in = bytes_out = left_out = 0
        times = [time.monotonic()]
        for done in work.sample(self.pool, sampled, size):
            times.append(time.monotonic())
            bytes_in += done.bytes_in
            bytes_out += sum(len(payload) for record in done.records for payload in record.fields.values())
            left_out += done.left_out
            self.note_failures(done)
        timed = times[1:] if len(times) > 4 else times  # from the first job's end, when all workers have started
        good = max(1, sampled - len(self.failures) - left_out)
        admitted = images - images * left_out // sampled
        total = container_size(path.suffix, admitted, bytes_out / good)
        expected = Estimate(
            sample=sampled,
            bytes_out=total,
            seconds=_START_UP + images / size * (timed[-1] - timed[0]) / (len(timed) - 1),
            bytes_peak=total,
            bytes_free=shutil.disk_usage(existing_folder(path.parent)).free,
        )
        bytes_in = int(bytes_in / good * admitted)
        return replace(self.report(()), left_out=left_out, bytes_in=bytes_in, errors_file=None, estimate=expected)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Say in errors that the same command resumes the run, if it does."""
        target = self.target
        try:
            yield
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; {target.going_on}") from None
        except ErrorBudgetError as error:
            raise ErrorBudgetError(
                f"{error}; mend or delete them, or give a larger max_errors=, and {target.going_on}"
            ) from None
        except (StorageError, ObjectConflictError, ObjectMissingError) as error:
            raise type(error)(f"{error}; {target.going_on}") from None
        except OSError as error:
            words = (
                str(error) if isinstance(error, TargetError) else f"{target.path} cannot be written: {because(error)}"
            )
            begun = load_plan(target) is not None
            raise TargetError(f"{words}; {target.going_on}" if begun else words) from error

    def _begin_or_resume(self, old: PackPlan | None) -> None:
        """Go on with the plan of an earlier run, or begin with an empty folder."""
        work, target = self.work, self.target
        if old is not None:
            work.plan = replace(work.plan, records=old.records)
            if not target.interrupted:
                work.require_space(target, self.pool)
            return
        target.clear()
        work.plan = replace(work.plan, records=work.section_records(target, self.pool))
        try:
            work.require_space(target, self.pool)
        except TargetError:
            target.discard()
            raise
        target.note(PLAN, asdict(work.plan))


def images_of(sections: Sequence[Section]) -> int:
    """The number of positions in these sections."""
    return sum(each.stop - each.start for each in sections)
