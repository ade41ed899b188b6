"""Copy the records of a container as they are: `pack` with format=keep and check=end, which `iofast convert` calls.

No payload byte changes. Order, splits, classes, recipe and keys stay; a key that is not a position goes into `json`.
One process reads and writes, because nothing is decoded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import partial

import numpy as np

from iofast.containers.base import Reader
from iofast.containers.folder_writer import FolderTarget
from iofast.containers.identity import require_elsewhere, state_of
from iofast.containers.manifest import Description
from iofast.containers.publish import PLAN, Target, require_free
from iofast.containers.shard_target import ShardTarget, shard_bytes
from iofast.containers.targets import writer_of
from iofast.containers.writer import TRANSACTION_BYTES
from iofast.errors import SourceError, TargetError
from iofast.opening import open_reader
from iofast.packing.options import PackOptions
from iofast.packing.plan import PackPlan, load_plan
from iofast.packing.progress import PackProgress
from iofast.packing.records import RecordSource
from iofast.packing.report import PackReport, completed, published
from iofast.record import key_width
from iofast.version import __version__

_OF_COPIES = ("format", "check", "shard_size", "shard_records", "overwrite", "foreign", "workers", "max_errors")


def is_copy(options: PackOptions) -> bool:
    """Whether the options leave all records of a container as they are."""
    given = {each.name for each in fields(options) if getattr(options, each.name) != each.default}
    return options.format == "keep" and options.check == "end" and given <= set(_OF_COPIES)


def copy(source: str | os.PathLike[str], place: Target, options: PackOptions, progress: PackProgress) -> PackReport:
    """Copy all records of `source`. Called again after an interruption, it goes on after the last finished section.

    Raises `ContainerError` for a damaged payload, and a field that cannot be stored.
    """
    started = time.monotonic()
    with open_reader(source, options.foreign) as reader:
        require_elsewhere(reader, source, place)
        records = RecordSource(reader)
        if not len(reader) and isinstance(place, FolderTarget):
            raise SourceError(f"{os.fspath(source)} contains no record")
        with place:
            plan = _plan(reader, source, place, options)
            if place.interrupted:
                return completed(place, started)
            try:
                report = _write(place, records, plan, progress, partial(_report, source, place, reader, started))
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"interrupted; {place.going_on}") from None
            except TargetError as error:
                raise TargetError(f"{error}; {place.going_on}") from None
            except BaseException:
                place.discard()
                raise
        warnings = records.warnings()
        for warning in warnings:
            progress.warn(warning)
        return replace(report, warnings=tuple(warnings))


def _plan(reader: Reader, source: str | os.PathLike[str], place: Target, options: PackOptions) -> PackPlan:
    """The plan of this copy; an earlier run's work with another one is removed."""
    size = sum(shard.size for shard in reader.manifest.shards)
    limit = shard_bytes(options.shard_size, place) if isinstance(place, ShardTarget) else TRANSACTION_BYTES
    step = options.shard_records or max(1, int(limit / max(1.0, size / max(1, len(reader)) + 2048)))
    settings = {"copy of": os.path.abspath(source), "iofast": __version__}
    ranges = tuple(reader.manifest.ranges())
    plan = PackPlan(len(reader), ranges, state_of(reader, source), settings, step)
    old = load_plan(place)
    if place.interrupted:
        if old == plan:
            return plan
        place.complete()  # of another command
        place.acquire()
    elif old is not None and "copy of" not in old.settings:
        raise TargetError(f"{place.partial} holds the work of a pack that was interrupted: finish or delete it")
    if old != plan:
        place.clear()
        try:
            require_free(place.partial, size)
        except TargetError:
            place.discard()
            raise
        place.note(PLAN, asdict(plan))
    return plan


def _write(
    place: Target, records: RecordSource, plan: PackPlan, progress: PackProgress, report: Callable[[int], PackReport]
) -> PackReport:
    """Write the sections that no earlier run finished, and publish. `report` gets how many records the others have."""
    manifest, sections = records.reader.manifest, plan.sections()
    description = Description(manifest.classes, manifest.class_order, manifest.recipe, manifest.seed)
    writer = writer_of(place, description, records.key_width or key_width(plan.images))
    try:
        left = writer.resume(sections)
        done = left[0].start if left else plan.images
        copies = records.records(done=done)
        progress.begin(plan.images, done)
        for section in (each for each in sections if each.start >= done):
            writer.begin(section)
            for _ in range(section.start, section.stop):
                index, position, payloads, info = next(copies)
                writer.write(position if records.key_width else index, payloads, info)
                progress.step(1, sum(map(len, payloads.values())), 0)
            writer.commit({"failed": [], "left_out": 0, "bytes_in": 0})
        writer.finish()
        return published(place, writer.files, report(done))
    finally:
        writer.abort()
        progress.end()


def _report(source: str | os.PathLike[str], place: Target, reader: Reader, started: float, resumed: int) -> PackReport:
    manifest = reader.manifest
    return PackReport(
        source=os.fspath(source),
        target=os.fspath(place.path),
        images=len(reader),
        packed=len(reader),
        failed=0,
        classes=None if manifest.classes is None else len(manifest.classes),
        unlabelled=_unlabelled(reader),
        splits={name: sum(stop - start for start, stop in own) for name, own in manifest.splits.items()},
        bytes_in=sum(shard.size for shard in manifest.shards),
        bytes_out=0,
        seconds=time.monotonic() - started,
        workers=1,
        resumed=resumed,
    )


def _unlabelled(reader: Reader) -> int:
    """How many records have no label."""
    return int((reader.labels(np.arange(len(reader), dtype=np.int64)) < 0).sum())
