"""Publish a set in an object store: copies under the final names, the manifest last (docs/format.md section 8.1).

Every step can be repeated, by any machine. A set becomes visible with its manifest, which is written under a condition,
so that no other writer's set is replaced unseen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Self

from iofast.bars import open_bar
from iofast.containers.shards import MANIFEST_SUFFIX
from iofast.errors import ObjectConflictError, ObjectMissingError, TargetError
from iofast.remote import requests
from iofast.remote.store import ObjectInfo, Store

MARKER = "publishing"
REQUESTS = 16  # copies or removals in flight at once
_TOGETHER = 1000  # objects that one request removes
_TRIES = 3  # another machine may publish the same set at the same time


@dataclass(frozen=True, slots=True)
class Publication:
    """What is to be published, as the marker in `<DST>.partial/<run>/` has it.

    `copies`: (name there, final name, bytes), without the manifest. `removed`: objects beside DST that are removed
    last. `replaced`: ETag of the manifest of the old set, "" without one. `digest`: SHA-256 of the new manifest.
    """

    copies: tuple[tuple[str, str, int], ...]
    removed: tuple[str, ...]
    replaced: str
    digest: str

    @classmethod
    def of(cls, text: bytes, where: str) -> Self:
        """From the text of the marker. Raises `TargetError`."""
        try:
            value = json.loads(text)
            copies = tuple((str(staged), str(name), int(size)) for staged, name, size in value["copies"])
            return cls(copies, tuple(map(str, value["removed"])), str(value["replaced"]), str(value["digest"]))
        except (ValueError, KeyError, TypeError) as error:
            raise TargetError(f"{where} is damaged: {error!r:.80}") from None

    def to_json(self) -> bytes:
        """The text of the marker."""
        return json.dumps(asdict(self), sort_keys=True).encode()


def digest_of(manifest: bytes) -> str:
    """`Publication.digest`."""
    return hashlib.sha256(manifest).hexdigest()


@dataclass(frozen=True, slots=True)
class Publisher:
    """Publishes the set `name`; `store` has its folder, and `prefix` is the key of the run's objects there."""

    store: Store
    name: str
    prefix: str

    @property
    def manifest(self) -> str:
        """The final key of the manifest."""
        return self.name + MANIFEST_SUFFIX

    @property
    def _marker(self) -> str:
        return f"{self.prefix}/{MARKER}"

    def begin(self, publication: Publication) -> Publication:
        """Store the marker, or return that of another machine. Raises `TargetError` if a foreign object is in the way.

        From here on the publication is completed, never given up.
        """
        begun = self.begun()
        if begun is not None:
            return begun
        found = self._look([name for _, name, _ in publication.copies])
        taken = [info.key for info in found if info is not None and info.key not in publication.removed]
        try:
            if not taken:
                self.store.put_bytes(self._marker, publication.to_json(), if_none_match=True)
                return publication
        except ObjectConflictError:
            pass
        begun = self.begun()  # of another machine, which has made copies since
        if begun is None:
            if self.is_published(publication):
                return publication
            raise TargetError(f"{self.store.url(taken[0])} exists already and is no part of this set: move it")
        return begun

    def begun(self) -> Publication | None:
        """The publication that an earlier run has begun."""
        try:
            return Publication.of(self.store.get(self._marker), self.store.url(self._marker))
        except ObjectMissingError:
            return None

    def carry_out(self, publication: Publication) -> None:
        """Copy everything, then write the manifest. Raises `TargetError` if another writer has made a set there."""
        failed = ""
        for _ in range(_TRIES):
            if self.is_published(publication):
                return
            try:
                manifest = self.store.get(f"{self.prefix}/{self.manifest}")
                present = self._hide(publication)
                self._copy(publication.copies)
                if present:
                    self.store.put_bytes(self.manifest, manifest, if_match=present)
                else:
                    self.store.put_bytes(self.manifest, manifest, if_none_match=True)
            except (ObjectMissingError, ObjectConflictError) as error:  # unless another machine was faster
                failed = str(error)
        if not self.is_published(publication):
            raise TargetError(f"{self.store.url(self.name)} cannot be published: {failed}")

    def is_published(self, publication: Publication) -> bool:
        """Whether the manifest in the final place is the new one."""
        try:
            return digest_of(self.store.get(self.manifest)) == publication.digest
        except ObjectMissingError:
            return False

    def remove_obsolete(self, publication: Publication) -> None:
        """Remove the rest of the old set."""
        new = {name for _, name, _ in publication.copies}
        self.remove(name for name in publication.removed if name not in new)

    def remove_work(self) -> None:
        """Remove the work of the run, except the marker."""
        self.remove(key for each in self.store.list(self.prefix) if (key := each.key) != self._marker)

    def end(self) -> None:
        """Remove the marker: everything is done."""
        self.store.delete(self._marker)

    def work(self) -> list[str]:
        """The keys of all objects in `<DST>.partial/`, of other runs, too."""
        return [each.key for each in self.store.list(f"{self.name}.partial")]

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        names = list(keys)
        together = [names[start : start + _TOGETHER] for start in range(0, len(names), _TOGETHER)]
        requests.run(requests.each(self.store.remove, together, REQUESTS))

    def _hide(self, publication: Publication) -> str:
        """Empty the manifest of the old set. Returns the ETag of the object that the new manifest replaces, or ""."""
        (there,) = self._look([self.manifest])
        if there is None:
            return ""
        if there.size == 0:
            return there.etag
        if there.etag != publication.replaced:
            raise ObjectConflictError(f"{self.store.url(self.manifest)} was written by another program meanwhile")
        return self.store.put_bytes(self.manifest, b"", if_match=there.etag)

    def _copy(self, copies: Sequence[tuple[str, str, int]]) -> None:
        async def copied(each: tuple[str, str, int]) -> None:
            staged, name, size = each
            await self.store.duplicate(f"{self.prefix}/{staged}", name)
            found = await self.store.look(name)
            if found.size != size:
                raise ObjectConflictError(f"{self.store.url(name)}: expected {size} bytes, found {found.size}")

        with open_bar(len(copies), " files", "publishing", delay=1) as bar:
            requests.run(requests.each(copied, copies, REQUESTS, bar.update))

    def _look(self, keys: Sequence[str]) -> list[ObjectInfo | None]:
        """Size and version of each object, None if there is none."""

        async def look(key: str) -> ObjectInfo | None:
            try:
                return await self.store.look(key)
            except ObjectMissingError:
                return None

        return requests.run(requests.each(look, keys, REQUESTS))
