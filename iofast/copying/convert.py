"""`convert`: copy the records of anything that can be opened to another container or to a plain folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iofast.containers.base import Description, Writer
from iofast.containers.container_suffixes import LISTS, OF_OTHERS, WRITTEN
from iofast.containers.identity import require_elsewhere, source_facts
from iofast.containers.publish import COPY_PLAN, PACK_PLAN, Target, require_free
from iofast.containers.shard_target import ShardTarget, shard_bytes
from iofast.containers.shards import ShardCut
from iofast.containers.targets import meant, target_of, writer_of
from iofast.copying.records import CopiedRecord, RecordSource
from iofast.copying.to_folder import FolderTarget, FolderWriter, Shape
from iofast.errors import OptionError, TargetError, because
from iofast.opening import open_reader
from iofast.option import parse_size
from iofast.record import key_width
from iofast.version import __version__

if TYPE_CHECKING:
    from iofast.foreign.options import ForeignOptions

FilePath = str | os.PathLike[str]
Begin = Callable[[int, int], None]  # number of all records, and of those that an earlier run wrote
Progress = Callable[[int, int, int], None]

_NEVER_WRITTEN = (*LISTS, *OF_OTHERS, ".gz", ".zst")


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """`shard_size`: of tar and TFRecord, bytes or a text ("500MB", "1GiB"). `overwrite`: replace the target."""

    shard_size: int | str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.shard_size is not None:
            parse_size(self.shard_size)


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a copy. `fingerprint` is None for a plain folder; an earlier run had written `resumed` records."""

    sources: tuple[str, ...]
    target: str
    records: int
    fingerprint: str | None
    seconds: float
    warnings: tuple[str, ...] = field(default=())
    resumed: int = 0

    def facts(self) -> dict[str, Any]:
        """The members for JSON."""
        return {"version": 1, **asdict(self)}


def convert(
    source: FilePath,
    target: FilePath,
    options: CopyOptions | None = None,
    *,
    foreign: ForeignOptions | Mapping[str, Any] | None = None,
    begin: Begin | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Copy all records of `source` into the new container `target`, or, without a suffix, into a new plain folder.

    No payload byte changes. Order, splits, classes, recipe and keys stay; a key that is not a position goes into
    `json`. The target gets its name when it is complete. Called again after an interruption, a copy into shards
    resumes; other targets start anew. `foreign` is the argument of `open_reader`. `begin(records, done)` and
    `progress(records, bytes, 0)` report the progress. Raises `SourceError`, `ContainerError` (a damaged payload, a
    field that cannot be stored), `TargetError`, `OptionError`.
    """
    options, started = options or CopyOptions(), time.monotonic()
    place = place_of(target, options)
    with open_reader(source, foreign) as reader:
        require_elsewhere(reader, source, place)
        records = RecordSource(reader)
        manifest = reader.manifest
        description = Description(manifest.classes, manifest.class_order, manifest.recipe, manifest.seed)

        def copies(done: int) -> Iterator[tuple[int, CopiedRecord, str]]:
            splits = (name for name, start, stop in manifest.ranges() for _ in range(start, stop))
            for copy, split in zip(records.records(done=done), itertools.islice(splits, done, None), strict=True):
                yield copy.position if records.key_width else copy.place, copy, split

        shape = Shape(
            manifest.classes, tuple(manifest.splits), manifest.fields, records.key_width or key_width(len(reader))
        )
        plan: dict[str, object] = {"sources": [source_facts(reader, source)]}
        job = CopyJob(plan, description, shape, len(reader), records.size(), copies)
        kept = run_copy(job, place, options, begin, progress)
        return copied((source,), place, started, records=len(reader), resumed=kept, warnings=records.warnings())


def place_of(target: FilePath, options: CopyOptions) -> Target:
    """The target of a copy: a suffix means a container; no suffix, or a slash at the end, means a folder."""
    text = os.fspath(target)
    suffix = Path(text).suffix
    if not text.endswith("/"):
        if suffix in WRITTEN:
            return target_of(target, overwrite=options.overwrite)
        if suffix.lower() in _NEVER_WRITTEN:
            known = ", ".join(WRITTEN)
            raise OptionError(f"{text}: the suffix chooses the container: {known}, or none for a plain folder")
        if (known_suffix := meant(suffix)) is not None:
            better = Path(text).with_suffix(known_suffix)
            raise OptionError(f"{text}: did you mean {better}? For a plain folder, write {text}/")
    if options.overwrite:
        raise OptionError(f"{text} would be a folder, and folders are never overwritten: remove it first")
    return FolderTarget(text)


def copied(
    sources: Sequence[FilePath], place: Target, started: float, records: int, resumed: int, warnings: Sequence[str]
) -> Copied:
    """The result of a copy that is published; `started` is the time of `time.monotonic()`."""
    fingerprint = None
    if not isinstance(place, FolderTarget):
        with open_reader(place.path) as reader:
            fingerprint = reader.manifest.fingerprint
    return Copied(
        sources=tuple(os.fspath(source) for source in sources),
        target=os.fspath(place.path),
        records=records,
        fingerprint=fingerprint,
        seconds=time.monotonic() - started,
        warnings=tuple(warnings),
        resumed=resumed,
    )


@dataclass(frozen=True, slots=True)
class CopyJob:
    """The content of a copy. `records(done)` yields position, record and split, without the first `done` records."""

    plan: dict[str, object]  # identifies the copy; a later run with an equal plan resumes
    description: Description
    shape: Shape
    count: int  # of records
    size: int  # bytes, about
    records: Callable[[int], Iterator[tuple[int, CopiedRecord, str]]]


def run_copy(job: CopyJob, place: Target, options: CopyOptions, begin: Begin | None, progress: Progress | None) -> int:
    """Write and publish all records; returns how many of them an earlier run had written.

    On an exception, partial output is deleted, except a set of shards after an interruption or on a full disk.
    """
    with _Copying(job, place, options) as copying:
        if not copying.done:
            copying.write(begin, progress)
    return copying.kept


class _Copying:
    """A target during a copy. `done`: an earlier run was interrupted during publishing."""

    def __init__(self, job: CopyJob, place: Target, options: CopyOptions) -> None:
        self._job, self._place = job, place
        self._shard_size = shard_bytes(options.shard_size, place)
        self._plan = {**job.plan, "shard_size": self._shard_size, "iofast": __version__}
        self._writer: Writer | None = None
        self.done, self.kept = False, 0

    def __enter__(self) -> _Copying:
        place = self._place
        place.acquire()
        cleared = False
        try:
            if place.interrupted:
                self.done = self._is_ours()
                place.complete()
                if self.done:
                    return self
                place.acquire()
            if (place.partial / PACK_PLAN).exists():
                raise TargetError(f"{place.partial} holds the work of a pack that was interrupted: finish or delete it")
            if not isinstance(place, ShardTarget) or not self._is_ours():
                place.clear()
                cleared = True
            require_free(place.partial, self._job.size - _staged(place.partial))
            if cleared:
                place.note(COPY_PLAN, self._plan)
        except BaseException as error:
            if cleared:  # with an empty folder beside it, a set looks unfinished
                place.discard()
            else:
                place.release()
            raise _named(place, error) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if self._writer is not None:
            self._writer.abort()
        if self.done:
            return
        better = None if error is None else _named(self._place, error)
        # a set that will be replaced cannot be read while unfinished work is beside it
        if isinstance(better, KeyboardInterrupt | TargetError) and _goes_on(self._place):
            self._place.release()
            words = str(better) or "interrupted"
            raise type(better)(f"{words}; {self._place.going_on}") from None
        with contextlib.suppress(OSError):
            self._place.discard()
        if better is not None and better is not error:
            raise better from None

    def write(self, begin: Begin | None, progress: Progress | None) -> None:
        """Write the records that an earlier run has not written, and publish the target."""
        job, place = self._job, self._place
        writer: Writer | FolderWriter
        if isinstance(place, FolderTarget):
            writer = FolderWriter(place.stage(), job.shape)
        else:
            writer = self._writer = writer_of(place, job.description, ShardCut(self._shard_size), job.shape.key_width)
            self.kept = writer.resume().records
        if begin is not None:
            begin(job.count, self.kept)
        for position, copy, split in job.records(self.kept):
            writer.write(position, copy.fields, copy.info, split)
            if progress is not None:
                progress(1, sum(map(len, copy.fields.values())), 0)
        if isinstance(writer, Writer):
            writer.finish(job.description)
            place.publish(writer.files)
        else:
            writer.finish()
            place.publish()
        self._writer, self.done = None, True

    def _is_ours(self) -> bool:
        try:
            return bool(json.loads((self._place.partial / COPY_PLAN).read_bytes()) == self._plan)
        except (OSError, ValueError):
            return False


def _goes_on(place: Target) -> bool:
    return isinstance(place, ShardTarget) and not place.exists and (place.partial / COPY_PLAN).exists()


def _staged(folder: Path) -> int:
    """Bytes of a set that an earlier run wrote."""
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.startswith(("shard-", "rows-")))


def _named(place: Target, error: BaseException) -> BaseException:
    """Turn a bare system error into a `TargetError`."""
    if not isinstance(error, OSError) or isinstance(error, TargetError):
        return error
    return TargetError(f"{place.path} cannot be written: {because(error)}")
