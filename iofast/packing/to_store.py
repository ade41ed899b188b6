"""`pack` into an object store: a run in parts, whose work lies in the store and for a short time in a folder here.

A machine needs room for two parts. Any number of machines may run the same command: each packs parts that the store
does not have yet, and the last one publishes the set.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import math
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from iofast import owned
from iofast.containers.shards import SHARD_SIZE, parse_size
from iofast.errors import (
    ErrorBudgetError,
    IofastError,
    ObjectConflictError,
    ObjectMissingError,
    OptionError,
    StorageError,
    TargetError,
    because,
)
from iofast.packing.dry_run import forecast
from iofast.packing.duplicates import DUPLICATES
from iofast.packing.failures import ERRORS
from iofast.packing.options import PackOptions, names_of
from iofast.packing.pack_run import PackRun
from iofast.packing.pack_work import PackWork
from iofast.packing.part import Part
from iofast.packing.plan import shared_settings
from iofast.packing.pool import JOURNAL, WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport
from iofast.packing.shard_windows import ShardWindows
from iofast.packing.store_parts import GoneError, StoreParts, Uploads
from iofast.packing.store_target import StoreTarget, parse
from iofast.source.cache import cache_folder

WORK = "IOFAST_WORK"  # the variable with the folder for work, by default the user's cache folder
MOST_SHARD = 4_000_000_000  # bytes: S3 copies 5 GiB, and a shard may become larger than the estimate

_FULL = re.compile("disk space|No space left|[Qq]uota")
_OLD = 14 * 24 * 3600.0  # seconds after which the work of a killed run is removed from this machine


def check_options(options: PackOptions, url: str) -> None:
    """Raise `OptionError` for what cannot be done in an object store."""
    name = parse(url)[1]
    if options.append:
        raise OptionError(f"append=True needs a local target, found the URL of {name}: pack into another set, or here")
    if options.on is not None:
        raise OptionError(
            f"on={options.on} needs a local target in a folder that all nodes share, found the URL of {name}: "
            "start the same command without it on each machine"
        )
    if names_of(options.sidecars):
        raise OptionError(f"sidecars needs a local target, found the URL of {name}: make them for a local copy")
    if parse_size(options.shard_size or SHARD_SIZE) > MOST_SHARD:
        raise OptionError(
            f"shard_size={options.shard_size} is too much for an object store, which copies 5 GiB at most: expected up "
            "to 4GB"
        )


@dataclass(slots=True)
class StoreRun:
    """One command that packs `source` into the object store of `target`."""

    source: str
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
            if self.target.run is None or self.target.going_on in words:
                raise
            raise type(error)(f"{words}; {self.target.going_on}") from None

    def _run(self) -> PackReport:
        target, options = self.target, self.options
        target.pull()
        parts = StoreParts(
            self.source,
            target,
            options,
            self.planned,
            shared_settings(self.source, options, target, None),
            None,
            windows=ShardWindows(target),
        )
        target.backing = parts.windows
        if target.run is not None and (publication := target.publisher.begun()) is not None:
            work = parts.stored() or self.planned()
            target.republish(publication)
            return self._described(PackRun(work, target, self.pool, self.progress).complete())
        part = None if options.part is None else Part.parse(options.part, os.environ)
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
            missing = [Part(each, count) for each in range(1, count + 1) if each not in stored]
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

    def _pack_one(self, parts: StoreParts, part: Part, is_stored: bool) -> PackReport:
        if is_stored:
            parts.fetch([part])
        report = parts.pack(part, self.pool, self.progress)
        if not is_stored:
            parts.send(part)
        return report

    def _pack_missing(self, parts: StoreParts, work: PackWork, order: Sequence[Part]) -> int:
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
            parts.fetch([Part(number, count) for number in range(1, count + 1)])
            return parts.finish(self.pool, self.progress)
        except (TargetError, ObjectMissingError):
            if target.find() == target.run:
                raise
        target.receive_set()
        return PackRun(work, target, self.pool, self.progress).complete()

    def _described(self, report: PackReport) -> PackReport:
        """The report with URLs in the place of local paths."""
        target = self.target
        lists = {"errors_file": ERRORS, "duplicates_file": DUPLICATES}
        files = {name: f"{target.url}{suffix}" for name, suffix in lists.items() if getattr(report, name)}
        if report.part is not None:
            names = {name: os.path.basename(getattr(report, name)) for name in files}
            files = {name: target.store.url(f"{target.prefix}/{own}") for name, own in names.items()}
        return replace(report, target=target.url, seconds=time.monotonic() - self.started, **files)  # type: ignore[arg-type] # texts


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


@contextlib.contextmanager
def work_folder(url: str) -> Iterator[Path]:
    """A private folder for the work on a set, locked; a killed run's is taken again. Raises `TargetError`.

    After a block without an error it is removed, with those of killed runs for the same set.
    """
    base, digest = base_folder(), hashlib.sha256(url.encode()).hexdigest()[:20]
    try:
        base.mkdir(0o700, parents=True, exist_ok=True)
        _remove_old(base)
        folder, descriptor = _free_folder(base / f"pack-{digest}")
    except OSError as error:
        raise TargetError(f"{base} cannot be used: {because(error)}; {WORK} names another folder") from None
    try:
        with _without(folder, url):
            yield folder
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):  # it has work, or is removed
            folder.rmdir()
        os.close(descriptor)
    _remove_old(base, f"pack-{digest}-*", -math.inf)


def base_folder() -> Path:
    """The folder that `$IOFAST_WORK` names, else the user's cache folder. Raises `TargetError` without any."""
    given = os.environ.get(WORK, "")
    if given:
        return Path(os.path.abspath(given))
    folder = cache_folder()
    if folder is None:
        raise TargetError(f"there is no cache folder in which the parts could be made: set {WORK} to a folder")
    return folder / "packing"


def _free_folder(stem: Path) -> tuple[Path, int]:
    """The first folder whose name begins so and that no other process has, and its descriptor."""
    folders = (stem.with_name(f"{stem.name}-{number}") for number in itertools.count())
    return next((folder, locked) for folder in folders if (locked := _lock(folder)) is not None)


def _lock(folder: Path) -> int | None:
    """Make and lock a folder of this user's own; None if another process has it. Returns its descriptor."""
    while True:
        folder.mkdir(0o700, exist_ok=True)
        try:
            descriptor = owned.open_folder(folder, private=True)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(folder, follow_symlinks=False)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:  # removed by the process that had it
            pass
        os.close(descriptor)


def _remove_old(base: Path, pattern: str = "pack-*", age: float = _OLD) -> None:
    """Remove folders of runs that were killed long ago."""
    for folder in base.glob(pattern):
        with contextlib.suppress(OSError, TargetError):
            if time.time() - folder.stat().st_mtime > age and (descriptor := _lock(folder)) is not None:
                shutil.rmtree(folder)
                os.close(descriptor)


@contextlib.contextmanager
def _without(folder: Path, url: str) -> Iterator[None]:
    """Name the URL in errors, in the place of paths in the folder. Lists of failures stay: they are here."""
    own = re.compile(re.escape(f"{folder}/") + r"([^\s;:,'\")]*)")
    parent, name = url.rpartition("/")[0], url.rpartition("/")[2]

    def named(found: re.Match[str]) -> str:
        path = found[1]
        if path.endswith(ERRORS):
            return found[0]
        return f"{parent}/{name}.partial/" if path.startswith(f"{name}.partial") else f"{parent}/{path}"

    def words(error: BaseException) -> str:
        text = own.sub(named, str(error))
        return f"{text} (work here is in {folder}; {WORK} names another folder)" if _FULL.search(text) else text

    try:
        yield
    except IofastError as error:
        raise type(error)(words(error)) from error.__cause__
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(words(error)) from None
