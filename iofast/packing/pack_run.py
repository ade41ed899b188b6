"""One run of packing: transcode in workers while the container is built, publish, report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

from iofast.containers.base import Writer
from iofast.containers.manifest import Manifest
from iofast.containers.publish import COPY_PLAN, PACK_PLAN, Target
from iofast.containers.shard_target import ShardTarget
from iofast.errors import (
    ErrorBudgetError,
    ObjectConflictError,
    ObjectMissingError,
    SourceError,
    StorageError,
    TargetError,
    because,
)
from iofast.opening import open_reader
from iofast.packing import estimate
from iofast.packing.build import Builder
from iofast.packing.failures import ERRORS, Failures, beside
from iofast.packing.finished_part import FinishedPart
from iofast.packing.pack_work import PackWork
from iofast.packing.plan import load_plan
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport
from iofast.packing.resume import begin, new_builder


@dataclass(slots=True)
class PackRun:
    """One run of packing, with its target locked.

    A part of a run counts its failures against the budget of all, and may have no image that can be packed.
    """

    work: PackWork
    target: Target
    pool: WorkerPool
    progress: PackProgress
    failures: Failures = field(init=False)

    def __post_init__(self) -> None:
        images = len(self.work.source) if self.work.whole is None else self.work.whole
        self.failures = Failures(images, self.work.options.allowed_errors(images), self.target.path, self.work.first)

    def write(self) -> PackReport:
        """Transcode and publish. Errors mention that the same command resumes the run, if it does."""
        with self._errors():
            self._begin_or_resume()
            if self.target.interrupted:
                return self.complete()
            estimate.require_space(self.work, self.target)
            self.work.begun = True
            return self._build(*begin(self.work, self.target, self.pool, self.failures), self._fill)

    def join(self, parts: Sequence[FinishedPart]) -> PackReport:
        """Join the containers of all parts, in their order, and publish. Errors are those of `write`."""
        with self._errors():
            self.work.begun = True
            writer, builder = new_builder(self.work, self.target, self.pool)
            return self._build(writer, builder, lambda builder: self._join(builder, parts))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Say in errors that the same command resumes the run, if it does."""
        work, target = self.work, self.target
        try:
            yield
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; {target.going_on}") from None
        except ErrorBudgetError as error:
            mend = "mend or delete them"
            if work.plan.parts:  # which are joined: a finished part is not packed again
                lists = target.partial / f"part-*{ERRORS}"
                mend = f"mend them, delete the files of their parts (see {lists}) and pack these again"
            raise ErrorBudgetError(f"{error}; {mend}, or give a larger max_errors=, and {target.going_on}") from None
        except (StorageError, ObjectConflictError, ObjectMissingError) as error:
            raise type(error)(f"{error}; {target.going_on}") from None
        except OSError as error:
            is_ours = isinstance(error, TargetError)
            words = str(error) if is_ours else f"{target.path} cannot be written: {because(error)}"
            raise TargetError(f"{words}; {target.going_on}" if work.begun else words) from error

    def complete(self) -> PackReport:
        """Finish a run that was stopped during publication or cleanup, and report it."""
        work, target = self.work, self.target
        if target.interrupted:
            target.complete()
        else:
            target.discard()
        self.failures.load()
        work.finished = dict.fromkeys(range(work.plan.chunks))
        with open_reader(target.path) as reader:
            packed, size = len(reader), self._size(reader.manifest)
        return work.report(target.path, self.failures, packed, size)

    def _begin_or_resume(self) -> None:
        """Load the plan of an earlier run, or begin with an empty folder. Raises `TargetError` for other work."""
        work, target = self.work, self.target
        old = load_plan(target.partial / PACK_PLAN)
        if old is not None:
            work.plan.check_same(old, target.partial)
            # keep the ends of chunks and shards: journals and shards of the earlier run have them
            work.plan = replace(work.plan, chunk=old.chunk, shard_records=old.shard_records)
            return
        if target.interrupted:  # finished by another command than `pack`
            target.complete()
            target.acquire()
        if isinstance(target, ShardTarget) and (target.partial / COPY_PLAN).exists():  # `convert` can resume it
            raise TargetError(f"{target.partial} holds the work of an interrupted convert: finish or delete it")
        target.clear()
        work.plan = replace(work.plan, shard_records=estimate.shard_records(work, target))
        target.note(PACK_PLAN, asdict(work.plan))

    def _build(self, writer: Writer, builder: Builder, fill: Callable[[Builder], None]) -> PackReport:
        """Let `fill` write all records, then finish the container and publish it."""
        work, target = self.work, self.target
        self.progress.begin(len(work.source), work.resumed)
        try:
            fill(builder)
            work.origin().check()
            manifest = builder.finish(work.description())
        except BaseException:
            writer.abort()
            raise
        finally:
            self.progress.end()
        self.failures.save()
        target.publish(writer.files)
        return self._report(builder, manifest)

    def _report(self, builder: Builder, manifest: Manifest) -> PackReport:
        path = self.target.path
        return self.work.report(path, self.failures, builder.packed, self._size(manifest))

    def _fill(self, builder: Builder) -> None:
        """Write all finished chunks, and transcode the others."""
        work, failures = self.work, self.failures
        for chunk, where in work.finished.items():
            if where is not None:
                builder.add(chunk, *where)
        for done in self.pool.results(work.setup(), self.target.partial, work.jobs()):
            for failure in work.failures(done):
                failures.add(failure)
            work.bytes_in += done.bytes_in
            builder.add(done.chunk, done.journal, done.offset)
            builder.advance()
            self.progress.step(len(work.span(done.chunk)), done.bytes_in, len(failures))
        self._check_any()

    def _join(self, builder: Builder, parts: Sequence[FinishedPart]) -> None:
        """Append the records of all parts, with their lists of failures."""
        for part in parts:
            for failure in part.failures:
                self.failures.add(failure)
        self._check_any()
        for part in parts:
            with part.open() as reader:
                builder.join(reader)
            self.work.bytes_in += part.bytes_in
            self.progress.step(part.images, part.bytes_in, len(self.failures))

    def _check_any(self) -> None:
        failed = len(self.failures)
        if failed == len(self.work.source) and self.work.whole is None:
            raise SourceError(f"no image of {failed:,} could be packed: see {self.failures.save()}")

    def _size(self, manifest: Manifest) -> int:
        """Bytes of the container, including index and manifest if they can be looked up: it is published."""
        size = sum(shard.size for shard in manifest.shards)
        for suffix in (".manifest", ".index"):
            with contextlib.suppress(OSError):
                size += beside(self.target.path, suffix).stat().st_size
        return size
