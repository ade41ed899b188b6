"""`pack`: scan, plan, transcode in workers, build the container at the same time, publish it."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Unpack

from iofast import kernel
from iofast.containers.base import Reader
from iofast.containers.manifest import Manifest
from iofast.containers.publish import COPY_PLAN, PACK_PLAN, Target
from iofast.containers.shard_target import ShardTarget, shard_bytes
from iofast.containers.targets import target_of
from iofast.containers.tfrecord import SUFFIXES as TFRECORDS
from iofast.errors import ErrorBudgetError, OptionError, SourceError, TargetError, because, shown
from iofast.machine import cores
from iofast.opening import open_reader
from iofast.packing import estimate
from iofast.packing.addition import find_addition
from iofast.packing.build import Builder, NothingLeftError
from iofast.packing.dry_run import forecast
from iofast.packing.duplicates import Duplicates
from iofast.packing.failures import Failures
from iofast.packing.inputs import listed
from iofast.packing.options import PackKeywords, PackOptions, names_of
from iofast.packing.pack_work import PackWork
from iofast.packing.plan import load_plan, make_plan, settings
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport
from iofast.packing.resume import DUPLICATES, begin

FilePath = str | os.PathLike[str]


def pack(
    source: FilePath, target: FilePath, options: PackOptions | None = None, **keywords: Unpack[PackKeywords]
) -> PackReport:
    """Pack the images of `source` into the container `target`; its suffix selects the format.

    `source` is a folder, a manifest file, or a container that `open_reader` opens, other programs' and patterns of
    shards included.
    Options are a `PackOptions`, or its fields as keywords, or both (a keyword wins). Images that fail are listed in
    `<target>.errors.jsonl` and leave holes in the keys. A run that was cut short goes on when called again.
    Raises `SourceError`, `TargetError`, `OptionError`; `ErrorBudgetError` when more images fail than `max_errors`.
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
            if work.addition is None or not work.addition.stands(place):
                return _write(work, place, pool, progress)
            if work.addition.plan == work.plan.digest():
                return _report_of(work, place, _failures(work, place))
            place.discard()  # left by another command that only had to clean up


def _planned(source: FilePath, place: Target, options: PackOptions, progress: PackProgress, workers: int) -> PackWork:
    """Plan the work from the present source and target."""
    addition = find_addition(place) if options.append else None
    if addition is not None:
        addition.check(options, place.path.name)
    found = listed(source, options, place)
    unmoved = options.sample_recipe().check_fields(found.columns)
    for warning in (*found.warnings, *unmoved):
        progress.warn(warning)  # from this depth, so that the warning names the caller of `pack`
    if addition is not None:
        found = addition.joined(found, place.path.name)
    common = settings(options, place, None if addition is None else addition.base.fingerprint)
    plan = make_plan(found, common, estimate.size_in_hand(found, options.recipe()))
    return PackWork(os.fspath(source), found, options, plan, workers, addition=addition)


def _check_paths(source: Path, place: Target) -> None:
    place.check_folder()
    if source.is_dir() and source.resolve() in place.path.resolve().parents:
        raise TargetError(f"{place.path} lies inside the source {source}: the next scan would meet it; put it outside")


def _check_possible(options: PackOptions, place: Target) -> None:
    recipe = options.recipe()
    shard_bytes(options.shard_size, place)
    if options.shard_records is not None and not isinstance(place, ShardTarget):
        raise OptionError(
            f"shard_records={options.shard_records} has no effect: expected a target of shards, found "
            f"{place.path.name}; leave it out"
        )
    if options.label_base and place.path.suffix not in TFRECORDS:
        raise OptionError(
            f"label_base={options.label_base} has no effect: expected a target of TFRecords, found {place.path.name}; "
            "leave it out"
        )
    if recipe.format == "keep" and recipe.restart and kernel.backend != "native":
        raise OptionError(
            f"restart {recipe.restart} for JPEGs that are kept needs the native kernel, found the Python one: "
            "`iofast doctor` says why"
        )


def _failures(work: PackWork, place: Target) -> Failures:
    images, options = len(work.source), work.options
    file = place.path.with_name(place.path.name + ".errors.jsonl")
    return Failures(images, options.allowed_errors(images), file, work.first)


def _write(work: PackWork, place: Target, pool: WorkerPool, progress: PackProgress) -> PackReport:
    """Transcode and publish, with the target locked."""
    failures = _failures(work, place)
    try:
        _take_up(work, place)
        if place.interrupted:
            return _report_of(work, place, failures)
        estimate.require_space(work, place)
        with contextlib.ExitStack() as stack:
            base = None if work.addition is None else stack.enter_context(work.addition.open(place))
            return _transcode(work, place, pool, (failures, progress), base)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {place.going_on}") from None
    except ErrorBudgetError as error:
        raise ErrorBudgetError(
            f"{error}; mend or delete them, or give a larger max_errors=, and {place.going_on}"
        ) from None
    except OSError as error:
        words = str(error) if isinstance(error, TargetError) else f"{place.path} cannot be written: {because(error)}"
        if isinstance(error, TargetError) and not place.partial.exists():  # published, except its sidecars
            raise
        raise TargetError(f"{words}; {place.going_on}" if work.begun else words) from error


def _take_up(work: PackWork, place: Target) -> None:
    """Resume an earlier run, or begin with an empty folder."""
    old = load_plan(place.partial / PACK_PLAN)
    if old is None:
        if place.interrupted:  # finished by another command than `pack`
            place.complete()
            place.acquire()
        if isinstance(place, ShardTarget) and (place.partial / COPY_PLAN).exists():  # which can be resumed
            raise TargetError(f"{place.partial} holds the work of a convert that was interrupted: finish or delete it")
        place.clear()
        if work.addition is not None:
            work.addition.save(place)
        work.plan = replace(work.plan, shard_records=estimate.shard_records(work, place))
        place.note(PACK_PLAN, asdict(work.plan))
        return
    work.plan.check_same(old, place.partial)
    # keep the ends of chunks and shards: journals and shards of the earlier run follow them
    work.plan = replace(work.plan, chunk=old.chunk, shard_records=old.shard_records)


def _report_of(work: PackWork, place: Target, failures: Failures) -> PackReport:
    """Finish a run that was stopped during publication or cleanup, and report it."""
    if place.interrupted:
        place.complete()
    else:
        place.discard()
    failures.load()
    duplicates = Duplicates(place.path.with_name(place.path.name + DUPLICATES), work.first)
    duplicates.load()
    work.finished = dict.fromkeys(range(work.plan.chunks))
    with open_reader(place.path) as reader:
        packed, size = len(reader), _size(reader.manifest, place.path)
    if work.addition is not None:
        packed -= work.addition.base.count
    return work.report(place.path, failures, packed, size, duplicates)


def _size(manifest: Manifest, path: Path) -> int:
    """Bytes of a container, including index and manifest."""
    files = (path.with_name(path.name + suffix) for suffix in (".manifest", ".index"))
    beside = sum(file.stat().st_size for file in files if file.exists())
    return sum(shard.size for shard in manifest.shards) + beside


def _transcode(
    work: PackWork, place: Target, pool: WorkerPool, told: tuple[Failures, PackProgress], base: Reader | None
) -> PackReport:
    """Transcode all chunks, build the container and publish it."""
    failures, progress = told
    work.begun = True
    writer, builder = begin(work, place, pool, failures, base)
    progress.begin(len(work.source), work.resumed)
    try:
        _fill(work, place, pool, told, builder)
        work.origin().check()
        manifest = builder.finish(work.description())
    except NothingLeftError:
        writer.abort()
        if work.addition is None:
            raise
        return _unchanged(work, work.addition.base, place, failures, builder.duplicates)
    except BaseException:
        writer.abort()
        raise
    finally:
        progress.end()
    failures.save()
    builder.duplicates.save(work.path)
    if work.addition is not None:
        replace(work.addition, made=manifest.fingerprint, plan=work.plan.digest()).save(place)
    files = writer.files
    place.publish(files, removed=writer.obsolete)
    return work.report(place.path, failures, builder.packed, _size(manifest, place.path), builder.duplicates)


def _unchanged(work: PackWork, base: Manifest, place: Target, failures: Failures, duplicates: Duplicates) -> PackReport:
    """Report that there was nothing to append."""
    failures.save()
    duplicates.save(work.path)
    place.discard()
    return work.report(place.path, failures, 0, _size(base, place.path), duplicates)


def _fill(
    work: PackWork, place: Target, pool: WorkerPool, told: tuple[Failures, PackProgress], builder: Builder
) -> None:
    """Write all finished chunks, and transcode the others."""
    failures, progress = told
    for chunk, where in work.finished.items():
        if where is not None:
            builder.add(chunk, *where)
    for done in pool.results(work.setup(), place.partial, work.jobs()):
        for failure in work.failures(done):
            failures.add(failure)
        work.bytes_in += done.bytes_in
        builder.add(done.chunk, done.journal, done.offset)
        builder.advance()
        progress.step(len(work.span(done.chunk)), done.bytes_in, len(failures))
    if len(failures) == len(work.source):
        raise SourceError(f"no image of {len(failures):,} could be packed: see {failures.save()}")
