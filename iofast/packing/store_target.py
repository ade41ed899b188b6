"""The place of a set in an object store: its objects, those of the run that makes it, and those that it replaces."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import posixpath
from dataclasses import asdict
from pathlib import Path
from typing import Any

from iofast.containers.container_suffixes import LMDB, WRITTEN
from iofast.containers.manifest import Manifest
from iofast.containers.shards import MANIFEST_SUFFIX
from iofast.containers.targets import ShardTarget, target_of
from iofast.containers.writer import INDEX_SUFFIX
from iofast.errors import ContainerError, IofastError, ObjectConflictError, ObjectMissingError, OptionError, TargetError
from iofast.packing.options import PackOptions
from iofast.packing.parts import LISTING
from iofast.packing.plan import PackPlan
from iofast.remote.store import ObjectInfo, Store
from iofast.remote.urls import WEB, RemotePath

_log = logging.getLogger("iofast")


_NONE = PackPlan(0, (), "", {})


class StoreTarget(ShardTarget):
    """The place of a set at `url`, which the run `begun` makes. What is made for it here lies in `folder`.

    Raises `OptionError` for options that cannot be had in a store.
    """

    def __init__(self, url: str, folder: Path, options: PackOptions) -> None:
        place = RemotePath.of(url)
        above, name = posixpath.split(place.key)
        if options.on is not None:
            raise OptionError(
                f"on={options.on} needs a local target, found the URL of {name}: run the same command on each node"
            )
        if place.scheme in WEB:
            raise OptionError(f"{place}: a web server takes no files; expected a target in s3://, gs:// or az://")
        target_of(name)  # checks the suffix
        suffix = os.path.splitext(name)[1]
        if suffix == LMDB:
            raise OptionError(
                f"{place}: an LMDB file is not made in an object store: expected {', '.join(WRITTEN[1:])}; or pack it "
                "here and copy it"
            )
        super().__init__(folder / name, suffix, overwrite=options.overwrite)
        self.store = Store(RemotePath(place.store, above))
        self.url = self.store.url(name)
        self.begun = _NONE

    @property
    def going_on(self) -> str:
        return f"the same command goes on from there; delete {self.url}.partial/ and its shards to start anew"

    def key(self, suffix: str) -> str:
        """The key of an object of the set."""
        return self.path.name + suffix

    def work_key(self, name: str = "") -> str:
        """The key of an object of the run `begun`."""
        return f"{self.path.name}.partial/{self.begun.id}/{name}".rstrip("/")

    def get(self, key: str) -> bytes | None:
        """The bytes of an object; None if there is none."""
        with contextlib.suppress(ObjectMissingError):
            return self.store.get(key)
        return None

    def stored_plan(self) -> PackPlan | None:
        """The run that is going on in the store. Raises `TargetError`."""
        key = self.key(".partial/plan.json")
        text = self.get(key)
        try:
            plan = None if text is None else PackPlan.of(json.loads(text))
            if plan is not None and not plan.id:
                raise ValueError("it has no id")
            return plan
        except (ValueError, KeyError, TypeError) as error:
            why = f"is damaged, or of another version of iofast ({error!s:.80})"
            raise TargetError(f"{self.store.url(key)} {why}: delete its folder to start anew") from None

    def is_current(self) -> bool:
        """Whether that is still `begun`: no machine has published its set."""
        now = self.stored_plan()
        return now is not None and now.id == self.begun.id

    def begin(self, begun: PackPlan) -> bool:
        """Begin a run whose listing is in the folder here. False if another machine was faster."""
        self.begun = begun
        self.store.put_file(self.work_key(LISTING), self.partial / LISTING)
        try:
            self.store.put_bytes(
                self.key(".partial/plan.json"), json.dumps(asdict(begun), sort_keys=True).encode(), if_none_match=True
            )
        except ObjectConflictError:
            self.store.delete(self.work_key(LISTING))
            self.begun = _NONE
            return False
        return True

    def sizes(self) -> dict[str, int]:
        """The objects in the folder of the set."""
        return {each.key: each.size for each in self.store.list() if "/" not in each.key}

    def manifest_info(self) -> ObjectInfo | None:
        """Size and version of the manifest; it is empty while its set is replaced."""
        with contextlib.suppress(ObjectMissingError):
            return self.store.head(self.key(MANIFEST_SUFFIX))
        return None

    def manifest(self, etag: str = "") -> Manifest | None:
        """The manifest, if there is a valid one."""
        key = self.key(MANIFEST_SUFFIX)
        with contextlib.suppress(ObjectMissingError, ContainerError):
            return Manifest.from_json(self.store.get(key, etag), self.store.url(key))
        return None

    def replaced_shards(self, old: ObjectInfo | None) -> tuple[str, ...]:
        """The shards of the set whose manifest is `old`. Raises `TargetError` if something else is in its place."""
        if old is not None and not self.overwrite:
            raise TargetError(f"{self.url} exists already: choose another name, or give overwrite=True")
        manifest = None if old is None else self.manifest(old.etag)
        shards = () if manifest is None else tuple(each.name for each in manifest.shards if self.owns(each.name))
        free = {*shards, self.key(INDEX_SUFFIX), self.key(MANIFEST_SUFFIX)} if self.overwrite else ()
        found = next((each for each in self.taken([*self.sizes()]) if each not in free), None)
        if found is not None:
            raise TargetError(
                f"{self.store.url(found)} exists already and is no part of a set {self.path.name}: move it, or "
                "choose another name"
            )
        return shards

    def hide_replaced(self) -> bool:
        """Empty the manifest of the set that is replaced: stores write, but do not delete, on a condition.

        Returns whether there is no manifest now.
        """
        found = self.manifest_info()
        if found is not None and found.size and found.etag == self.begun.replaces:
            with contextlib.suppress(ObjectConflictError):
                self.store.put_bytes(self.key(MANIFEST_SUFFIX), b"", if_match=found.etag)
            found = self.manifest_info()
        return found is None or not found.size

    def put_manifest(self, manifest: Manifest) -> None:
        """Publish the set. Raises `TargetError` if another one is in its place."""
        old = self.manifest_info()
        if old is None or not old.size:
            condition: dict[str, Any] = {"if_none_match": True} if old is None else {"if_match": old.etag}
            with contextlib.suppress(ObjectConflictError):  # another machine was faster
                self.store.put_bytes(self.key(MANIFEST_SUFFIX), manifest.to_json(), **condition)
        if self.manifest() != manifest:
            raise TargetError(f"{self.url} was made by another run meanwhile")

    def clean_up(self, manifest: Manifest) -> None:
        """Remove what is left of the replaced set and of this run: the set is published, so errors are a warning.

        The listing goes first: a plan without one is that of a run that has ended.
        """
        store, plan = self.store, self.key(".partial/plan.json")
        try:
            is_current = self.is_current()
            if is_current:
                store.delete(*{*self.begun.shards} - {shard.name for shard in manifest.shards})
            store.delete(self.work_key(LISTING))
            left = store.list(self.key(".partial") if is_current else self.work_key())
            store.delete(*(each.key for each in left if each.key != plan))
            if is_current:
                store.delete(plan)
        except IofastError as error:
            rest = f"run the same command again, or delete {self.url}.partial/"
            _log.warning("%s is published, but cleaning up failed: %s; %s", self.url, error, rest)
