"""One run of packing: workers transcode, this process writes records in packing order, publishes, reports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

from iofast.containers.publish import PLAN, Target
from iofast.containers.targets import writer_of
from iofast.containers.writer import Finished, Section, Writer
from iofast.errors import (
    ErrorBudgetError,
    ObjectConflictError,
    ObjectMissingError,
    SourceError,
    StorageError,
    TargetError,
    because,
)
from iofast.packing import estimate
from iofast.packing.failures import Failures, PackFailure
from iofast.packing.pack_work import PackWork
from iofast.packing.plan import load_plan
from iofast.packing.pool import Done, WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport, completed, published


@dataclass(slots=True)
class PackRun:
    """One run of packing, with its target locked."""

    work: PackWork
    target: Target
    pool: WorkerPool
    progress: PackProgress
    failures: Failures = field(init=False)
    resumed: int = 0  # images in sections that an earlier run finished

    def __post_init__(self) -> None:
        images = len(self.work.source)
        self.failures = Failures(images, self.work.options.allowed_errors(images), self.target.path)

    def write(self) -> PackReport:
        """Pack everything and publish it."""
        with self.explained():
            self._begin_or_resume()
            if self.target.interrupted:
                return completed(self.target, self.work.started)
            estimate.require_space(self.work, self.target)
            writer = writer_of(self.target, self.work.description(), self.work.key_width)
            try:
                self.fill(writer, self.work.sections())
                return self.publish(writer)
            finally:
                writer.abort()

    def fill(self, writer: Writer, sections: Sequence[Section]) -> None:
        """Write those of the sections that no earlier run has finished."""
        progress, left = self.progress, writer.resume(sections)
        for each in writer.finished.values():
            self.count(each)
        self.resumed = sum(len(range(*section[2:])) for section in sections) - sum(len(range(*s[2:])) for s in left)
        progress.begin(sum(len(range(*section[2:])) for section in sections), self.resumed)
        try:
            self.pack(writer, left)
        finally:
            progress.end()

    def pack(self, writer: Writer, sections: Sequence[Section]) -> None:
        """Write these sections."""
        work = self.work
        results = self.pool.results(work.setup(), work.jobs(sections))
        try:
            for section in sections:
                self._write(writer, section, results)
            if sections:
                work.origin().check()
        finally:
            results.close()  # type: ignore[attr-defined] # a generator

    def _write(self, writer: Writer, section: Section, results: Iterator[Done]) -> None:
        """Write one section from the next results."""
        work, failed, left_out, bytes_in = self.work, list[PackFailure](), 0, 0
        writer.begin(section)
        for positions in work.chunks(section):
            done = next(results)
            for position, info, fields, crcs in done.records:
                extra = work.source.extra(position)  # columns of a list, which no worker has
                known = None if extra.keys() - fields.keys() else crcs
                writer.write(position, {**extra, **fields}, info, known)
            failed += work.failures(done)
            for failure in failed[len(failed) - len(done.failed) :]:
                self.failures.add(failure)
            left_out, bytes_in = left_out + done.left_out, bytes_in + done.bytes_in
            self.progress.step(len(positions), done.bytes_in, len(self.failures))
        writer.commit({"failed": [list(each) for each in failed], "left_out": left_out, "bytes_in": bytes_in})

    def count(self, done: Finished) -> None:
        """Count the failures of a section that an earlier run finished."""
        for position, path, reason in done.notes["failed"]:
            self.failures.add(PackFailure(position, path, reason))

    def publish(self, writer: Writer) -> PackReport:
        """Finish the container of all sections, and publish it."""
        work, target = self.work, self.target
        done = [writer.finished[number] for number in sorted(writer.finished)]
        self.check_any(done)
        writer.finish()
        self.failures.save()
        return published(target, writer.files, work.report(target.path, self.failures, done, 0, self.resumed))

    def check_any(self, done: Sequence[Finished]) -> None:
        """Raise `SourceError` if no section has a record."""
        if sum(each.count for each in done):
            return
        failed, images = len(self.failures), len(self.work.source)
        if failed == images:
            raise SourceError(f"no image of {failed:,} could be packed: see {self.failures.save()}")
        raise SourceError(f"no image of {images:,} is left: min_size and max_aspect admit none")

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

    def _begin_or_resume(self) -> None:
        """Load the plan of an earlier run, or begin with an empty folder. Raises `TargetError` for other work."""
        work, target = self.work, self.target
        old = load_plan(target)
        if old is not None:
            work.plan.check_same(old, target.partial)
            work.plan = replace(work.plan, records=old.records)
            return
        if target.interrupted:  # finished by another command than `pack`
            target.complete()
            target.acquire()
        target.clear()
        work.plan = replace(work.plan, records=estimate.section_records(work, target))
        target.note(PLAN, asdict(work.plan))
