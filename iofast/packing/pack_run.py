"""One run of packing: workers transcode, this process writes records in packing order, publishes, reports.

A dry run transcodes a sample, and estimates size and time of the whole run.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
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
from iofast.packing.plan import PackPlan, load_plan
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import Estimate, FailedImages, PackReport, completed, published
from iofast.packing.work import PackWork, container_size, spread

_SAMPLE = 64  # images of a dry run per worker: a fraction of a second for photographs, half a minute for the largest
_START_UP = 0.3  # seconds until the first image, on any machine of today


@dataclass(slots=True)
class PackRun:
    """One run of packing, with its target locked."""

    work: PackWork | CopyWork
    target: Target
    pool: WorkerPool
    progress: PackProgress
    started: float = field(default_factory=time.monotonic)
    resumed: int = 0  # images in sections that an earlier run finished
    failures: FailedImages = field(init=False)

    def __post_init__(self) -> None:
        images = self.work.plan.images
        self.failures = FailedImages(images, self.work.options.allowed_errors(images), self.target.path)

    def write(self) -> PackReport:
        """Pack everything and publish it. Raises `TargetError` for the unfinished work of another command."""
        old = load_plan(self.target)
        if old is not None:
            self.work.plan.check_same(old, self.target.partial)
        with self.explained():
            self._begin_or_resume(old)
            if self.target.interrupted:
                return completed(self.target, self.started)
            try:
                return self._filled()
            except ContainerError:  # a record that cannot be stored, or is damaged in a container that is copied
                self.target.discard()
                raise

    def _filled(self) -> PackReport:
        writer = writer_of(self.target, self.work.description(), self.work.key_width)
        try:
            self.fill(writer, self.work.plan.sections())
            return self.publish(writer)
        finally:
            writer.abort()

    def fill(self, writer: Writer, sections: Sequence[Section]) -> None:
        """Write those of the sections that no earlier run has finished."""
        left = writer.resume(sections)
        for each in writer.finished.values():
            self.count(each)
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

    def count(self, done: Finished) -> None:
        """Count the failures of a section that an earlier run finished."""
        for position, path, reason in done.notes["failed"]:
            self.failures.add(position, path, reason)

    def publish(self, writer: Writer) -> PackReport:
        """Finish the container of all sections, and publish it."""
        done = [writer.finished[number] for number in sorted(writer.finished)]
        self.check_any(done)
        writer.finish()
        self.failures.save()
        return published(self.target, writer.files, self.report(done))

    def check_any(self, done: Sequence[Finished]) -> None:
        """Raise `SourceError` if no image of the source has become a record."""
        failed, images = len(self.failures), self.work.plan.images
        if sum(each.count for each in done) or not images:
            return
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

    def forecast(self) -> PackReport:
        """The report of a dry run, with its `estimate`. Nothing is written beside the target."""
        work, path, workers = self.work, self.target.path, self.pool.count
        assert isinstance(work, PackWork)  # a copy is no dry run
        images = len(work.source)
        sample = spread(images, _SAMPLE * workers)
        size = max(1, min(work.chunk, len(sample) // (8 * workers)))  # so small that all workers end at about one time
        jobs = (work.job(i, sample[i : i + size]) for i in range(0, len(sample), size))
        self.failures.allowed = images
        bytes_in = bytes_out = left_out = 0
        times = [time.monotonic()]
        for done in self.pool.results(work.setup, jobs):
            times.append(time.monotonic())
            bytes_in += done.bytes_in
            bytes_out += sum(len(payload) for record in done.records for payload in record.fields.values())
            left_out += done.left_out
            self.note_failures(done)
        good = max(1, len(sample) - len(self.failures) - left_out)
        admitted = images - images * left_out // len(sample)
        total = container_size(path.suffix, admitted, bytes_out / good)
        expected = Estimate(
            sample=len(sample),
            bytes_out=total,
            seconds=_START_UP + images / _rate(times, len(sample)),
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
                work.require_space(target)
            return
        if target.interrupted:  # finished by another command than `pack`
            target.complete()
            target.acquire()
        target.clear()
        work.plan = replace(work.plan, records=work.section_records(target))
        try:
            work.require_space(target)
        except TargetError:
            target.discard()
            raise
        target.note(PLAN, asdict(work.plan))


def images_of(sections: Sequence[Section]) -> int:
    """The number of positions in these sections."""
    return sum(each.stop - each.start for each in sections)


def _rate(times: list[float], images: int) -> float:
    """Images per second, of `images` in jobs that ended at `times[1:]`, begun at `times[0]`.

    The clock starts with the end of the first job, when all workers have started, unless there are few jobs.
    """
    jobs = len(times) - 1
    if jobs < 4:
        return images / max(1e-6, times[-1] - times[0])
    return images * (jobs - 1) / jobs / max(1e-6, times[-1] - times[1])
