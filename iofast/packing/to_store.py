"""`pack` into an object store: each finished shard is sent under its final name, and the manifest comes last.

`<DST>.partial/` in the store has the plan, the listing, and the rows of each finished section. So a run that was killed
goes on, and any number of machines may run the same command: each packs sections that the store does not have yet, and
who finds all of them there publishes the set (docs/format.md section 8.1).
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import random
import secrets
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from iofast.containers.columns_file import ALIGN, load, store
from iofast.containers.container_suffixes import LMDB, WRITTEN
from iofast.containers.manifest import Manifest
from iofast.containers.shard_target import ShardTarget
from iofast.containers.shard_writer import ShardWriter
from iofast.containers.shards import MANIFEST_SUFFIX, SHARD_SIZE
from iofast.containers.targets import target_of, writer_of
from iofast.containers.writer import INDEX_SUFFIX, Finished, Section
from iofast.errors import (
    ContainerError,
    ObjectConflictError,
    ObjectMissingError,
    OptionError,
    StorageError,
    TargetError,
    because,
)
from iofast.option import parse_size
from iofast.packing import estimate
from iofast.packing.dry_run import forecast
from iofast.packing.failures import ERRORS
from iofast.packing.options import PackOptions
from iofast.packing.pack_run import PackRun
from iofast.packing.pack_work import PackWork
from iofast.packing.part import PackPart, missing_words
from iofast.packing.plan import PackPlan, shared_settings
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport
from iofast.remote import requests
from iofast.remote.store import Store
from iofast.remote.urls import WEB, RemotePath
from iofast.source import stored

MOST_SHARD = 4_000_000_000  # bytes: what every store takes as one object, with room for a wrong estimate
_VERSION = 2
_LISTING = "listing"
_REQUESTS = 16  # small objects in flight at once
_TOGETHER = 1000  # objects that one request removes


class StoreTarget(ShardTarget):
    """The place of a set in an object store: `url`. What is made for it lies in a folder of this process."""

    def __init__(self, url: str, folder: str, *, overwrite: bool = False) -> None:
        place = RemotePath.of(url)
        if place.scheme in WEB:
            raise OptionError(f"{place}: a web server takes no files; expected a target in s3://, gs:// or az://")
        above, name = posixpath.split(place.key)
        target_of(name)  # checks the suffix
        if os.path.splitext(name)[1] == LMDB:
            raise OptionError(
                f"{place}: an LMDB file is not made in an object store: expected {', '.join(WRITTEN[1:])}; or pack it "
                "here and copy it"
            )
        super().__init__(os.path.join(folder, name), os.path.splitext(name)[1], overwrite=overwrite)
        self.store = Store(RemotePath(place.store, above))
        self.url = self.store.url(name)

    @property
    def going_on(self) -> str:
        """See `Target.going_on`."""
        return f"the same command goes on from there; delete {self.url}.partial/ to start anew"


def check_options(options: PackOptions, url: str) -> None:
    """Raise `OptionError` for what cannot be done in an object store."""
    name = posixpath.basename(RemotePath.of(url).key)
    if options.on is not None:
        raise OptionError(
            f"on={options.on} needs a local target, found the URL of {name}: run the same command on each node"
        )
    if parse_size(options.shard_size or SHARD_SIZE) > MOST_SHARD:
        raise OptionError(f"shard_size={options.shard_size} is too much for an object store: expected up to 4GB")


@dataclass(slots=True)
class StoreRun:
    """One command that packs `sources` into the object store of `target`. `id` names the run, once it has begun."""

    sources: Sequence[str]
    target: StoreTarget
    options: PackOptions
    planned: Callable[[], PackWork]
    pool: WorkerPool
    progress: PackProgress
    id: str = field(default="", init=False)

    def run(self) -> PackReport:
        """Pack the missing sections, or those of one part, and publish when all are there."""
        try:
            return self._run()
        except (KeyboardInterrupt, StorageError, ObjectConflictError, ObjectMissingError, TargetError) as error:
            words = str(error) or "interrupted"
            if not self.id or "goes on from there" in words:
                raise
            raise type(error)(f"{words}; {self.target.going_on}") from None

    def dry_run(self) -> PackReport:
        """The forecast of a dry run. Nothing is written into the store."""
        self._check_free()
        report = forecast(self.planned(), self.target.path, self.pool)
        expected = report.estimate
        if expected is not None:  # a shard that is sent, and one that is packed
            shard = parse_size(self.options.shard_size or SHARD_SIZE)
            expected = replace(expected, bytes_peak=min(expected.bytes_peak, 2 * shard))
        return replace(report, target=self.target.url, estimate=expected)

    def _run(self) -> PackReport:
        options = self.options
        part = None if options.part is None else PackPart.parse(options.part, os.environ)
        with self.target:
            work, joined = self._work(None if part is None else part.total)
            work.workers = self.pool.count
            packing = PackRun(work, self.target, self.pool, self.progress)
            writer = writer_of(self.target, work.description(), work.key_width)
            assert isinstance(writer, ShardWriter)  # no other suffix is accepted
            writer.is_stored = True
            sections = work.sections()
            mine = [*(sections if part is None else part.of(sections))]
            there = self._stored()
            left = [each for each in mine if each.number not in there]
            if options.finish and left:
                count = work.plan.parts or 1
                lost = missing_words(_lacking(sections, left, count), count)
                raise TargetError(f"{self.target.url} cannot be finished: {lost}")
            if left:
                start = random.randrange(len(left)) if joined else 0  # other machines may be at work: begin anywhere
                self._pack(packing, writer, sections, left[start:] + left[:start])
            missing = [each for each in sections if each.number not in self._stored()]
            if part is not None and (missing or not options.finish_when_complete):
                with contextlib.suppress(ObjectMissingError):  # published meanwhile
                    self._receive_rows([each for each in mine if each.number in there])
                writer.resume(mine)
                for done in writer.finished.values():
                    packing.count(done)
                return self._of_part(packing, part, work, missing)
            packing.resumed = sum(each.stop - each.start for each in mine if each not in left)
            return self._publish(packing, writer, sections)

    def _work(self, count: int | None) -> tuple[PackWork, bool]:
        """The work of the run that the store has, or of a new one; and whether it was there."""
        target, name = self.target, f"{self.target.path.name}.partial/plan.json"
        settings = shared_settings(self.sources, self.options, target)
        while True:
            try:
                text = target.store.get(name)
            except ObjectMissingError:
                text = b""
            if text:
                self.id, plan = _parse(text, target.store.url(name))
                expected = plan.parts if count is None else count
                PackPlan(plan.images, plan.splits, plan.source, settings, parts=expected).check_same(
                    plan, Path(f"{target.url}.partial")
                )
                return self._loaded(plan), True
            self._check_free()
            if self.options.finish:
                raise TargetError(f"{target.url} has no parts that could be joined: pack them with part=i/n")
            if self.options.overwrite:  # shards of the new set may have the names of the old ones
                *others, manifest = self._old()
                self._remove(others)
                target.store.delete(manifest)
            work = self.planned()
            plan = replace(work.plan, settings=settings, records=estimate.section_records(work, target))
            work.plan = replace(plan, parts=count)
            run = secrets.token_hex(8)
            listing = target.partial / _LISTING
            store(listing, *stored.parts(work.source))
            target.store.put_file(self._key(_LISTING, run), listing)
            members = {"version": _VERSION, "id": run, "plan": asdict(work.plan)}
            try:
                target.store.put_bytes(name, json.dumps(members, sort_keys=True).encode(), if_none_match=True)
            except ObjectConflictError:  # another machine was faster
                target.store.delete(self._key(_LISTING, run))
                continue
            self.id = run
            return work, False

    def _loaded(self, plan: PackPlan) -> PackWork:
        """The work of a plan, with the listing that the store has."""
        file = self.target.partial / _LISTING
        try:
            self._receive(self._key(_LISTING), file)
            members, arrays = load(file)
            source = stored.source_of(stored.root_of(self.sources[0], members["kind"]), members, arrays)
        except (ObjectMissingError, ContainerError, LookupError, TypeError) as error:
            raise TargetError(f"{self.target.store.url(self._key(_LISTING))} cannot be used: {error}") from None
        mean = estimate.mean_size_in_memory(source, self.options.recipe())
        return PackWork(self.sources, source, self.options, plan, 1, mean)

    def _pack(
        self, packing: PackRun, writer: ShardWriter, sections: Sequence[Section], left: Sequence[Section]
    ) -> None:
        """Pack and send sections; while one is sent, the next one is packed."""
        names = writer.names([each.split for each in sections])
        with ThreadPoolExecutor(1, "iofast-uploads") as uploads:
            sending: Future[None] | None = None
            for section in left:
                if self._has(self._key(_rows_name(section))):
                    continue
                if not self._has(f"{self.target.path.name}.partial/plan.json"):
                    break  # another machine has published the set
                packing.fill(writer, [section])
                if sending is not None:
                    sending.result()
                sending = uploads.submit(self._send, writer, writer.finished[section.number], names[section.number])
            if sending is not None:
                sending.result()

    def _send(self, writer: ShardWriter, done: Finished, name: str) -> None:
        """Store a shard under its final name, then its rows, and remove both here."""
        staged = writer.staged(done.section)
        if done.count:
            self.target.store.put_file(name, staged)
            staged.unlink()
        self.target.store.put_file(self._key(_rows_name(done.section)), done.rows)

    def _publish(self, packing: PackRun, writer: ShardWriter, sections: Sequence[Section]) -> PackReport:
        """Write index and manifest from the rows of all sections. Another machine may do the same at the same time."""
        target, work, name = self.target, packing.work, self.target.path.name

        try:
            self._receive_rows(sections)
        except ObjectMissingError:
            return self._published(packing)
        writer.finished.clear()
        if lost := writer.resume(sections):
            raise TargetError(f"{target.url}: the rows of {len(lost)} shards are damaged: delete them in .partial/")
        packing.failures = type(packing.failures)(
            len(work.source), self.options.allowed_errors(len(work.source)), target.path
        )
        done = [writer.finished[number] for number in sorted(writer.finished)]
        for each in done:
            packing.count(each)
        packing.check_any(done)
        manifest = writer.finish(work.description())
        sizes = self._sizes()
        lost_shards = [shard.name for shard in manifest.shards if sizes.get(shard.name) != shard.size]
        if lost_shards:
            raise TargetError(
                f"{target.store.url(lost_shards[0])} is lost or was overwritten: delete .partial/ and all shards"
            )
        if packing.failures.save():
            target.store.put_file(name + ERRORS, packing.failures.file)
        target.store.put_file(name + INDEX_SUFFIX, target.partial / (name + INDEX_SUFFIX))
        try:
            target.store.put_bytes(name + MANIFEST_SUFFIX, manifest.to_json(), if_none_match=True)
        except ObjectConflictError:
            if self._manifest() != manifest:
                raise TargetError(f"{target.url} was made by another run meanwhile") from None
        self._remove_work()
        size = _size(manifest)
        report = work.report(target.path, packing.failures, done, size, packing.resumed)
        return self._described(report)

    def _receive_rows(self, sections: Sequence[Section]) -> None:
        """Fetch the rows of these sections that are not here."""

        async def receive(section: Section) -> None:
            path = self.target.partial / _rows_name(section)
            if not path.exists():
                path.write_bytes(await self.target.store.fetch(self._key(_rows_name(section))))

        requests.run(requests.each(receive, [*sections], _REQUESTS))

    def _published(self, packing: PackRun) -> PackReport:
        """The report of a set that another machine has published."""
        manifest = self._manifest()
        if manifest is None:
            raise TargetError(f"{self.target.url}.partial/ was removed by another program: there is no finished set")
        size = _size(manifest)
        report = packing.work.report(self.target.path, packing.failures, (), size, packing.resumed)
        return self._described(replace(report, packed=manifest.count, failed=0, errors_file=None))

    def _of_part(self, packing: PackRun, part: PackPart, work: PackWork, missing: Sequence[Section]) -> PackReport:
        report = work.report(self.target.path, packing.failures, (), 0, packing.resumed)
        sections = work.sections()
        images = sum(each.stop - each.start for each in part.of(sections))
        lacking = _lacking(sections, missing, part.total)
        packed = images - len(packing.failures)
        return self._described(
            replace(report, images=images, packed=packed, errors_file=None, part=part, missing=lacking)
        )

    def _check_free(self) -> None:
        """Raise `TargetError` if a set, or shards of the same names, are in the target's place."""
        target = self.target
        if not target.overwrite and self._has(target.path.name + MANIFEST_SUFFIX):
            raise TargetError(f"{target.url} exists already: choose another name, or give overwrite=True")
        old = {*self._old()} if target.overwrite else set[str]()
        found = next((each for each in target.taken([*self._sizes()]) if each not in old), None)
        if found is not None:
            raise TargetError(
                f"{target.store.url(found)} exists already and is no part of a set {target.path.name}: move it, or "
                "choose another name"
            )

    def _old(self) -> list[str]:
        """The objects of the set that is replaced, its manifest last: a removal that was killed can go on."""
        manifest, name = self._manifest(), self.target.path.name
        shards = [] if manifest is None else [shard.name for shard in manifest.shards if self.target.owns(shard.name)]
        return [*shards, name + INDEX_SUFFIX, name + ERRORS, name + MANIFEST_SUFFIX]

    def _remove_work(self) -> None:
        """Remove the folder of the run: the plan last, because without it a killed run would begin anew."""
        plan = f"{self.target.path.name}.partial/plan.json"
        found = self.target.store.list(f"{self.target.path.name}.partial")
        self._remove(each.key for each in found if each.key != plan)
        self.target.store.delete(plan)

    def _remove(self, keys: Iterable[str]) -> None:
        every = [*keys]
        for first in range(0, len(every), _TOGETHER):
            requests.run(self.target.store.remove(every[first : first + _TOGETHER]))

    def _sizes(self) -> dict[str, int]:
        """The objects in the folder of the set."""
        return {each.key: each.size for each in self.target.store.list() if "/" not in each.key}

    def _manifest(self) -> Manifest | None:
        name = self.target.path.name + MANIFEST_SUFFIX
        try:
            return Manifest.from_json(self.target.store.get(name), self.target.store.url(name))
        except (ObjectMissingError, ContainerError):
            return None

    def _stored(self) -> set[int]:
        """The numbers of the sections that the store has."""
        names = (posixpath.basename(each.key) for each in self.target.store.list(self._key("")))
        return {int(name.removeprefix("rows-")) for name in names if name.startswith("rows-")}

    def _key(self, name: str, run: str = "") -> str:
        return f"{self.target.path.name}.partial/{run or self.id}/{name}".rstrip("/")

    def _has(self, key: str) -> bool:
        try:
            self.target.store.head(key)
        except ObjectMissingError:
            return False
        return True

    def _receive(self, key: str, path: Path) -> None:
        path.write_bytes(self.target.store.get(key))

    def _described(self, report: PackReport) -> PackReport:
        """The report with URLs in the place of local paths."""
        errors = None if report.errors_file is None else f"{self.target.url}{ERRORS}"
        return replace(report, target=self.target.url, errors_file=errors)


def _lacking(sections: Sequence[Section], missing: Sequence[Section], count: int) -> tuple[int, ...]:
    """The numbers of the parts, of `count`, that have one of the missing sections."""
    parts = (PackPart(number, count) for number in range(1, count + 1))
    return tuple(part.number for part in parts if any(each in missing for each in part.of(sections)))


def _size(manifest: Manifest) -> int:
    """Bytes of all objects of a set but its list of errors."""
    index = 0
    for size, _ in manifest.index:  # each begins at a multiple of ALIGN
        index += -index % ALIGN + size
    return sum(shard.size for shard in manifest.shards) + index + len(manifest.to_json())


def _rows_name(section: Section) -> str:
    return f"rows-{section.number:06d}"


def _parse(text: bytes, where: str) -> tuple[str, PackPlan]:
    """The name and the plan of a run. Raises `TargetError`."""
    try:
        value: Mapping[str, Any] = json.loads(text)
        if value["version"] != _VERSION or not str(value["id"]).isalnum():
            raise ValueError(f"version {value['version']}")
        splits = tuple((name, start, stop) for name, start, stop in value["plan"]["splits"])
        return str(value["id"]), PackPlan(**{**value["plan"], "splits": splits})
    except (ValueError, KeyError, TypeError) as error:
        raise TargetError(
            f"{where} is damaged, or of another version of iofast ({error!s:.80}): delete its folder to start anew"
        ) from None


def work_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the shards that are packed and sent: `$IOFAST_WORK`, else the one for temporary files, names it."""
    folder = os.environ.get("IOFAST_WORK") or None
    try:
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix="iofast-pack-", dir=folder)
    except OSError as error:
        raise TargetError(f"{folder or tempfile.gettempdir()} takes no work folder: {because(error)}") from None
