"""Parts of a packing run, which any processes that see source and target pack, in any order (docs/pack.md).

A part is a run of sections. The first process makes the plan and stores it with the listing in `<DST>.partial/`; all
others compare their options with it. Shards of all parts lie in that folder together; LMDB files do in folders of their
own, and `finish` copies their records.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from iofast.containers.columns import load, store
from iofast.containers.container_suffixes import LMDB
from iofast.containers.lmdb_writer import LmdbWriter
from iofast.containers.publish import PLAN, Target
from iofast.containers.targets import target_of, writer_of
from iofast.containers.writer import Section, Writer
from iofast.errors import BusyError, ContainerError, TargetError
from iofast.packing.options import PackOptions
from iofast.packing.pack_run import PackRun, images_of
from iofast.packing.part import PackPart, missing_words, parts_of
from iofast.packing.plan import PackPlan, load_plan, shared_settings
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport, completed
from iofast.packing.work import PackWork
from iofast.source import saved

LISTING = "listing"  # the file of the listing in `<DST>.partial/`
_MOST_PARTS = 10_000
_WAIT = 0.25  # seconds between attempts to lock what another process works on


@dataclass(frozen=True, slots=True)
class PackParts:
    """The parts of the run that packs `sources` into `target`. `planned` lists them and plans the whole run."""

    sources: Sequence[str]
    target: Target
    options: PackOptions
    planned: Callable[[], PackWork]
    pool: WorkerPool
    progress: PackProgress

    def work(self, count: int | None) -> PackWork:
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
                return self.saved(count) or self._begin(count)
            finally:
                self.target.release()

    def saved(self, count: int | None = None) -> PackWork | None:
        """The saved work; None without one. Raises `TargetError` if it has other options, or is not in `count` parts.

        `count` None takes any number of parts.
        """
        old = load_plan(self.target)
        if self.target.interrupted:
            raise TargetError(f"{self.target.path} is published, except for cleaning up: finish=True ends that")
        if old is None:
            return None
        expected = replace(old, settings=self._settings, parts=old.parts or 1 if count is None else count)
        expected.check_same(old, self.target.partial)
        return load_work(self.sources, self.options, old, self.target.partial / LISTING)

    def pack(self, part: PackPart) -> PackReport:
        """Pack one part, or return the report of an earlier run that has packed it."""
        work = self.work(part.total)
        sections = part.of(work.plan.sections())
        target = self._locked(part)
        packing = PackRun(work, target, self.pool, self.progress)
        writer = self.writer(part, work)
        try:
            with packing.explained():
                packing.fill(writer, sections)
        finally:
            writer.abort()
            target.release()
        done = [*writer.finished.values()]
        report = packing.report(done, sum(each.size for each in done))
        missing = missing_parts(self.target, work.plan)
        return replace(report, images=images_of(sections), errors_file=None, part=part, missing=missing)

    def finish(self) -> PackReport:
        """Join all parts and publish the result. Raises `TargetError` if one is missing."""
        target = self.target
        with target:
            if target.interrupted:
                return completed(target, time.monotonic())
            work = self.saved()
            if work is None:
                target.discard()
                raise TargetError(f"{target.path} has no parts that could be joined: pack them with part=i/n")
            packing = PackRun(work, target, self.pool, self.progress)
            writer = writer_of(target, work.description(), work.key_width)
            try:
                with packing.explained():
                    self._join(writer, work)
                    for done in writer.finished.values():
                        packing.count(done)
                    return packing.publish(writer)
            finally:
                writer.abort()

    def writer(self, part: PackPart, work: PackWork) -> Writer:
        """The writer of a part."""
        folder = folder_of(part, self.target)
        if folder != self.target.partial:
            folder.mkdir(0o700, exist_ok=True)
        return writer_of(self.target, work.description(), work.key_width, folder)

    @property
    def _settings(self) -> Mapping[str, object]:
        return shared_settings(self.sources, self.options, self.target)

    def _join(self, writer: Writer, work: PackWork) -> None:
        """Take over the sections of all parts; of an LMDB file, copy those that are not copied yet."""
        count, sections = work.plan.parts or 1, work.plan.sections()
        missing, left = missing_parts(self.target, work.plan), writer.resume(sections)
        if not missing and isinstance(writer, LmdbWriter):
            for part in (PackPart(number, count) for number in range(1, count + 1)):
                _copy(writer, self.writer(part, work), [each for each in part.of(sections) if each in left])
            left = []
        if missing or left:
            lost = missing or parts_of(sections, left, count)
            raise TargetError(
                f"{self.target.path} cannot be finished: {missing_words(lost, count)}; pack them with part=i/{count}"
            )

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

    def _begin(self, count: int | None) -> PackWork:
        """Make the plan, and store it with the listing."""
        target, work = self.target, self.planned()
        target.clear()
        work.plan = replace(work.plan, settings=self._settings, records=work.section_records(target))
        parts = min(len(work.plan.sections()), _MOST_PARTS) if count is None else count
        work.plan = replace(work.plan, parts=parts)
        store(target.partial / LISTING, *saved.taken_apart(work.source))
        target.note(PLAN, asdict(work.plan))
        return work


def load_work(
    sources: Sequence[str], options: PackOptions, plan: PackPlan, listing: Path, *, checked: bool = False
) -> PackWork:
    """The work of a saved plan, with the listing of its sources in a file. Raises `TargetError`.

    `checked`: compare its checksums, because it came from elsewhere.
    """
    try:
        members, arrays = load(listing, checked=checked)
        source = replace(saved.value_of(members, arrays), root=saved.root_of(sources[0], members["kind"]))
    except (OSError, ContainerError, LookupError, TypeError) as error:
        raise TargetError(f"{listing} cannot be used: {error}; delete {listing.parent} to start anew") from None
    return PackWork(sources, source, options, plan)


def _copy(writer: LmdbWriter, part: Writer, sections: Sequence[Section]) -> None:
    """Write the records of some sections of a part again, with their checksums."""
    assert isinstance(part, LmdbWriter)  # of the same run
    try:
        if sections and part.resume(sections):
            raise TargetError(f"{part.path} lost records: delete its folder and pack the part again")
        for section in sections:
            writer.begin(section)
            for position, fields, info, crcs in part.records(part.finished[section.number]):
                writer.write(position, fields, info, crcs)
            writer.commit(part.finished[section.number].notes)
    finally:
        part.abort()


def folder_of(part: PackPart, target: Target) -> Path:
    """Where the files of a part lie."""
    return target.partial / f"part-{part.number:06d}" if target.path.suffix == LMDB else target.partial


def missing_parts(target: Target, plan: PackPlan) -> tuple[int, ...]:
    """The numbers of the parts of a run that are not finished."""
    sections, missing = plan.sections(), []
    for part in (PackPart(number, plan.parts or 1) for number in range(1, (plan.parts or 1) + 1)):
        folder = folder_of(part, target)
        if not all((folder / section.rows).is_file() for section in part.of(sections)):
            missing.append(part.number)
    return tuple(missing)
