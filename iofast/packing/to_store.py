"""`pack` into an object store: each finished shard is sent under its final name, and the manifest comes last.

`<DST>.partial/` in the store has the plan, the listing, and the rows of each finished section. So a run that was killed
goes on, and any number of machines may run the same command: each packs sections that the store does not have yet, and
who finds all of them there publishes the set (docs/format.md section 8.1).
"""

import contextlib
import os
import posixpath
import random
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from iofast import owned
from iofast.containers.index import Layout
from iofast.containers.manifest import Manifest
from iofast.containers.publish import Target
from iofast.containers.shard_writer import ShardWriter
from iofast.containers.shards import SHARD_SIZE
from iofast.containers.targets import writer_of
from iofast.containers.writer import INDEX_SUFFIX, Finished, Section
from iofast.errors import BusyError, IofastError, ObjectMissingError, TargetError, because
from iofast.option import parse_size
from iofast.packing.pack_run import images_of
from iofast.packing.part import PackPart, missing_words, parts_of
from iofast.packing.parts import LISTING, SharedRun
from iofast.packing.report import ERRORS, PackReport, beside
from iofast.packing.store_target import StoreTarget
from iofast.packing.work import PackWork
from iofast.remote import requests

_REQUESTS = 16  # small objects in flight at once


@dataclass(slots=True)
class StoreRun(SharedRun):
    """One command that packs into the object store of `target`."""

    target: StoreTarget
    _joined: bool = field(default=False, init=False)  # another run has begun, and may be at work
    _stopped: bool = field(default=False, init=False)

    def run(self) -> PackReport:
        """Pack the missing sections, or those of one part, and publish when all are there."""
        target = self.target
        try:
            with target:
                report = self._run()
        except (KeyboardInterrupt, IofastError) as error:
            words, errors = str(error) or "interrupted", beside(target.path, ERRORS)
            if os.fspath(errors) in words:
                target.store.put_file(target.key(ERRORS), errors)
            words = words.replace(os.fspath(target.path), target.url)
            raise type(error)(f"{words}; {target.going_on}" if target.begun.id else words) from None
        listed = None if report.errors_file is None else f"{target.url}{ERRORS}"
        return replace(report, target=target.url, errors_file=listed)

    def forecast(self) -> PackReport:
        """The forecast of a dry run. Nothing is written into the store."""
        self.target.replaced_shards(self.target.manifest_info())
        report = SharedRun.forecast(self)
        expected = report.estimate
        if expected is not None:  # a shard that is sent, and one that is packed
            shard = parse_size(self.options.shard_size or SHARD_SIZE)
            expected = replace(expected, bytes_peak=min(expected.bytes_peak, 2 * shard))
        return replace(report, target=self.target.url, estimate=expected)

    def _run(self) -> PackReport:
        options, target = self.options, self.target
        part = None if options.part is None else PackPart.parse(options.part, os.environ)
        work = self._shared(None if part is None else part.total)
        self.begin(work or self.planned())
        if work is None:  # a run that was killed at its very end
            self.resumed = self.work.plan.images
            return self._published()
        writer = writer_of(target, work.description(), work.key_width)
        assert isinstance(writer, ShardWriter)  # no other suffix is accepted
        writer.is_stored = True
        sections = work.plan.sections()
        mine = [*(sections if part is None else part.of(sections))]
        left = self._lacking(mine)
        self.resumed = images_of(mine) - images_of(left)
        if options.finish and left:
            count = work.plan.parts or 1
            lost = missing_words(parts_of(sections, left, count), count)
            raise TargetError(f"{target.url} cannot be finished: {lost}")
        if left and not target.hide_replaced():
            if target.is_current():
                raise TargetError(f"{target.url} was made by another run meanwhile")
            return self._published()
        self._pack(writer, mine, left)
        missing = self._lacking(sections)
        if part is None or (not missing and options.finish_when_complete):
            return self._publish(writer)
        self._receive(writer, mine)
        self.count(writer)
        return self.report_of_part(part, mine, writer, parts_of(sections, missing, part.total))

    def _shared(self, count: int | None) -> PackWork | None:
        """The work of the run that the store has, or of a new one; None for a run that has published its set."""
        target = self.target
        old = target.manifest_info()  # before the source is listed, which may take long
        while (found := target.stored_plan()) is None:
            shards = target.replaced_shards(old)
            if self.options.finish:
                raise TargetError(f"{target.url} has no parts that could be joined: pack them with part=i/n")
            work = self.new_work(count)
            etag = "" if old is None else old.etag
            work.plan = replace(work.plan, id=secrets.token_hex(8), replaces=etag, shards=shards)
            if target.begin(work.plan):
                return work
        self.check(found, found.parts if count is None else count, f"{target.url}.partial")
        target.begun, self._joined = found, True
        if (data := target.get(target.work_key(LISTING))) is None:
            return None
        (target.partial / LISTING).write_bytes(data)
        return self.listed(found, checked=True)

    def _pack(self, writer: ShardWriter, mine: Sequence[Section], left: Sequence[Section]) -> None:
        """Pack the sections that are left; while one is sent, the next one is packed."""
        names = writer.names([each.split for each in self.work.plan.sections()])
        start = random.randrange(len(left)) if left and self._joined else 0  # else both would pack the same
        sending: Future[bool] | None = None
        self.progress.begin(images_of(mine), self.resumed)
        with ThreadPoolExecutor(1, "iofast-uploads") as uploads:
            try:
                for section in (*left[start:], *left[:start]):
                    if self.target.get(self.target.work_key(section.rows)) is not None:  # of another machine
                        self.progress.step(images_of([section]), 0, len(self.failures))
                        continue
                    self.pack(writer, [section])
                    if sending is not None and not sending.result():
                        break
                    done = writer.finished[section.number]
                    sending = uploads.submit(self._send, writer, done, names[section.number])
                if sending is not None:
                    sending.result()
            finally:
                self._stopped = True
                self.progress.end()
                writer.abort()

    def _send(self, writer: ShardWriter, done: Finished, name: str) -> bool:
        """Store a shard under its final name, then its rows. False if another machine has published the set."""
        target, staged = self.target, writer.staged(done.section)
        rows = target.work_key(done.section.rows)
        if not target.is_current():
            return False
        if done.count:
            target.store.put_file(name, staged, self._check_stopped)
            staged.unlink()
        target.store.put_file(rows, done.rows, self._check_stopped)
        if target.is_current():
            return True
        target.store.delete(rows)
        return False

    def _check_stopped(self) -> None:
        if self._stopped:
            raise InterruptedError("the run has ended")

    def _publish(self, writer: ShardWriter) -> PackReport:
        """Write index and manifest from the rows of all sections. Another machine may do the same at the same time."""
        target = self.target
        lost, sizes = self._receive(writer, self.work.plan.sections()), target.sizes()
        if not target.is_current():
            return self._published()
        if lost:
            raise TargetError(f"{target.url}: the rows of {len(lost)} shards are damaged: delete them in .partial/")
        self.begin(self.work)  # for the failures of all machines
        self.count(writer)
        report, manifest = self.report(self.all_of(writer)), writer.finish()
        for shard in manifest.shards:
            if sizes.get(shard.name) != shard.size:
                where = target.store.url(shard.name)
                raise TargetError(f"{where} is lost or was overwritten: delete .partial/ and all shards")
        if self.failures.save():
            target.store.put_file(target.key(ERRORS), self.failures.file)
        else:
            target.store.delete(target.key(ERRORS))
        target.store.put_file(target.key(INDEX_SUFFIX), target.partial / target.key(INDEX_SUFFIX))
        target.put_manifest(manifest)
        target.clean_up(manifest)
        return replace(report, bytes_out=_size(manifest))

    def _published(self) -> PackReport:
        """The report of a set that this run, or another machine, has published before."""
        target, manifest = self.target, self.target.manifest()
        if manifest is None:
            raise TargetError(f"{target.url}.partial/ was removed by another program: there is no finished set")
        target.clean_up(manifest)
        self.begin(self.work)
        if (listed := target.get(target.key(ERRORS))) is not None:
            self.failures.file.write_bytes(listed)
            self.failures.load()
        report = self.report((), _size(manifest))
        left_out = report.images - manifest.count - len(self.failures)
        return replace(report, packed=manifest.count, left_out=left_out)

    def _lacking(self, sections: Sequence[Section]) -> list[Section]:
        """Those of the sections that the store does not have."""
        there = {posixpath.basename(each.key) for each in self.target.store.list(self.target.work_key())}
        return [each for each in sections if each.rows not in there]

    def _receive(self, writer: ShardWriter, sections: Sequence[Section]) -> list[Section]:
        """Fetch the rows of these sections that are not here, for `writer.resume`, whose result is returned."""

        async def receive(section: Section) -> None:
            path = self.target.partial / section.rows
            if not path.exists():
                path.write_bytes(await self.target.store.fetch(self.target.work_key(path.name)))

        with contextlib.suppress(ObjectMissingError):  # published meanwhile
            requests.run(requests.each(receive, [*sections], _REQUESTS))
        return writer.resume(sections)


def _size(manifest: Manifest) -> int:
    """Bytes of all objects of a set but its list of errors."""
    index = Layout(manifest.count, manifest.fields).size
    return sum(shard.size for shard in manifest.shards) + index + len(manifest.to_json())


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder of this run alone for packed shards, in `$IOFAST_WORK` or the user's cache folder.

    What runs that were killed have left there is removed. Raises `TargetError`.
    """
    given, cache = os.environ.get("IOFAST_WORK"), owned.cache_folder()
    if not given and cache is None:
        raise TargetError("there is no folder for work: set IOFAST_WORK to one that only you may write to")
    base = Path(os.path.abspath(given)) if given else Path(cache or "") / "packing"
    own = Target(base / f"run-{secrets.token_hex(8)}")
    try:
        base.mkdir(0o700, parents=True, exist_ok=True)
        for path in base.glob("run-*.partial"):
            with contextlib.suppress(BusyError), Target(path.with_suffix("")) as old:
                old.discard()
        own.acquire()
    except OSError as error:
        words = str(error) if isinstance(error, TargetError) else because(error)
        raise TargetError(f"{base} takes no work folder: {words}") from None
    try:
        yield own.partial
    finally:
        own.discard()
