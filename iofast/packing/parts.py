"""Parts of a packing run, which any processes that see source and target pack, in any order (docs/pack.md).

The first process makes the plan and stores it with the listing in `<DST>.partial/`; all others compare their options
with it. A part is a container of its own in that folder, made by an ordinary run over its images, so it can be killed,
resumed and run twice. `finish` joins the containers of all parts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from iofast.containers.locked_folder import LOCK
from iofast.containers.publish import COPY_PLAN, MARKER, PACK_PLAN, Target
from iofast.containers.shard_target import ShardTarget
from iofast.containers.targets import target_of
from iofast.errors import BusyError, ContainerError, IofastError, TargetError
from iofast.packing import estimate
from iofast.packing.finished_part import FinishedPart, bytes_read, note_bytes
from iofast.packing.options import PackOptions
from iofast.packing.pack_run import PackRun
from iofast.packing.pack_work import PackWork
from iofast.packing.part import PackPart, missing_words
from iofast.packing.plan import PackPlan, load_plan
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport
from iofast.record import key_width
from iofast.source import cache, stored

LISTING = "listing"  # the file of the listing in `<DST>.partial/`
_IMAGES = 2000  # of a part without shards: a few seconds of work, and 500 parts for ImageNet
_MOST_PARTS = 10_000  # each is some files in one folder
_WAIT = 0.25  # seconds between attempts to lock what another process works on


@dataclass(frozen=True, slots=True)
class PackParts:
    """The parts of the run that packs `sources` into `place`. `planned` lists them and plans the whole run."""

    sources: Sequence[str]
    place: Target
    options: PackOptions
    planned: Callable[[], PackWork]
    settings: Mapping[str, object]  # of the plan

    def work(self, count: int | None) -> PackWork:
        """The work of the whole run in `count` parts. The first process makes the plan.

        `count` None takes a stored plan with any number of parts, and makes a new one with `usual_parts`.
        """
        while True:
            work = self.stored(count)
            if work is not None:
                return work
            try:
                self.place.acquire()
            except BusyError:
                time.sleep(_WAIT)
                continue
            try:
                return self.stored(count) or self._begin(count)
            finally:
                self.place.release()

    def stored(self, count: int | None = None) -> PackWork | None:
        """The stored work; None without one. Raises `TargetError` if it has other options, or is not in `count` parts.

        `count` None takes any number of parts.
        """
        place = self.place
        old = load_parts(place)
        if old is None:
            return None
        expected = old.parts or 1 if count is None else count
        own = PackPlan(old.images, old.chunk, old.source, self.settings, parts=expected)
        own.check_same(old, place.partial)
        return self._loaded(old)

    def of(self, part: PackPart, work: PackWork) -> PackWork:
        """The work of one part."""
        start, stop = self._span(part, work)
        return replace(
            work,
            source=work.source.run(start, stop),
            plan=work.plan.part(stop - start),
            first=work.first + start,
            whole=len(work.source),
            bytes_whole=bytes_read(part.path(self.place)),
        )

    def pack(self, part: PackPart, pool: WorkerPool, progress: PackProgress) -> PackReport:
        """Pack one part, or return the report of an earlier run that has packed it."""
        work = self.of(part, self.work(part.total))
        work.workers = pool.count
        target = target_of(part.path(self.place))
        packing = PackRun(work, target, pool, progress)
        try:
            report = packing.complete() if self._wait_for(target) else packing.write()
            if work.bytes_whole is None:
                note_bytes(target.path, report.bytes_in)
        except IofastError:
            if load_parts(self.place) is None:
                raise TargetError(f"{self.place.path}: another run has published all parts meanwhile") from None
            raise
        finally:
            target.release()
        return replace(report, target=os.fspath(self.place.path), part=part, missing=self.missing(part.total))

    def missing(self, count: int) -> tuple[int, ...]:
        """The numbers of the parts that are not finished."""
        return missing_parts(self.place, count)

    def finish(self, pool: WorkerPool, progress: PackProgress) -> PackReport:
        """Join the containers of all parts and publish the result. Raises `TargetError` if one is missing."""
        place = self.place
        with place:
            work = None if place.interrupted else self.stored()
            if work is None:
                return self._clean_up(pool, progress)
            work.workers = pool.count
            count = work.plan.parts or 0
            if missing := self.missing(count):
                raise TargetError(
                    f"{place.path} cannot be finished: {missing_words(missing, count)}; pack them with part=i/{count}"
                )
            every = (PackPart(number, count) for number in range(1, count + 1))
            parts = [self.finished(each, work) for each in every]
            return PackRun(work, place, pool, progress).join(parts)

    def finished(self, part: PackPart, work: PackWork) -> FinishedPart:
        """A finished part."""
        return FinishedPart.load(part.path(self.place), len(self.of(part, work).source))

    def _clean_up(self, pool: WorkerPool, progress: PackProgress) -> PackReport:
        """End a run that was killed while it was published or its folder removed: the plan may be gone."""
        place = self.place
        work = self.planned()
        if place.interrupted:
            return PackRun(work, place, pool, progress).complete()
        if set(os.listdir(place.partial)) <= {LOCK}:
            place.discard()
        raise TargetError(f"{place.path} has no parts that could be joined: pack them with part=i/n")

    @property
    def is_published(self) -> bool:
        """Whether an earlier run has begun to publish the result, so that only `finish` is left."""
        return self.place.interrupted

    def _begin(self, count: int | None) -> PackWork:
        """Make the plan, and store it with the listing."""
        place, work = self.place, self.planned()
        if (place.partial / COPY_PLAN).exists():
            raise TargetError(f"{place.partial} holds the work of an interrupted convert: finish or delete it")
        if place.interrupted:
            raise TargetError(f"{place.path} is published, except for cleaning up: finish=True ends that")
        place.clear()
        work.plan = replace(work.plan, settings=self.settings)
        work.plan = replace(work.plan, shard_records=estimate.shard_records(work, place))
        work.plan = replace(work.plan, parts=usual_parts(work) if count is None else count)
        cache.store(place.partial / LISTING, *stored.parts(work.source))
        place.note(PACK_PLAN, asdict(work.plan))
        return work

    def _loaded(self, plan: PackPlan) -> PackWork:
        """The work of a stored plan, with its stored listing."""
        file = self.place.partial / LISTING
        try:
            members, arrays = cache.load(file, checked=False)
            source = stored.source_of(stored.root_of(self.sources[0], members["kind"]), members, arrays)
        except (OSError, ContainerError, LookupError, TypeError) as error:
            raise TargetError(f"{file} cannot be used: {error}; delete {self.place.partial} to start anew") from None
        width = key_width(plan.images)
        return PackWork(self.sources, source, self.options, plan, 1, key_width=width)

    def _span(self, part: PackPart, work: PackWork) -> tuple[int, int]:
        return part.span(work.source.splits, work.plan.shard_records or 1)

    def _wait_for(self, target: Target) -> bool:
        """Lock the target of a part. Wait while another run packs it. Returns whether it is finished.

        A finished part is not locked, unless the run that packed it was killed during publication.
        """
        while True:
            if target.exists and not target.interrupted:
                return True
            try:
                target.acquire()
                return target.interrupted
            except BusyError:
                time.sleep(_WAIT)
            except TargetError:
                if not target.exists:  # else another run has just finished it
                    raise


def load_parts(place: Target) -> PackPlan | None:
    """The stored plan of a run; None without one. Raises `TargetError` for another user's folder."""
    place.check_folder()
    return load_plan(place.partial / PACK_PLAN)


def usual_parts(work: PackWork) -> int:
    """One part for each shard; without shards (LMDB), one for `_IMAGES` images. At most `_MOST_PARTS`."""
    return min(PackPart.shards(work.source.splits, work.plan.shard_records or _IMAGES), _MOST_PARTS)


def missing_parts(place: Target, count: int) -> tuple[int, ...]:
    """The numbers of the parts without a finished container. One that was killed during publication is not finished."""
    suffix = ".manifest" if isinstance(place, ShardTarget) else ""
    try:
        there = set(os.listdir(place.partial))
    except FileNotFoundError:  # published meanwhile
        return ()

    def finished(path: Path) -> bool:
        partial = f"{path.name}.partial"
        return path.name + suffix in there and not (partial in there and (place.partial / partial / MARKER).exists())

    paths = ((number, PackPart(number, count).path(place)) for number in range(1, count + 1))
    return tuple(number for number, path in paths if not finished(path))
