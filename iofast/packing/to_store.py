"""`pack` into an object store: a run in parts, whose work lies in the store and for a short time in a folder here.

A machine needs room for two parts. Any number of machines may run the same command: each packs parts that the store
does not have yet, and the last one publishes the set.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from iofast.containers.shards import SHARD_SIZE
from iofast.errors import (
    ErrorBudgetError,
    ObjectConflictError,
    ObjectMissingError,
    OptionError,
    StorageError,
    TargetError,
)
from iofast.option import parse_size
from iofast.packing.dry_run import forecast
from iofast.packing.failures import ERRORS
from iofast.packing.options import PackOptions
from iofast.packing.pack_run import PackRun
from iofast.packing.pack_work import PackWork
from iofast.packing.part import PackPart
from iofast.packing.plan import shared_settings
from iofast.packing.pool import JOURNAL, WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport
from iofast.packing.store_parts import GoneError, StoreParts, Uploads
from iofast.packing.store_target import StoreTarget, parse

MOST_SHARD = 4_000_000_000  # bytes: S3 copies 5 GiB, and a shard may become larger than the estimate


def check_options(options: PackOptions, url: str) -> None:
    """Raise `OptionError` for what cannot be done in an object store."""
    name = parse(url)[1]
    if options.on is not None:
        raise OptionError(
            f"on={options.on} needs a local target, found the URL of {name}: run the same command on each node"
        )
    if parse_size(options.shard_size or SHARD_SIZE) > MOST_SHARD:
        raise OptionError(
            f"shard_size={options.shard_size} is too much for an object store, which copies 5 GiB at most: expected up "
            "to 4GB"
        )


@dataclass(slots=True)
class StoreRun:
    """One command that packs `sources` into the object store of `target`."""

    sources: Sequence[str]
    target: StoreTarget
    options: PackOptions
    planned: Callable[[], PackWork]
    pool: WorkerPool
    progress: PackProgress
    started: float

    def run(self) -> PackReport:
        """Pack the missing parts, or the one that the options name, and publish when all are there."""
        try:
            return self._run()
        except (KeyboardInterrupt, StorageError, ObjectConflictError, ObjectMissingError) as error:
            words = str(error) or "interrupted"
            if self.target.run is None or "goes on from there" in words:
                raise
            raise type(error)(f"{words}; {self.target.going_on}") from None

    def _run(self) -> PackReport:
        target, options = self.target, self.options
        target.pull()
        parts = StoreParts(
            self.sources,
            target,
            options,
            self.planned,
            shared_settings(self.sources, options, target),
        )
        if target.run is not None and (publication := target.publisher.begun()) is not None:
            work = parts.stored() or self.planned()
            target.republish(publication)
            return self._described(PackRun(work, target, self.pool, self.progress).complete())
        part = None if options.part is None else PackPart.parse(options.part, os.environ)
        if options.finish and target.run is None:
            target.check_new()
            raise TargetError(f"{target.url} has no parts that could be joined: pack them with part=i/n")
        work, is_new = parts.begin(None if part is None else part.total)
        work.workers = self.pool.count
        count = work.plan.parts or 1
        stored = parts.stored_parts(count)
        begun = parts.reconcile(count, stored)
        resumed = 0
        if part is not None:
            report = self._pack_one(parts, part, part.number in stored)
            left = tuple(sorted({*range(1, count + 1)} - parts.stored_parts(count).keys()))
            if left or not options.finish_when_complete:
                return self._described(replace(report, missing=left))
        elif not options.finish:
            missing = [PackPart(each, count) for each in range(1, count + 1) if each not in stored]
            if missing and not is_new:  # other machines may be at work: begin anywhere
                start = random.randrange(len(missing))
                missing = missing[start:] + missing[:start]
            resumed = self._pack_missing(parts, work, list(dict.fromkeys((*begun, *missing))))
        return self._described(replace(self._finish(parts, work), resumed=resumed))

    def dry_run(self) -> PackReport:
        """The forecast of a dry run. Nothing is written into the store."""
        self.target.check_new()
        report = forecast(self.planned(), self.target.path, self.pool)
        expected = report.estimate
        if expected is not None:  # a shard that is sent, and one that is packed, with its journals
            shard, journals = parse_size(self.options.shard_size or SHARD_SIZE), 2 * self.pool.count * JOURNAL
            expected = replace(expected, bytes_peak=min(expected.bytes_peak, 3 * shard + journals))
        return replace(report, target=self.target.url, estimate=expected)

    def _pack_one(self, parts: StoreParts, part: PackPart, is_stored: bool) -> PackReport:
        if is_stored:
            parts.fetch([part])
        report = parts.pack(part, self.pool, self.progress)
        if not is_stored:
            parts.send(part)
        return report

    def _pack_missing(self, parts: StoreParts, work: PackWork, order: Sequence[PackPart]) -> int:
        """Pack and send these parts, except those that another machine stores meanwhile.

        Returns the number of images that were not packed here and now.
        """
        images = {part: len(parts.of(part, work).source) for part in order}
        resumed, failed = len(work.source) - sum(images.values()), 0
        whole = _WholeProgress(self.progress, len(work.source), resumed)
        try:
            with Uploads(parts) as uploads:
                whole.check = uploads.check
                for part in order:
                    if parts.is_stored(part):
                        whole.skip(images[part])
                        resumed += images[part]
                        continue
                    report = parts.pack(part, self.pool, whole)
                    resumed += report.resumed
                    failed += report.failed
                    self._check_budget(failed, len(work.source))
                    uploads.add(part)
        except GoneError:
            pass  # `_finish` finds out why
        finally:
            whole.close()
        return resumed

    def _check_budget(self, failed: int, images: int) -> None:
        allowed = self.options.allowed_errors(images)
        if failed > allowed:
            raise ErrorBudgetError(
                f"{failed:,} of {images:,} images failed: expected at most {allowed:,} (they are listed in "
                f"{self.target.partial}/part-*{ERRORS}); give a larger max_errors=, and {self.target.going_on}"
            )

    def _finish(self, parts: StoreParts, work: PackWork) -> PackReport:
        """Join all parts and publish. Another machine may do the same at the same time."""
        target, count = self.target, work.plan.parts or 1
        try:
            parts.fetch([PackPart(number, count) for number in range(1, count + 1)])
            return parts.finish(self.pool, self.progress)
        except (TargetError, ObjectMissingError):
            if target.find() == target.run:
                raise
        target.receive_set()
        return PackRun(work, target, self.pool, self.progress).complete()

    def _described(self, report: PackReport) -> PackReport:
        """The report with URLs in the place of local paths."""
        target = self.target
        errors = None if report.errors_file is None else f"{target.url}{ERRORS}"
        if report.errors_file is not None and report.part is not None:
            errors = target.store.url(f"{target.prefix}/{os.path.basename(report.errors_file)}")
        return replace(report, target=target.url, seconds=time.monotonic() - self.started, errors_file=errors)


class _WholeProgress(PackProgress):
    """One display for all parts of a run."""

    def __init__(self, shown: PackProgress, images: int, done: int) -> None:
        self._shown, self._failed, self._before = shown, 0, 0
        self.check: Callable[[], None] = lambda: None
        shown.begin(images, done)

    def begin(self, images: int, done: int) -> None:  # noqa: ARG002 - of one part
        self._before, self._failed = self._before + self._failed, 0
        self.skip(done)

    def skip(self, images: int) -> None:
        """Count images of an earlier run, or of another machine."""
        if images:
            self._shown.step(images, 0, self._before + self._failed)

    def step(self, images: int, size: int, failed: int) -> None:
        self.check()
        self._failed = failed
        self._shown.step(images, size, self._before + failed)

    def close(self) -> None:
        self._shown.end()
