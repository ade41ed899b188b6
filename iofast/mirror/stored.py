"""Objects of a store as bytes by position, read through their local copies."""

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from iofast.errors import ObjectConflictError, ObjectMissingError, StorageError
from iofast.meter.traffic import traffic
from iofast.mirror import cache, fetching
from iofast.mirror.copies import BLOCK
from iofast.mirror.fetching import ObjectVersion, WantedBlock
from iofast.remote import requests
from iofast.remote.store import ObjectInfo, Store

_log = logging.getLogger("iofast")
_AT_ONCE = 64  # requests for single places, or for sizes and versions, in flight
_TRIES = 3  # rounds of bringing blocks that are evicted again before they are read


class StoredObject:
    """One version of an object, of `size` bytes, open for reading: by default the present one.

    Raises `ObjectMissingError` and `StorageError`. It belongs to this process.
    """

    def __init__(self, url: str, info: ObjectInfo | None = None) -> None:
        info = info or look([url])[0]
        self.url, self.size, self.source = url, info.size, ObjectVersion(Store.of(url), info.etag)
        self.cache = cache.current()
        try:
            self.copy = self.cache.open(url, info.etag, info.size)
        except OSError:
            self.cache = cache.in_memory()
            self.copy = self.cache.open(url, info.etag, info.size)

    def block(self, number: int) -> WantedBlock:
        """One of its blocks, to be brought."""
        return WantedBlock(self.cache, self.source, self.copy, number)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop), fewer where the object ends."""
        wanted = Wanted(self, start, min(stop, self.size))
        if wanted.start >= wanted.stop:
            return b""
        traffic.was_read(wanted.stop - wanted.start)
        with held([wanted]) as direct:
            return direct[0] if direct else os.pread(self.copy.fd, wanted.stop - wanted.start, wanted.start)


class Wanted(NamedTuple):
    """Bytes of an object, at least one: [start, stop)."""

    object: StoredObject
    start: int
    stop: int

    @property
    def place(self) -> fetching.Place:
        """What `fetching.early` has it under."""
        return self.object.source, self.start, self.stop


def look(urls: Sequence[str]) -> list[ObjectInfo]:
    """Sizes and versions of objects. Raises `ObjectMissingError` and `StorageError`."""
    return requests.run(requests.each(lambda url: Store.of(url).look(), urls, _AT_ONCE))


def stamp(etag: str) -> int:
    """A number of a version, in the place of a time: no time of this century is so small."""
    return int.from_bytes(hashlib.sha256(etag.encode()).digest()[:7], "big")


@contextlib.contextmanager
def held(wanted: Sequence[Wanted]) -> Iterator[dict[int, bytes]]:
    """Make bytes readable in their copies until the block ends.

    Yields those that the cache has no room for, by their number in `wanted`. Raises `ObjectConflictError` for an object
    that has changed, `StorageError`, and `StateError` in a fork.
    """
    caches = {each.object.cache for each in wanted}
    keeps = True
    for attempt in range(_TRIES + 1):
        with contextlib.ExitStack() as stack:
            evictions = {each: stack.enter_context(each.holding()) for each in caches}
            missing = _missing(wanted, evictions)
            if not missing or not keeps or attempt == _TRIES:
                yield _direct(wanted, missing)
                return
        early = {number for number in missing if wanted[number].place in fetching.early}
        blocks = {wanted[n].object.block(block) for n, some in missing.items() if n not in early for block in some}
        keeps = (not blocks or requests.run(fetching.bring(blocks))) and not early


def fetch_again(wanted: Sequence[Wanted]) -> None:
    """Fetch the blocks with these bytes again, as far as they are here, because the bytes were found damaged.

    A connection may have damaged them on their way. Each block is fetched again once until it is brought anew. If the
    store fails, the damage is what is reported.
    """
    spans = [(each.object, range(each.start // BLOCK, (each.stop - 1) // BLOCK + 1)) for each in wanted]
    try:
        requests.run(fetching.fetch_again({own.block(number) for own, numbers in spans for number in numbers}))
    except (ObjectConflictError, ObjectMissingError, StorageError) as error:
        _log.warning("damaged bytes cannot be fetched again: %s", error)


def _missing(wanted: Sequence[Wanted], evictions: dict[cache.BlockCache, int]) -> dict[int, list[int]]:
    """The blocks that are not here, by number in `wanted`; a microsecond for each that is."""
    missing = {}
    for number, (own, start, stop) in enumerate(wanted):
        copy, seen = own.copy, evictions[own.cache]
        first, last = start // BLOCK, (stop - 1) // BLOCK
        if not copy.is_here(first, seen) or last > first:
            absent = [block for block in range(first, last + 1) if not copy.is_here(block, seen)]
            if absent:
                missing[number] = absent
    return missing


def _direct(wanted: Sequence[Wanted], missing: dict[int, list[int]]) -> dict[int, bytes]:
    """The bytes of these places, past the cache."""

    async def one(number: int) -> tuple[int, bytes]:
        place = wanted[number]
        early = fetching.early.pop(place.place, None)
        data = await (early or place.object.source.read(place.start, place.stop))
        return number, bytes(data)

    return dict(requests.run(requests.each(one, [*missing], _AT_ONCE))) if missing else {}
