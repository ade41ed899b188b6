"""Fill the cache of stored objects ahead of a run, and look after it and the copies of Parquet files."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from iofast.containers.any_bytes import StoredPlaces
from iofast.containers.container_suffixes import ARROW
from iofast.errors import OptionError
from iofast.foreign import plain_copies
from iofast.mirror import cache, fetching
from iofast.mirror.copies import BLOCK, SparseCopy, description_of
from iofast.mirror.fetching import WantedBlock
from iofast.mirror.locks import try_lock, unlock
from iofast.opening import open_reader
from iofast.remote import requests
from iofast.remote.urls import is_url
from iofast.selection import of_split

_RECORDS = 4096  # whose places are looked up together
_BLOCKS = 32  # that are brought together


class Staged(NamedTuple):
    """What `stage` did: records whose bytes are in the cache now, and bytes that were fetched for them."""

    records: int
    fetched: int


class CachedObject(NamedTuple):
    """A copy in the cache: file, URL, size in bytes, bytes that are here, time of the last opening, in use or not."""

    path: Path
    url: str
    size: int
    here: int
    opened: float
    in_use: bool


def stage(path: str, split: str | None = None, done: Callable[[int, int], object] | None = None) -> Staged:
    """Bring all bytes of a container's records into the cache, or those of a split.

    `done` is called with records and fetched bytes since the last call. Raises as `open_reader` does, `OptionError` if
    the cache has no room, and `StorageError`.
    """
    if not is_url(path):
        raise OptionError(f"{path} is no URL: only what is in an object store is staged")
    fetched, evictions = 0, cache.current().evictions()
    with open_reader(path) as reader:
        selected = of_split(reader.manifest, split or "all", path)
        for start in range(0, len(selected), _RECORDS):
            indices = selected.resolve(np.arange(start, min(start + _RECORDS, len(selected)), dtype=np.int64))
            located = [reader.places(indices, name) for name in reader.manifest.fields]
            places = [found for each in located for found in reader.stored_places(each)]
            blocks = {place: block for each in places for place, block in _blocks(each)}
            now = _bring([*blocks.values()])
            fetched += now
            if done is not None:
                done(len(indices), now)
            if cache.current().evictions() != evictions:  # of what was brought before
                raise _no_room(cache.current())
        return Staged(len(selected), fetched)


def _blocks(places: StoredPlaces) -> Iterator[tuple[tuple[str, int], WantedBlock]]:
    """The blocks of some payloads, by URL and number."""
    for file in np.unique(places.file[places.length > 0]).tolist():
        rows = (places.file == file) & (places.length > 0)
        first, last = places.offset[rows] // BLOCK, (places.offset[rows] + places.length[rows] - 1) // BLOCK
        (stored,) = places.open([file])
        for number in {block for a, b in zip(first.tolist(), last.tolist(), strict=True) for block in range(a, b + 1)}:
            yield (stored.url, number), stored.block(number)


def _bring(blocks: list[WantedBlock]) -> int:
    """Bring blocks that are missing; returns how many bytes."""
    missing = [each for each in blocks if not each.copy.is_here(each.block, each.cache.evictions())]
    for start in range(0, len(missing), _BLOCKS):
        some = missing[start : start + _BLOCKS]
        if not requests.run(fetching.bring(some)):
            raise _no_room(some[0].cache)
    return sum(stop - start for start, stop in (each.copy.span(each.block) for each in missing))


def _no_room(own: cache.BlockCache) -> OptionError:
    return OptionError(
        f"the cache in {own.folder or 'memory'} has no room: it may take {own.limit:,} bytes and has {own.used():,}; "
        f"{cache.SIZE} sets how much it may take"
    )


def objects() -> Iterator[CachedObject]:
    """The copies in the cache, the one that was opened longest ago first, then copies of Parquet files."""
    for path, status in cache.current().files():
        with contextlib.suppress(OSError), _opened(path) as copy:
            spans = [copy.span(block) for block, _ in copy.stored()]
            here = sum(stop - start for start, stop in spans)
            yield CachedObject(path, copy.url, copy.size, here, status.st_mtime, cache.is_open(path))
    for path, name in plain_copies.copies():
        with contextlib.suppress(OSError):
            status = path.stat()
            yield CachedObject(path, name, status.st_size, status.st_size, status.st_mtime, in_use=False)


def verify(each: CachedObject) -> list[int]:
    """Compare all blocks of a copy with their checksums; those that differ are dropped, and returned.

    Copies of Parquet files have none.
    """
    if each.path.suffix == ARROW:
        return []
    with _opened(each.path) as copy:
        broken = []
        for block, _ in copy.stored():
            if not copy.is_whole(block) and try_lock(copy.fd, block):
                if copy.has_state(block) and not copy.is_whole(block):  # nobody evicted or stored it meanwhile
                    copy.hide(block)
                    broken.append(block)
                unlock(copy.fd, block)
        freed = sum(stop - start for start, stop in map(copy.span, broken))
        asyncio.run(cache.current().count(-freed))
        return broken


def clear(each: CachedObject) -> None:
    """Remove a copy. Processes that have it open keep it until they close it."""
    with contextlib.suppress(FileNotFoundError):
        each.path.unlink()
        if not each.in_use and each.path.suffix != ARROW:
            asyncio.run(cache.current().count(-each.here))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[SparseCopy]:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = description_of(fd)
    if found is None:
        os.close(fd)
        raise OSError(f"{path} is no copy")
    yield SparseCopy(fd, str(found["url"]), int(str(found["size"])))
