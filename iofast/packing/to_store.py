"""`pack` into an object store: each finished shard is sent under its final name, and the manifest comes last.

`<DST>.partial/` in the store has the plan, the listing, and the rows of each finished section. So a run that was killed
goes on, and any number of machines may run the same command: each packs sections that the store does not have yet, and
who finds all of them there publishes the set (docs/format.md section 8.1).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import posixpath
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from iofast import owned
from iofast.containers.columns_file import ALIGN, store
from iofast.containers.container_suffixes import LMDB, WRITTEN
from iofast.containers.locked_folder import LockedFolder
from iofast.containers.manifest import Manifest
from iofast.containers.shard_target import ShardTarget
from iofast.containers.shard_writer import ShardWriter
from iofast.containers.shards import MANIFEST_SUFFIX, SHARD_SIZE
from iofast.containers.targets import target_of, writer_of
from iofast.containers.writer import INDEX_SUFFIX, Finished, Section
from iofast.errors import (
    BusyError,
    ContainerError,
    IofastError,
    ObjectConflictError,
    ObjectMissingError,
    OptionError,
    TargetError,
    because,
)
from iofast.option import parse_size
from iofast.packing import estimate
from iofast.packing.dry_run import forecast
from iofast.packing.failures import ERRORS, beside
from iofast.packing.options import PackOptions
from iofast.packing.pack_run import PackRun
from iofast.packing.pack_work import PackWork
from iofast.packing.part import PackPart, missing_words
from iofast.packing.parts import LISTING, load_work
from iofast.packing.plan import PackPlan, shared_settings
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport
from iofast.remote import requests
from iofast.remote.store import ObjectInfo, Store
from iofast.remote.urls import WEB, RemotePath
from iofast.source import stored

MOST_SHARD = 4_000_000_000  # bytes: what every store takes as one object, with room for a wrong estimate
_VERSION = 3
_REQUESTS = 16  # small objects in flight at once
_TOGETHER = 1000  # objects that one request removes
_log = logging.getLogger("iofast")


class StoreTarget(ShardTarget):
    """The place of a set in an object store: `url`. What is made for it lies in a folder of this process."""

    def __init__(self, url: str, folder: Path, *, overwrite: bool = False) -> None:
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
        super().__init__(folder / name, os.path.splitext(name)[1], overwrite=overwrite)
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


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The run `id`, as all machines find it in the store.

    It replaces the set whose manifest has the version `replaces` ("" for none), and its `shards`.
    """

    id: str
    plan: PackPlan
    replaces: str = ""
    shards: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: bytes, where: str) -> StoredPlan:
        """Read `plan.json`. Raises `TargetError`."""
        try:
            value: Mapping[str, Any] = json.loads(text)
            if value["version"] != _VERSION or not str(value["id"]).isalnum():
                raise ValueError(f"version {value['version']}")
            splits = tuple((name, start, stop) for name, start, stop in value["plan"]["splits"])
            plan = PackPlan(**{**value["plan"], "splits": splits})
            return cls(str(value["id"]), plan, str(value["replaces"]), tuple(map(str, value["shards"])))
        except (ValueError, KeyError, TypeError) as error:
            raise TargetError(
                f"{where} is damaged, or of another version of iofast ({error!s:.80}): delete its folder to start anew"
            ) from None


@dataclass(slots=True)
class StoreRun:
    """One command that packs `sources` into the object store of `target`."""

    sources: Sequence[str]
    target: StoreTarget
    options: PackOptions
    planned: Callable[[], PackWork]
    pool: WorkerPool
    progress: PackProgress
    begun: StoredPlan | None = field(default=None, init=False)
    _joined: bool = field(default=False, init=False)  # another run has begun, and may be at work
    _stopped: bool = field(default=False, init=False)

    def run(self) -> PackReport:
        """Pack the missing sections, or those of one part, and publish when all are there."""
        try:
            with self.target:
                report = self._run()
        except (KeyboardInterrupt, IofastError) as error:
            words, errors = str(error) or "interrupted", beside(self.target.path, ERRORS)
            if os.fspath(errors) in words:
                self.target.store.put_file(self._name(ERRORS), errors)
            words = words.replace(os.fspath(self.target.path), self.target.url)
            if self.begun is None:
                raise
            raise type(error)(f"{words}; {self.target.going_on}") from None
        listed = None if report.errors_file is None else f"{self.target.url}{ERRORS}"
        return replace(report, target=self.target.url, errors_file=listed)

    def dry_run(self) -> PackReport:
        """The forecast of a dry run. Nothing is written into the store."""
        self._check_free(self._manifest())
        report = forecast(self.planned(), self.target.path, self.pool)
        expected = report.estimate
        if expected is not None:  # a shard that is sent, and one that is packed
            shard = parse_size(self.options.shard_size or SHARD_SIZE)
            expected = replace(expected, bytes_peak=min(expected.bytes_peak, 2 * shard))
        return replace(report, target=self.target.url, estimate=expected)

    def _run(self) -> PackReport:
        options, url = self.options, self.target.url
        part = None if options.part is None else PackPart.parse(options.part, os.environ)
        work = self._work(None if part is None else part.total)
        if work is None:  # a run that was killed at its very end
            work = self.planned()
            return self._published(self._of(work, resumed=len(work.source)))
        packing = self._of(work)
        writer = writer_of(self.target, work.description(), work.key_width)
        assert isinstance(writer, ShardWriter)  # no other suffix is accepted
        writer.is_stored = True
        sections = work.sections()
        mine = [*(sections if part is None else part.of(sections))]
        left = self._lacking(mine)
        packing.resumed = _images(mine) - _images(left)
        if options.finish and left:
            count = work.plan.parts or 1
            raise TargetError(f"{url} cannot be finished: {missing_words(_parts_of(sections, left, count), count)}")
        if left and not self._hide_old():
            if self._is_current():
                raise TargetError(f"{url} was made by another run meanwhile")
            return self._published(packing)
        self._pack(packing, writer, mine, left)
        missing = self._lacking(sections)
        if part is None or (not missing and options.finish_when_complete):
            return self._publish(packing, writer)
        with contextlib.suppress(ObjectMissingError):  # published meanwhile
            self._receive_rows(mine)
        writer.resume(mine)
        return replace(
            self._report(packing, writer),
            images=_images(mine),
            errors_file=None,
            part=part,
            missing=_parts_of(sections, missing, part.total),
        )

    def _work(self, count: int | None) -> PackWork | None:
        """The work of the run that the store has, or of a new one; None for a run that has published its set."""
        target, name = self.target, self._name(".partial/plan.json")
        settings = shared_settings(self.sources, self.options, target)
        old = self._manifest()  # before the source is listed, which may take long
        while True:
            text = self._get(name)
            if text is not None:
                found = StoredPlan.parse(text, target.store.url(name))
                plan = found.plan
                expected = plan.parts if count is None else count
                PackPlan(plan.images, plan.splits, plan.source, settings, parts=expected).check_same(
                    plan, Path(f"{target.url}.partial")
                )
                self.begun, self._joined = found, True
                listing = self._get(self._key(LISTING))
                if listing is None:
                    return None
                (target.partial / LISTING).write_bytes(listing)
                return load_work(self.sources, self.options, plan, target.partial / LISTING)
            replaced = self._check_free(old)
            if self.options.finish:
                raise TargetError(f"{target.url} has no parts that could be joined: pack them with part=i/n")
            work = self.planned()
            plan = replace(work.plan, settings=settings, records=estimate.section_records(work, target), parts=count)
            work.plan = plan
            begun = StoredPlan(secrets.token_hex(8), plan, "" if old is None else old.etag, replaced)
            store(target.partial / LISTING, *stored.parts(work.source))
            target.store.put_file(self._key(LISTING, begun), target.partial / LISTING)
            members = json.dumps({"version": _VERSION, **asdict(begun)}, sort_keys=True)
            try:
                target.store.put_bytes(name, members.encode(), if_none_match=True)
            except ObjectConflictError:  # another machine was faster
                target.store.delete(self._key(LISTING, begun))
                continue
            self.begun = begun
            return work

    def _pack(self, packing: PackRun, writer: ShardWriter, mine: Sequence[Section], left: Sequence[Section]) -> None:
        """Pack and send the sections that are left, while another one is packed."""
        names = writer.names([each.split for each in packing.work.sections()])
        start = random.randrange(len(left)) if left and self._joined else 0  # else both would pack the same
        sending: Future[bool] | None = None
        self.progress.begin(_images(mine), packing.resumed)
        try:
            with ThreadPoolExecutor(1, "iofast-uploads") as uploads:
                try:
                    for section in (*left[start:], *left[:start]):
                        if self._get(self._key(_rows_name(section))) is not None:  # from another machine
                            self.progress.step(_images([section]), 0, len(packing.failures))
                            continue
                        packing.pack(writer, [section])
                        if sending is not None and not sending.result():
                            break
                        done = writer.finished[section.number]
                        sending = uploads.submit(self._send, writer, done, names[section.number])
                    if sending is not None:
                        sending.result()
                except BaseException:
                    self._stopped = True
                    raise
        finally:
            self.progress.end()
            writer.abort()

    def _send(self, writer: ShardWriter, done: Finished, name: str) -> bool:
        """Store a shard under its final name, then its rows. False if another machine has published the set."""
        rows, staged = self._key(_rows_name(done.section)), writer.staged(done.section)
        if not self._is_current():
            return False
        if done.count:
            self.target.store.put_file(name, staged, self._check_stopped)
            staged.unlink()
        self.target.store.put_file(rows, done.rows, self._check_stopped)
        if self._is_current():
            return True
        self.target.store.delete(rows)
        return False

    def _check_stopped(self) -> None:
        if self._stopped:
            raise InterruptedError("the run has ended")

    def _publish(self, packing: PackRun, writer: ShardWriter) -> PackReport:
        """Write index and manifest from the rows of all sections. Another machine may do the same at the same time."""
        target, work = self.target, packing.work
        sections = work.sections()
        try:
            self._receive_rows(sections)
        except ObjectMissingError:
            return self._published(packing)
        if lost := writer.resume(sections):
            raise TargetError(f"{target.url}: the rows of {len(lost)} shards are damaged: delete them in .partial/")
        packing = self._of(work, packing.resumed)
        report = self._report(packing, writer)
        packing.check_any([*writer.finished.values()])
        manifest = writer.finish(work.description())
        sizes = self._sizes()
        lost_shards = [shard.name for shard in manifest.shards if sizes.get(shard.name) != shard.size]
        if lost_shards and self._is_current():
            raise TargetError(
                f"{target.store.url(lost_shards[0])} is lost or was overwritten: delete .partial/ and all shards"
            )
        if not self._is_current():
            return self._published(packing)
        if packing.failures.save():
            target.store.put_file(self._name(ERRORS), packing.failures.file)
        else:
            target.store.delete(self._name(ERRORS))
        target.store.put_file(self._name(INDEX_SUFFIX), target.partial / self._name(INDEX_SUFFIX))
        self._put_manifest(manifest)
        self._clean_up(manifest)
        return replace(report, bytes_out=_size(manifest))

    def _published(self, packing: PackRun) -> PackReport:
        """The report of a set that this run, or another machine, has published before."""
        work, manifest = packing.work, self._read_manifest()
        if manifest is None:
            raise TargetError(f"{self.target.url}.partial/ was removed by another program: there is no finished set")
        self._clean_up(manifest)
        packing = self._of(work, packing.resumed)
        if (listed := self._get(self._name(ERRORS))) is not None:
            packing.failures.file.write_bytes(listed)
            packing.failures.load()
        report = work.report(self.target.path, packing.failures, (), _size(manifest), packing.resumed)
        left_out = len(work.source) - manifest.count - len(packing.failures)
        return replace(report, packed=manifest.count, left_out=left_out)

    def _report(self, packing: PackRun, writer: ShardWriter) -> PackReport:
        """The report of all sections that the writer has found finished."""
        done = [*writer.finished.values()]
        for each in done:
            packing.count(each)
        size = sum(each.size for each in done)
        return packing.work.report(self.target.path, packing.failures, done, size, packing.resumed)

    def _of(self, work: PackWork, resumed: int = 0) -> PackRun:
        work.workers = self.pool.count
        return PackRun(work, self.target, self.pool, self.progress, resumed)

    def _receive_rows(self, sections: Sequence[Section]) -> None:
        """Fetch the rows of these sections that are not here."""

        async def receive(section: Section) -> None:
            path = self.target.partial / _rows_name(section)
            if not path.exists():
                path.write_bytes(await self.target.store.fetch(self._key(_rows_name(section))))

        requests.run(requests.each(receive, [*sections], _REQUESTS))

    def _check_free(self, old: ObjectInfo | None) -> tuple[str, ...]:
        """The shards of the set that is replaced. Raises `TargetError` if something else is in the target's place."""
        target, free = self.target, set[str]()
        if old is not None and not target.overwrite:
            raise TargetError(f"{target.url} exists already: choose another name, or give overwrite=True")
        manifest = None if old is None else self._read_manifest(old.etag)
        shards = () if manifest is None else tuple(each.name for each in manifest.shards if target.owns(each.name))
        if target.overwrite:
            free = {*shards, self._name(INDEX_SUFFIX), self._name(MANIFEST_SUFFIX)}
        found = next((each for each in target.taken([*self._sizes()]) if each not in free), None)
        if found is not None:
            raise TargetError(
                f"{target.store.url(found)} exists already and is no part of a set {target.path.name}: move it, or "
                "choose another name"
            )
        return shards

    def _hide_old(self) -> bool:
        """Empty the manifest of the set that is replaced, which no store deletes on a condition.

        Returns whether its place is free.
        """
        found, begun = self._manifest(), self._begun()
        if found is not None and found.size and found.etag == begun.replaces:
            with contextlib.suppress(ObjectConflictError):
                self.target.store.put_bytes(self._name(MANIFEST_SUFFIX), b"", if_match=found.etag)
            found = self._manifest()
        return found is None or not found.size

    def _put_manifest(self, manifest: Manifest) -> None:
        """Publish the set. Raises `TargetError` if another one is in its place."""
        put, name, old = self.target.store.put_bytes, self._name(MANIFEST_SUFFIX), self._manifest()
        with contextlib.suppress(ObjectConflictError):
            if old is None:
                put(name, manifest.to_json(), if_none_match=True)
            elif not old.size:
                put(name, manifest.to_json(), if_match=old.etag)
        if self._read_manifest() != manifest:
            raise TargetError(f"{self.target.url} was made by another run meanwhile")

    def _clean_up(self, manifest: Manifest) -> None:
        """Remove what is left of the replaced set and of this run: the set is published, so errors are a warning.

        The listing goes first: a plan without one is that of a run that has ended.
        """
        place, plan = self.target.store, self._name(".partial/plan.json")
        try:
            is_current = self._is_current()
            if is_current:
                self._remove({*self._begun().shards} - {shard.name for shard in manifest.shards})
            place.delete(self._key(LISTING))
            prefix = self._name(".partial") if is_current else self._key("")
            self._remove(each.key for each in place.list(prefix) if each.key != plan)
            if is_current:
                place.delete(plan)
        except IofastError as error:
            rest = f"run the same command again, or delete {self.target.url}.partial/"
            _log.warning("%s is published, but cleaning up failed: %s; %s", self.target.url, error, rest)

    def _remove(self, keys: Iterable[str]) -> None:
        every = [*keys]
        for first in range(0, len(every), _TOGETHER):
            requests.run(self.target.store.remove(every[first : first + _TOGETHER]))

    def _sizes(self) -> dict[str, int]:
        """The objects in the folder of the set."""
        return {each.key: each.size for each in self.target.store.list() if "/" not in each.key}

    def _lacking(self, sections: Sequence[Section]) -> list[Section]:
        """Those of the sections that the store does not have."""
        there = {posixpath.basename(each.key) for each in self.target.store.list(self._key(""))}
        return [each for each in sections if _rows_name(each) not in there]

    def _is_current(self) -> bool:
        """Whether the store still has the plan of this run."""
        name = self._name(".partial/plan.json")
        text = self._get(name)
        return text is not None and StoredPlan.parse(text, self.target.store.url(name)).id == self._begun().id

    def _manifest(self) -> ObjectInfo | None:
        with contextlib.suppress(ObjectMissingError):
            return self.target.store.head(self._name(MANIFEST_SUFFIX))
        return None

    def _read_manifest(self, etag: str = "") -> Manifest | None:
        name = self._name(MANIFEST_SUFFIX)
        with contextlib.suppress(ObjectMissingError, ContainerError):
            return Manifest.from_json(self.target.store.get(name, etag), self.target.store.url(name))
        return None

    def _get(self, key: str) -> bytes | None:
        with contextlib.suppress(ObjectMissingError):
            return self.target.store.get(key)
        return None

    def _begun(self) -> StoredPlan:
        assert self.begun is not None  # after `_work`
        return self.begun

    def _name(self, suffix: str) -> str:
        return self.target.path.name + suffix

    def _key(self, name: str, begun: StoredPlan | None = None) -> str:
        return f"{self._name('.partial')}/{(begun or self._begun()).id}/{name}".rstrip("/")


def _images(sections: Iterable[Section]) -> int:
    return sum(each.stop - each.start for each in sections)


def _parts_of(sections: Sequence[Section], missing: Sequence[Section], count: int) -> tuple[int, ...]:
    """The numbers of the parts, of `count`, that have one of the missing sections."""
    lost = {each.number for each in missing}
    parts = (PackPart(number, count) for number in range(1, count + 1))
    return tuple(part.number for part in parts if any(each.number in lost for each in part.of(sections)))


def _size(manifest: Manifest) -> int:
    """Bytes of all objects of a set but its list of errors."""
    index = 0
    for size, _ in manifest.index:  # each begins at a multiple of ALIGN
        index += -index % ALIGN + size
    return sum(shard.size for shard in manifest.shards) + index + len(manifest.to_json())


def _rows_name(section: Section) -> str:
    return f"rows-{section.number:06d}"


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder of this run alone for packed shards, in `$IOFAST_WORK` or the user's cache folder.

    What runs that were killed have left there is removed. Raises `TargetError`.
    """
    given, cache = os.environ.get("IOFAST_WORK"), owned.cache_folder()
    if not given and cache is None:
        raise TargetError("there is no folder for work: set IOFAST_WORK to one that only you may write to")
    base = Path(os.path.abspath(given)) if given else Path(cache or "") / "packing"
    own = LockedFolder(base / f"run-{secrets.token_hex(8)}", base)
    try:
        base.mkdir(0o700, parents=True, exist_ok=True)
        for path in base.glob("run-*"):
            with contextlib.suppress(BusyError):
                _remove_folder(LockedFolder(path, base))
        own.acquire()
    except OSError as error:
        words = str(error) if isinstance(error, TargetError) else because(error)
        raise TargetError(f"{base} takes no work folder: {words}") from None
    try:
        yield own.path
    finally:
        _remove_folder(own)


def _remove_folder(folder: LockedFolder) -> None:
    folder.acquire()
    folder.empty(())
    folder.remove()
