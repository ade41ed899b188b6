"""`pack`: scan, plan, transcode in workers while the container is built, publish."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Protocol, overload

from iofast import kernel
from iofast.containers.base import Reader
from iofast.containers.container_suffixes import TFRECORD
from iofast.containers.manifest import Manifest
from iofast.containers.publish import COPY_PLAN, PACK_PLAN, Target
from iofast.containers.shard_target import ShardTarget, shard_bytes
from iofast.containers.targets import target_of
from iofast.errors import ErrorBudgetError, OptionError, SourceError, TargetError, because, shown
from iofast.machine import cores
from iofast.opening import open_reader
from iofast.option import takes_options
from iofast.packing import estimate
from iofast.packing.addition import find_addition
from iofast.packing.build import Builder, NothingLeftError
from iofast.packing.dry_run import forecast
from iofast.packing.duplicates import Duplicates
from iofast.packing.failures import Failures
from iofast.packing.inputs import listed
from iofast.packing.options import PackOptions, names_of
from iofast.packing.pack_work import PackWork
from iofast.packing.plan import load_plan, make_plan, settings
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport
from iofast.packing.resume import DUPLICATES, begin

FilePath = str | os.PathLike[str]


_P = ParamSpec("_P")


class _Pack(Protocol[_P]):
    """The type of `pack`: it takes a `PackOptions`, or the parameters of `PackOptions`."""

    @overload
    def __call__(self, source: FilePath, target: FilePath, options: PackOptions, **keywords: Any) -> PackReport: ...
    @overload
    def __call__(self, source: FilePath, target: FilePath, *args: _P.args, **keywords: _P.kwargs) -> PackReport: ...


def _typed_by(options: Callable[_P, PackOptions]) -> Callable[[Callable[..., PackReport]], _Pack[_P]]:
    return partial(takes_options, options)


@_typed_by(PackOptions)
def pack(source: FilePath, target: FilePath, options: PackOptions | None = None, **keywords: Any) -> PackReport:
    """Pack the images of `source` into the container `target`; its suffix selects the format.

    `source` is a folder, a manifest file, or a container that `open_reader` opens, including those of other programs
    and patterns of shards. Options are a `PackOptions`, or its fields as keywords, or both (keywords take precedence).
    Images that fail are listed in `<target>.errors.jsonl` and leave holes in the keys. The same call resumes an
    interrupted run. Raises `SourceError`, `TargetError`, `OptionError`; `ErrorBudgetError` when more images fail than
    `max_errors`.
    """
    for what, path in (("source", source), ("target", target)):
        if not isinstance(path, str | os.PathLike):
            raise OptionError(f"{what} must be a path, found {shown(path)}")
    options = PackOptions(**keywords) if options is None else replace(options, **keywords)
    with WorkerPool(cores() if options.workers is None else options.workers) as pool:
        return run(source, target, options, PackProgress(), pool)


def run(
    source: FilePath, target: FilePath, options: PackOptions, progress: PackProgress, pool: WorkerPool
) -> PackReport:
    """`pack` with a progress display and a pool whose workers are starting already."""
    started = time.monotonic()
    sidecars = names_of(options.sidecars)
    place = target_of(target, overwrite=options.overwrite, append=options.append, sidecars=sidecars)
    if not os.fspath(source):  # `Path` would take it for the current folder
        raise SourceError("the source is empty: expected a folder, a manifest or a container, found ''")
    _check_paths(Path(os.path.abspath(source)), place)
    _check_possible(options, place)
    if not place.interrupted:
        place.check_free()
    while True:
        work = _planned(source, place, options, progress, pool.count)
        work.started = started  # include the scan
        if options.dry_run:
            return forecast(work, place.path, pool)
        with place:
            packing = _Run(work, place, pool, progress)
            if work.addition is None or not work.addition.is_published(place):
                return packing.write()
            if work.addition.plan == work.plan.digest():
                return packing.complete()
            place.discard()  # left by another append that was killed during cleanup


def _planned(source: FilePath, place: Target, options: PackOptions, progress: PackProgress, workers: int) -> PackWork:
    """Plan the work from the present source and target."""
    addition = find_addition(place) if options.append else None
    if addition is not None:
        addition.check(options, place.path.name)
    images = listed(source, options, place)
    for warning in (*images.warnings, *options.sample_recipe().check_fields(images.columns)):
        progress.warn(warning)  # from this depth, so that the warning names the caller of `pack`
    if addition is not None:
        images = addition.joined(images, place.path.name)
    common = settings(options, place, None if addition is None else addition.base.fingerprint)
    plan = make_plan(images, common, estimate.mean_size_in_memory(images, options.recipe()))
    return PackWork(os.fspath(source), images, options, plan, workers, addition=addition)


def _check_paths(source: Path, place: Target) -> None:
    place.check_folder()
    if source.is_dir() and source.resolve() in place.path.resolve().parents:
        raise TargetError(f"{place.path} lies inside the source {source}: the next scan would find it; put it outside")


def _check_possible(options: PackOptions, place: Target) -> None:
    recipe = options.recipe()
    shard_bytes(options.shard_size, place)
    if options.shard_records is not None and not isinstance(place, ShardTarget):
        raise OptionError(
            f"shard_records={options.shard_records} has no effect: expected a target of shards, found "
            f"{place.path.name}; leave it out"
        )
    if options.label_base and place.path.suffix not in TFRECORD:
        raise OptionError(
            f"label_base={options.label_base} has no effect: expected a target of TFRecords, found {place.path.name}; "
            "leave it out"
        )
    if recipe.format == "keep" and recipe.restart and kernel.backend != "native":
        raise OptionError(
            f"restart {recipe.restart} for JPEGs that are kept needs the native kernel, found the Python one: "
            "`iofast doctor` shows the reason"
        )


@dataclass(slots=True)
class _Run:
    """One run of packing, with its target locked."""

    work: PackWork
    target: Target
    pool: WorkerPool
    progress: PackProgress
    failures: Failures = field(init=False)

    def __post_init__(self) -> None:
        images = len(self.work.source)
        self.failures = Failures(
            images, self.work.options.allowed_errors(images), self._beside(".errors.jsonl"), self.work.first
        )

    def write(self) -> PackReport:
        """Transcode and publish. Errors mention that the same command resumes the run, if it does."""
        work, target = self.work, self.target
        try:
            self._begin_or_resume()
            if target.interrupted:
                return self.complete()
            estimate.require_space(work, target)
            with contextlib.ExitStack() as stack:
                base = None if work.addition is None else stack.enter_context(work.addition.open(target))
                return self._transcode(base)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; {target.going_on}") from None
        except ErrorBudgetError as error:
            raise ErrorBudgetError(
                f"{error}; mend or delete them, or give a larger max_errors=, and {target.going_on}"
            ) from None
        except OSError as error:
            if isinstance(error, TargetError) and not target.partial.exists():  # published, except its sidecars
                raise
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
        duplicates = Duplicates(self._beside(DUPLICATES), work.first)
        duplicates.load()
        work.finished = dict.fromkeys(range(work.plan.chunks))
        with open_reader(target.path) as reader:
            packed, size = len(reader), self._size(reader.manifest)
        if work.addition is not None:
            packed -= work.addition.base.count
        return work.report(target.path, self.failures, packed, size, duplicates)

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
        if work.addition is not None:
            work.addition.save(target)
        work.plan = replace(work.plan, shard_records=estimate.shard_records(work, target))
        target.note(PACK_PLAN, asdict(work.plan))

    def _transcode(self, base: Reader | None) -> PackReport:
        """Transcode all chunks, build the container and publish it."""
        work, target = self.work, self.target
        work.begun = True
        writer, builder = begin(work, target, self.pool, self.failures, base)
        self.progress.begin(len(work.source), work.resumed)
        try:
            self._fill(builder)
            work.origin().check()
            manifest = builder.finish(work.description())
        except NothingLeftError:
            writer.abort()
            if work.addition is None:
                raise
            self._save_lists(builder)
            target.discard()
            return self._report(builder, work.addition.base)
        except BaseException:
            writer.abort()
            raise
        finally:
            self.progress.end()
        self._save_lists(builder)
        if work.addition is not None:
            replace(work.addition, made=manifest.fingerprint, plan=work.plan.digest()).save(target)
        target.publish(writer.files, removed=writer.obsolete)
        return self._report(builder, manifest)

    def _save_lists(self, builder: Builder) -> None:
        self.failures.save()
        builder.duplicates.save(self.work.path)

    def _report(self, builder: Builder, manifest: Manifest) -> PackReport:
        path = self.target.path
        return self.work.report(path, self.failures, builder.packed, self._size(manifest), builder.duplicates)

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
        if len(failures) == len(work.source):
            raise SourceError(f"no image of {len(failures):,} could be packed: see {failures.save()}")

    def _beside(self, suffix: str) -> Path:
        """The file beside the container whose name ends in `suffix`."""
        return self.target.path.with_name(self.target.path.name + suffix)

    def _size(self, manifest: Manifest) -> int:
        """Bytes of the container, including index and manifest."""
        files = (self._beside(suffix) for suffix in (".manifest", ".index"))
        beside = sum(file.stat().st_size for file in files if file.exists())
        return sum(shard.size for shard in manifest.shards) + beside
