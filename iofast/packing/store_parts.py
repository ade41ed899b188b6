"""The parts of a packing run into an object store: sent when they are finished, brought back to be joined."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from iofast.containers.manifest import Manifest
from iofast.containers.shards import INDEX_SUFFIX, MANIFEST_SUFFIX, read_manifest
from iofast.errors import TargetError
from iofast.packing.failures import ERRORS, beside
from iofast.packing.finished_part import TOTALS
from iofast.packing.pack_work import PackWork
from iofast.packing.part import PackPart
from iofast.packing.parts import PackParts
from iofast.packing.store_target import SMALL, StoreTarget, make_sparse, mend_sparse
from iofast.remote import requests
from iofast.remote.store import ObjectInfo

_SMALL_FILES = (INDEX_SUFFIX, ERRORS, TOTALS)  # beside the manifest of a part
_SENT = ".sent"  # suffix of an empty file: the store has the part, and its shards here have no bytes
_REQUESTS = 16  # small files in flight at once
_ENDING = 15.0  # seconds that an upload may take to end after an error
_TICK = 0.2  # seconds between looks for an error


class GoneError(TargetError):
    """The run has ended: another machine has published it, or somebody has removed its work."""


@dataclass(frozen=True, slots=True)
class StoreParts(PackParts):
    """The parts of a run into `place`, which is a `StoreTarget`."""

    place: StoreTarget

    @property
    def target(self) -> StoreTarget:
        return self.place

    def begin(self, count: int | None) -> tuple[PackWork, bool]:
        """The work of the run, and whether this process has made its plan. Raises as `PackParts.work`."""
        target = self.target
        while True:
            if target.run is not None or target.pull():
                work = self.stored(count)
                if work is None:
                    raise TargetError(f"{target.url}.partial/ holds work of another version of iofast")
                return work, False
            target.check_new()
            with target:
                work = self._begin(count)
            if target.push():
                return work, True

    def work(self, count: int | None) -> PackWork:
        """The work of the run, which goes on as long as the store has its plan. Raises `GoneError`."""
        if self.target.find() != self.target.run:
            raise GoneError(f"{self.target.url}: the run has ended; another machine may have published it")
        work = self.stored(count)
        if work is None:
            raise GoneError(f"{self.target.url}: the plan is lost")
        return work

    def stored_parts(self, count: int) -> dict[int, PackPart]:
        """The parts that the store has, by number."""
        objects = self.target.objects()
        every = (PackPart(number, count) for number in range(1, count + 1))
        return {each.number: each for each in every if self._manifest(each).name in objects}

    def is_stored(self, part: PackPart) -> bool:
        """Whether the store has a part by now."""
        return self.target.has(self._manifest(part).name)

    def reconcile(self, count: int, stored: Iterable[int]) -> list[PackPart]:
        """Parts that are begun or finished here and not stored. Remove those that the store has lost."""
        here, there = list[PackPart](), set(stored)
        for part in (PackPart(number, count) for number in range(1, count + 1)):
            path = part.path(self.place)
            if part.number in there:
                continue
            if beside(path, _SENT).exists():
                for each in (*self._files(part), self._manifest(part), beside(path, _SENT)):
                    each.unlink(missing_ok=True)
            elif self._manifest(part).exists() or beside(path, ".partial").exists():
                here.append(part)
        return here

    def send(self, part: PackPart, waiting: Uploads | None = None) -> None:
        """Store a finished part: its manifest last. Its shards here lose their bytes."""
        check = None if waiting is None else waiting.check_stop
        for file in self._files(part):
            if file.exists():
                self.target.send(file, check)
        manifest = self._manifest(part)
        self.target.send(manifest)
        beside(part.path(self.place), _SENT).touch()
        make_sparse(manifest, read_manifest(part.path(self.place)))
        if self.target.find() != self.target.run:  # ended meanwhile: nobody else would remove these
            self.target.publisher.remove(f"{self.target.prefix}/{each.name}" for each in (*self._files(part), manifest))
            raise GoneError(f"{self.target.url}: the run has ended; another machine may have published it")

    def fetch(self, parts: Iterable[PackPart]) -> None:
        """Bring those of the parts that are stored: the small files, and shards of their size without bytes."""
        objects = self.target.objects()
        wanted = list[ObjectInfo]()
        for part in parts:
            path = part.path(self.place)
            if beside(path, _SENT).exists():
                mend_sparse(self._manifest(part), read_manifest(path))
            elif self._manifest(part).name in objects:
                shutil.rmtree(beside(path, ".partial"), ignore_errors=True)  # another machine was faster
                names = (beside(path, suffix).name for suffix in (*_SMALL_FILES, MANIFEST_SUFFIX))
                wanted += [objects[name] for name in names if name in objects]
        requests.run(requests.each(self._receive, [each for each in wanted if each.size <= SMALL], _REQUESTS))
        for each in wanted:
            if each.size > SMALL:
                self.target.receive(each, self._local(each))
        for each in wanted:
            if each.key.endswith(MANIFEST_SUFFIX):
                path = self._local(each)
                make_sparse(path, Manifest.from_json(path.read_bytes(), self.target.store.url(each.key)))
                beside(path.with_name(path.name.removesuffix(MANIFEST_SUFFIX)), _SENT).touch()

    async def _receive(self, info: ObjectInfo) -> None:
        self._local(info).write_bytes(await self.target.store.fetch(info.key, info.etag))

    def _local(self, info: ObjectInfo) -> Path:
        return self.place.partial / info.key.rpartition("/")[2]

    def _manifest(self, part: PackPart) -> Path:
        return beside(part.path(self.place), MANIFEST_SUFFIX)

    def _files(self, part: PackPart) -> list[Path]:
        """The shards of a finished part, and the small files beside its manifest."""
        path = part.path(self.place)
        shards = [path.with_name(shard.name) for shard in read_manifest(path).shards]
        return [*shards, *(beside(path, suffix) for suffix in _SMALL_FILES)]


class Uploads:
    """Sends finished parts in a thread, one at a time, while the next part is packed.

    Leaving the block waits for the last one, or after an error ends it. Raises the errors of `StoreParts.send`.
    """

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._queue = queue.SimpleQueue[PackPart | None]()
        self._idle, self._stopped = threading.Event(), threading.Event()
        self._idle.set()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="iofast-uploads", daemon=True)

    def add(self, part: PackPart) -> None:
        """Send a part, after the one before: so the disk holds two parts at most."""
        self._wait()
        self._idle.clear()
        self._queue.put(part)

    def check(self) -> None:
        """Raise the error of an upload."""
        if self._error is not None:
            raise self._error

    def check_stop(self) -> None:
        """End the upload that calls this, if the block was left by an error."""
        if self._stopped.is_set():
            raise InterruptedError("the upload was stopped")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._wait()
        finally:
            self._stopped.set()
            self._queue.put(None)
            self._thread.join(_ENDING)

    def _wait(self) -> None:
        while not self._idle.wait(_TICK):  # in steps: an interrupt should end the wait
            self.check()
        self.check()

    def _work(self) -> None:
        while (part := self._queue.get()) is not None and self._error is None:
            try:
                self._parts.send(part, self)
            except BaseException as error:  # raised by `check`
                self._error = error
            self._idle.set()
