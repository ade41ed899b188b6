"""`pack`: scan, plan, have workers transcode, build the container meanwhile, publish it."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from iofast import kernel
from iofast.containers import journal
from iofast.containers.lmdb import LmdbReader, LmdbWriter
from iofast.containers.publish import Target
from iofast.errors import ErrorBudgetError, OptionError, SourceError, TargetError
from iofast.machine import cores
from iofast.packing import estimate
from iofast.packing.build import Builder
from iofast.packing.dry_run import forecast
from iofast.packing.failures import Failures
from iofast.packing.options import PackKeywords, PackOptions
from iofast.packing.plan import load_plan, make_plan
from iofast.packing.pool import Pool
from iofast.packing.progress import Progress
from iofast.packing.report import Report
from iofast.packing.work import Work
from iofast.source.scan import scan

SUFFIX = ".lmdb"
FilePath = str | os.PathLike[str]


def pack(
    source: FilePath, target: FilePath, options: PackOptions | None = None, **keywords: Unpack[PackKeywords]
) -> Report:
    """Pack the images of `source` (a folder, or a manifest file) into the new container `target`.

    Options are a `PackOptions`, or its fields as keywords, or both (a keyword wins). Images that fail are listed in
    `<target>.errors.jsonl` and leave holes in the keys. A run that was cut short goes on when called again.
    Raises `SourceError`, `TargetError`, `OptionError`; `ErrorBudgetError` when more images fail than `max_errors`.
    """
    options = PackOptions(**keywords) if options is None else replace(options, **keywords)
    with Pool(cores() if options.workers is None else options.workers) as pool:
        return run(source, target, options, Progress(), pool)


def run(source: FilePath, target: FilePath, options: PackOptions, progress: Progress, pool: Pool) -> Report:
    """`pack`, telling `progress` how it goes, with a pool whose workers were started and are still importing."""
    started = time.monotonic()
    place = Target(target, overwrite=options.overwrite)
    _check_paths(Path(os.path.abspath(source)), place)
    _check_kernel(options)
    if not place.interrupted:
        place.check_free()
    found = scan(source, options.source_options())
    options.sample_recipe().check_fields(found.fields)
    for warning in found.warnings:
        progress.warn(warning)
    if options.shuffle is not None:
        found = found.shuffled(options.shuffle)
    plan = make_plan(found, options, estimate.size_in_hand(found, options.recipe()))
    work = Work(os.fspath(source), found, options, plan, pool.count, started)
    if options.dry_run:
        return forecast(work, place.path, pool)
    with place:
        return _write(work, place, pool, progress)


def _check_paths(source: Path, place: Target) -> None:
    if place.path.suffix != SUFFIX:
        raise OptionError(
            f"the suffix chooses the container, and this version writes {SUFFIX}, found {place.path.name!r}"
        )
    if not place.path.parent.is_dir():
        raise TargetError(f"{place.path.parent} is not a folder, so {place.path.name} cannot be made in it")
    if source.is_dir() and source.resolve() in place.path.resolve().parents:
        raise TargetError(f"{place.path} lies inside the source {source}: the next scan would meet it; put it outside")


def _check_kernel(options: PackOptions) -> None:
    recipe = options.recipe()
    if recipe.format == "keep" and recipe.restart and kernel.backend != "native":
        raise OptionError(
            f"restart {recipe.restart} for JPEGs that are kept needs the native kernel, found the Python one: "
            "`iofast doctor` says why"
        )


def _write(work: Work, place: Target, pool: Pool, progress: Progress) -> Report:
    """The run proper, with the target's lock held."""
    images, options = len(work.source), work.options
    file = place.path.with_name(place.path.name + ".errors.jsonl")
    failures = Failures(images, options.allowed_errors(images), options.max_errors, file)
    try:
        _take_up(work, place)
        if place.interrupted:
            return _complete(work, place, failures)
        estimate.require_space(work.source, options.recipe(), place.partial)
        progress.begin(images, work.resumed)
        try:
            packed = _transcode(work, place, pool, failures, progress)
        finally:
            progress.end()
        failures.save()
        size = place.stage().stat().st_size
        place.publish()
        return work.report(place.path, failures, packed, size)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {_going_on(place)}") from None
    except ErrorBudgetError as error:
        raise ErrorBudgetError(f"{error}; with a larger max_errors {_going_on(place)}") from None
    except OSError as error:
        words = str(error) if isinstance(error, TargetError) else f"{place.path} cannot be written: {_reason(error)}"
        raise TargetError(f"{words}; {_going_on(place)}" if work.begun else words) from error


def _reason(error: OSError) -> str:
    return "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error)).lower()


def _going_on(place: Target) -> str:
    return f"the same command goes on from there; delete {place.partial} to start anew"


def _take_up(work: Work, place: Target) -> None:
    """Find what an earlier run has finished, or begin with an empty folder."""
    file = place.partial / "plan.json"
    old = load_plan(file)
    if old is None:
        if place.interrupted:  # something else than `pack` had finished it
            place.complete()
            place.acquire()
        place.clear()
        work.plan.save(file)
        return
    work.plan.check_same(old, place.partial)
    work.plan = replace(work.plan, chunk=old.chunk)  # where chunks end is said by the journals that are there
    for path in sorted(place.partial.glob("journal-*")):
        for chunk, where in journal.scan(path).items():
            # a chunk with a failure is done anew: its file may have been mended, or was unreadable for a moment only
            if chunk < work.plan.chunks and not journal.read_block(path, where.offset).failures:
                work.finished.setdefault(chunk, (path, where.offset))


def _complete(work: Work, place: Target, failures: Failures) -> Report:
    """An earlier run had made everything and was stopped while giving it its name."""
    place.complete()
    failures.load()
    with LmdbReader(place.path) as reader:
        packed = len(reader)
    work.finished = dict.fromkeys(range(work.plan.chunks), (place.path, 0))
    return work.report(place.path, failures, packed, place.path.stat().st_size)


def _transcode(work: Work, place: Target, pool: Pool, failures: Failures, progress: Progress) -> int:
    """Have all chunks done and the container made; gives the number of its records."""
    place.stage().unlink(missing_ok=True)  # of a run that was killed: the build always begins anew
    writer = LmdbWriter(place.stage())
    work.begun = True
    try:
        builder = Builder(writer, work.source, work.plan.chunks)
        for chunk, (path, offset) in work.finished.items():
            builder.add(chunk, path, offset)
        for done in pool.results(work.setup(), place.partial, work.jobs()):
            for failure in work.failures(done):
                failures.add(failure)
            work.bytes_in += done.bytes_in
            builder.add(done.chunk, done.journal, done.offset)
            builder.advance()
            progress.step(len(work.span(done.chunk)), done.bytes_in, len(failures))
        if len(failures) == len(work.source):
            raise SourceError(f"not one of {len(failures)} images could be packed: see {failures.save()}")
        builder.finish(work.description())
    except BaseException:
        writer.abort()
        raise
    return builder.packed
