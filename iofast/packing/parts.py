"""Parts of a packing run, which any processes that see source and target pack, in any order (docs/pack.md).

A part is a run of sections. The first process makes the plan and stores it with the listing in `<DST>.partial/`; all
others compare their options with it. Shards of all parts lie in that folder together.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from iofast.containers.columns import load, store
from iofast.containers.container_suffixes import LMDB
from iofast.containers.lmdb_writer import LmdbWriter
from iofast.containers.publish import PLAN, Target
from iofast.containers.shard_writer import ShardWriter
from iofast.containers.tar import TarWriter
from iofast.containers.targets import target_of, writer_of
from iofast.containers.writer import Writer
from iofast.errors import BusyError, ContainerError, TargetError
from iofast.packing.pack_run import PackRun
from iofast.packing.part import PackPart, missing_words, parts_of
from iofast.packing.plan import PackPlan, load_plan, shared_settings
from iofast.packing.report import PackReport, completed
from iofast.packing.work import PackWork
from iofast.source import saved

LISTING = "listing"  # the file of the listing in `<DST>.partial/`
_MOST_PARTS = 10_000
_WAIT = 0.25  # seconds between attempts to lock what another process works on


@dataclass(slots=True)
class SharedRun(PackRun):
    """A run that several processes share: a listing and a plan of it are stored, and all others take these."""

    def new_work(self, count: int | None) -> PackWork:
        """The work of a new run in `count` parts, with its listing stored in the folder here."""
        target, work = self.target, self.planned()
        assert isinstance(work, PackWork)  # a copy is not shared
        target.clear()
        work.plan = replace(
            work.plan, settings=self._settings, records=work.section_records(target, self.pool), parts=count
        )
        store(target.partial / LISTING, *saved.taken_apart(work.source))
        return work

    def check(self, plan: PackPlan, count: int | None, folder: object) -> None:
        """Raise `TargetError` if a plan, stored in `folder`, has other options, or is not in `count` parts."""
        replace(plan, settings=self._settings, parts=count).check_same(plan, folder)

    def listed(self, plan: PackPlan, *, checked: bool = False) -> PackWork:
        """The work of a stored plan, whose listing is in the folder here. Raises `TargetError`.

        `checked`: compare the listing's checksums, because it came from elsewhere.
        """
        listing = self.target.partial / LISTING
        try:
            members, arrays = load(listing, checked=checked)
            source = replace(saved.value_of(members, arrays), root=saved.root_of(self.sources[0], members["kind"]))
        except (OSError, ContainerError, LookupError, TypeError) as error:
            raise TargetError(f"{listing} cannot be used: {error}; delete {listing.parent} to start anew") from None
        return PackWork(self.sources, source, self.options, plan)

    @property
    def _settings(self) -> Mapping[str, object]:
        return shared_settings(self.sources, self.options, self.target)


@dataclass(slots=True)
class PackParts(SharedRun):
    """The parts of a run."""

    def run(self) -> PackReport:
        """Pack one part, join all parts, or both."""
        options = self.options
        if options.part is None:
            return self.finish()
        report = self.pack_part(PackPart.parse(options.part, os.environ))
        if report.missing or not options.finish_when_complete:
            return report
        try:
            return self.finish()
        except BusyError:  # another run, whose part was the last as well, finishes it
            return report

    def shared(self, count: int | None) -> PackWork:
        """The work of the whole run in `count` parts. The first process makes the plan.

        `count` None takes a saved plan with any number of parts, and makes a new one with a part for each section.
        """
        while True:
            work = self.saved(count)
            if work is not None:
                return work
            try:
                self.target.acquire()
            except BusyError:
                time.sleep(_WAIT)
                continue
            try:
                return self.saved(count) or self._new(count)
            finally:
                self.target.release()

    def saved(self, count: int | None = None) -> PackWork | None:
        """The saved work, checked; None without one. `count` None takes any number of parts."""
        old = load_plan(self.target)
        if self.target.interrupted:
            raise TargetError(f"{self.target.path} is published, except for cleaning up: finish=True ends that")
        if old is None:
            return None
        self.check(old, old.parts or 1 if count is None else count, self.target.partial)
        return self.listed(old)

    def pack_part(self, part: PackPart) -> PackReport:
        """Pack one part, or return the report of an earlier run that has packed it."""
        self.begin(self.shared(part.total))
        sections = part.of(self.work.plan.sections())
        target = self._locked(part)
        writer = self._writer()
        try:
            with self.explained():
                self.fill(writer, sections)
        finally:
            writer.abort()
            target.release()
        return self.report_of_part(part, sections, writer, missing_parts(self.target, self.work.plan))

    def finish(self) -> PackReport:
        """Join all parts and publish the result. Raises `TargetError` if one is missing."""
        with self.target as target:
            if target.interrupted:
                return completed(target, time.monotonic())
            work = self.saved()
            if work is None:
                target.discard()
                raise TargetError(f"{target.path} has no parts that could be joined: pack them with part=i/n")
            self.begin(work)
            with self.explained():
                return self.written(self._join)

    def _writer(self) -> Writer:
        """The writer of parts: of an LMDB file it makes tar shards, whose records `finish` copies."""
        target, description, width = self.target, self.work.description(), self.work.key_width
        if target.path.suffix == LMDB:
            return TarWriter(target.partial, f"{target.path.stem}.tar", description, width)
        return writer_of(target, description, width)

    def _join(self, writer: Writer) -> None:
        """Take over the sections of all parts."""
        plan = self.work.plan
        parts, sections = self._writer() if isinstance(writer, LmdbWriter) else writer, plan.sections()
        lost = missing_parts(self.target, plan) or parts_of(sections, parts.resume(sections), plan.parts or 1)
        if lost:
            words = f"{missing_words(lost, plan.parts or 1)}; pack them with part=i/{plan.parts or 1}"
            raise TargetError(f"{self.target.path} cannot be finished: {words}")
        if isinstance(writer, LmdbWriter) and isinstance(parts, ShardWriter):
            writer.adopt(parts)
        self.count(writer)

    def _locked(self, part: PackPart) -> Target:
        """The lock of a part. Waits while another run packs it."""
        target = target_of(self.target.path, overwrite=self.options.overwrite, lock=f"lock-{part.number:06d}")
        while True:
            try:
                target.acquire()
            except BusyError:
                time.sleep(_WAIT)
                continue
            except TargetError:
                if not target.exists:
                    raise
                break
            if load_plan(target) is not None:
                return target
            target.discard()
            break
        raise TargetError(f"another run has published all parts of {target.path} meanwhile")

    def _new(self, count: int | None) -> PackWork:
        """Make the plan, and store it with the listing."""
        work = self.new_work(count)
        if count is None:
            work.plan = replace(work.plan, parts=min(len(work.plan.sections()), _MOST_PARTS))
        self.target.note(PLAN, asdict(work.plan))
        return work


def missing_parts(target: Target, plan: PackPlan) -> tuple[int, ...]:
    """The numbers of the parts of a run that are not finished."""
    sections = plan.sections()
    missing = [each for each in sections if not (target.partial / each.rows).is_file()]
    return parts_of(sections, missing, plan.parts or 1)
