"""A set of shards in an object store, made in a folder of this machine (docs/format.md section 8.1).

The store has the work of the run: plan, listing and finished parts. The folder has a copy of the plan and the listing,
and of each part the small files and shards of full size whose bytes lie in the store alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from iofast import owned
from iofast.containers.container_suffixes import LMDB, WRITTEN
from iofast.containers.locked_folder import LOCK
from iofast.containers.manifest import Manifest
from iofast.containers.publish import PACK_PLAN
from iofast.containers.shard_target import ShardTarget
from iofast.containers.shards import INDEX_SUFFIX, MANIFEST_SUFFIX
from iofast.containers.targets import target_of
from iofast.errors import ContainerError, ObjectConflictError, ObjectMissingError, OptionError, TargetError
from iofast.packing.failures import ERRORS
from iofast.packing.parts import LISTING
from iofast.packing.publication import Publication, Publisher, digest_of
from iofast.remote.store import ObjectInfo, Store
from iofast.remote.urls import WEB, RemotePath

RUN = "run.json"  # the run of the store to which a folder belongs
SMALL = 8 << 20  # bytes of a request, and of a file that is sent as a whole
MOST_COPIED = 5 << 30  # bytes of an object that S3 copies

_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The run whose work is in `<DST>.partial/<id>/`: what the object `plan.json` says.

    `listing` is the ETag of its listing, `replaced` that of the manifest of the set that it replaces ("" without one),
    and `removed` names the other objects of that set.
    """

    id: str
    listing: str
    replaced: str
    removed: tuple[str, ...]
    plan: Mapping[str, Any]

    @classmethod
    def of(cls, text: bytes, where: str) -> Self:
        """From the text of the object. Raises `TargetError`."""
        try:
            value = json.loads(text)
            if value["version"] != _VERSION or not str(value["id"]).isalnum():
                raise ValueError(f"version {value['version']}")
            removed = tuple(map(str, value["removed"]))
            return cls(value["id"], value["listing"], value["replaced"], removed, dict(value["plan"]))
        except (ValueError, KeyError, TypeError) as error:
            raise TargetError(
                f"{where} is damaged, or of another version of iofast ({error!s:.80}): delete its folder to start anew"
            ) from None

    def to_json(self) -> bytes:
        return json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True).encode()


def parse(url: str) -> tuple[Store, str, str]:
    """The store of the folder of a set, its name and its suffix. Raises `OptionError` for other URLs."""
    place = RemotePath.of(url)
    if place.scheme in WEB:
        raise OptionError(f"{place}: a web server takes no files; expected a target in s3://, gs:// or az://")
    folder, name = posixpath.split(place.key)
    target_of(name)  # checks the suffix
    suffix = os.path.splitext(name)[1]
    if suffix == LMDB:
        raise OptionError(
            f"{place}: an LMDB file is not made in an object store: expected {', '.join(WRITTEN[1:])}; or pack it here "
            "and copy it"
        )
    return Store(RemotePath(place.store, folder)), name, suffix


class StoreTarget(ShardTarget):
    """The place of a set in an object store: `url`. `path` is where it is made in `folder`, which this process has
    locked.

    `run` is the run of which the folder has work: `pull` finds it, or `push` begins one.
    """

    run: StoredRun | None = None

    def __init__(self, url: str, folder: Path, *, overwrite: bool = False) -> None:
        self.store, name, suffix = parse(url)
        super().__init__(folder / name, suffix, overwrite=overwrite)
        self.url = self.store.url(name)

    @property
    def going_on(self) -> str:
        """See `Target.going_on`."""
        return f"the same command goes on from there; delete {self.url}.partial/ to start anew"

    @property
    def plan(self) -> str:
        """The key of the plan."""
        return f"{self.path.name}.partial/{PACK_PLAN}"

    @property
    def prefix(self) -> str:
        """The key of the folder of the run's work."""
        if self.run is None:
            raise TargetError(f"{self.url}: no run has begun")
        return f"{self.path.name}.partial/{self.run.id}"

    @property
    def publisher(self) -> Publisher:
        return Publisher(self.store, self.path.name, self.prefix)

    def check_free(self) -> None:
        """The folder is this process's own. `check_new` looks into the store."""

    def check_new(self) -> None:
        """Raise `TargetError` if a set is in the target's place that may not be replaced."""
        if not self.overwrite and (there := self._found(self.path.name + MANIFEST_SUFFIX)) is not None and there.size:
            raise TargetError(f"{self.url} exists already: choose another name, or give overwrite=True")

    def find(self) -> StoredRun | None:
        """The run that the store has."""
        try:
            return StoredRun.of(self.store.get(self.plan), self.store.url(self.plan))
        except ObjectMissingError:
            return None

    def pull(self) -> bool:
        """Bring plan and listing from the store into the folder. False if the store has no run."""
        self.run = self.find()
        if not (self.partial / LOCK).exists():  # removing it was interrupted
            shutil.rmtree(self.partial, ignore_errors=True)
        if self.run is None and not self.partial.exists():
            return False
        try:
            mine = StoredRun.of((self.partial / RUN).read_bytes(), "")
        except (OSError, TargetError):
            mine = None
        if mine != self.run or self.run is None:
            with self:
                self.clear()
                if self.run is not None:
                    self._download_plan(self.run)
        return self.run is not None

    def push(self) -> bool:
        """Store the plan and the listing of the folder. False if another machine was faster.

        Work of other runs is removed from the store.
        """
        replaced, removed = self._old()
        plan = json.loads((self.partial / PACK_PLAN).read_bytes())
        id = secrets.token_hex(8)
        listing = f"{self.path.name}.partial/{id}/{LISTING}"
        run = StoredRun(id, self.store.put_file(listing, self.partial / LISTING), replaced, removed, plan)
        try:
            self.store.put_bytes(self.plan, run.to_json(), if_none_match=True)
        except ObjectConflictError:
            if self.find() != run:
                self.store.delete(listing)
                return False
        self.run = run
        with self:
            self.note(RUN, json.loads(run.to_json()))
        self.publisher.remove(key for key in self.publisher.work() if key not in (self.plan, listing))
        return True

    def objects(self) -> dict[str, ObjectInfo]:
        """The objects of the run by name."""
        return {posixpath.basename(each.key): each for each in self.store.list(self.prefix)}

    def has(self, name: str) -> bool:
        """Whether the run has an object."""
        return self._found(f"{self.prefix}/{name}") is not None

    def send(self, path: Path, waiting: Callable[[], object] | None = None) -> str:
        """Make a file an object of the run, and return its ETag."""
        key, size = f"{self.prefix}/{path.name}", path.stat().st_size
        if size <= SMALL:
            return self.store.put_bytes(key, path.read_bytes())
        if size > MOST_COPIED:
            raise TargetError(
                f"{path.name} has {size:,} bytes: expected at most 5 GiB, because an object store copies no larger "
                "object; make smaller shards"
            )
        return self.store.put_file(key, path, waiting)

    def receive(self, info: ObjectInfo, path: Path) -> None:
        """Bring an object into a file."""
        with owned.writing(path, 0o600) as file:
            for start in range(0, info.size, SMALL):
                stop = min(start + SMALL, info.size)
                file.write(self.store.get_range(info.key, start, stop, info.etag))

    def publish(
        self,
        names: Mapping[str, str] | Sequence[str] | None = None,
        replaced: Sequence[str] = (),  # noqa: ARG002 - only of sets in folders
    ) -> None:
        """Publish the set in the store: `names` maps staged names to final ones, the manifest last."""
        if not isinstance(names, Mapping) or self.run is None:
            raise TargetError(f"{self.url}: a set is published by its staged names, in a run")
        described = [self.path.name + INDEX_SUFFIX, self.path.name + MANIFEST_SUFFIX]
        errors = self.path.with_name(self.path.name + ERRORS)
        lists = [errors.name] if errors.exists() else []
        for path in [*map(self.stage, described), *map(self.path.with_name, lists)]:
            self.send(path)
        found = self.objects()
        own = {**names, **dict(zip(lists, lists, strict=True))}
        copies = [(staged, name, found[staged].size if staged in found else -1) for staged, name in own.items()]
        copies.remove(next(each for each in copies if each[1] == described[1]))
        digest = digest_of(self.stage(described[1]).read_bytes())
        publication = Publication(tuple(copies), self.run.removed, self.run.replaced, digest)
        if not self.publisher.is_published(publication):  # else another machine was faster
            publication = self.publisher.begin(publication)
            self.publisher.carry_out(publication)
        for name in described:
            os.replace(self.stage(name), self.path.with_name(name))
        self._clean(publication)

    def republish(self, publication: Publication) -> None:
        """Complete a publication that an earlier run has begun."""
        self.publisher.carry_out(publication)
        self.receive_set()
        self._clean(publication)

    def receive_set(self) -> None:
        """Bring the published index, manifest and lists into the folder, and shards of their size without bytes."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.partial)
        for suffix in (INDEX_SUFFIX, ERRORS, MANIFEST_SUFFIX):
            info = self._found(self.path.name + suffix)
            path = self.path.with_name(self.path.name + suffix)
            path.unlink(missing_ok=True)
            if info is not None:
                path.write_bytes(self.store.get(info.key))
        manifest = self.path.with_name(self.path.name + MANIFEST_SUFFIX)
        if not manifest.exists() or not manifest.stat().st_size:
            raise TargetError(f"{self.url}.partial/ was removed by another program, and there is no finished set")
        make_sparse(manifest, Manifest.from_json(manifest.read_bytes(), self.store.url(manifest.name)))

    def _clean(self, publication: Publication) -> None:
        """Remove the rest of the old set and the work of the run, unless another machine has done so."""
        if self.publisher.begun() is not None:  # else there may be a newer set already
            self.publisher.remove_obsolete(publication)
        self.publisher.remove_work()
        if self.find() == self.run:
            self.store.delete(self.plan)
        self.publisher.end()

    def _old(self) -> tuple[str, tuple[str, ...]]:
        """`StoredRun.replaced` and `removed`, of the set that is in the place now."""
        beside = tuple(self.path.name + suffix for suffix in (INDEX_SUFFIX, ERRORS))
        there = self._found(self.path.name + MANIFEST_SUFFIX)
        if there is None:
            return "", beside
        shards: list[str] = []
        with contextlib.suppress(ContainerError, ObjectMissingError):  # shards of a damaged manifest are unknown
            manifest = Manifest.from_json(self.store.get(there.key), self.store.url(there.key))
            shards = [shard.name for shard in manifest.shards if self.owns(shard.name)]
        return there.etag, (*beside, *shards)

    def _download_plan(self, run: StoredRun) -> None:
        info = self._found(f"{self.prefix}/{LISTING}")
        if info is None or info.etag != run.listing:
            if self.publisher.begun() is not None:  # published, and partly removed
                return
            raise TargetError(f"{self.store.url(self.prefix)}/{LISTING} is not the run's listing; {self.going_on}")
        self.receive(info, self.partial / LISTING)
        self.note(PACK_PLAN, dict(run.plan))
        self.note(RUN, json.loads(run.to_json()))

    def _found(self, key: str) -> ObjectInfo | None:
        try:
            return self.store.head(key)
        except ObjectMissingError:
            return None


def make_sparse(manifest_path: Path, manifest: Manifest) -> None:
    """Give each shard of a set its size without its bytes, so that index and manifest can be read alone."""
    for shard in manifest.shards:
        with manifest_path.with_name(shard.name).open("wb") as file:
            file.truncate(shard.size)


def mend_sparse(manifest_path: Path, manifest: Manifest) -> None:
    """Repeat `make_sparse` if it was interrupted."""
    for shard in manifest.shards:
        path = manifest_path.with_name(shard.name)
        if not path.exists() or path.stat().st_size != shard.size:
            make_sparse(manifest_path, manifest)
            return
