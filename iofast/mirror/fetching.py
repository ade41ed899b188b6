"""Bring blocks of objects into their copies. All of it runs in the loop of `remote.requests`, one task per block.

Of several processes the one that has locked a block fetches it; the others look again now and then. If it is killed,
its lock is gone, and another one fetches the block.
"""

import asyncio
import time
from collections.abc import Collection
from typing import Any, NamedTuple

from iofast.mirror.cache import STUCK, BlockCache
from iofast.mirror.copies import SparseCopy
from iofast.mirror.locks import try_lock, unlock
from iofast.remote.store import Store

_AT_ONCE = 16  # blocks in flight: 64 MiB of memory; at 30 ms latency enough for 2 GB/s
_PLACES = 64  # single places in flight, each with a connection
_LOOK = (0.002, 0.05)  # first and longest pause between two looks at another process's block


class ObjectVersion(NamedTuple):
    """An object in one version: the store whose place it is, and its ETag."""

    store: Store
    etag: str

    async def read(self, start: int, stop: int) -> memoryview:
        """The bytes [start, stop). Raises as `Store.get_range` does."""
        return await self.store.fetch_range("", start, stop, self.etag)


class WantedBlock(NamedTuple):
    """A block of a copy, and where it comes from."""

    cache: BlockCache
    source: ObjectVersion
    copy: SparseCopy
    block: int


Place = tuple[ObjectVersion, int, int]  # bytes [start, stop) of an object

early: dict[Place, asyncio.Task[memoryview]] = {}  # single places that were asked for ahead, until they are used
_flying: dict[tuple[SparseCopy, int], asyncio.Task[bool]] = {}
_damaged = set[tuple[SparseCopy, int]]()  # those of them that are here and are fetched again
_room = asyncio.Semaphore(_AT_ONCE)
_places = asyncio.Semaphore(_PLACES)


async def ask_early(places: Collection[Place]) -> None:
    """Begin to read places past the cache, for `early`. An error is raised when the place is used."""
    for place in places:
        if place not in early:
            task = early[place] = asyncio.ensure_future(_read(*place))
            task.add_done_callback(_heard)


async def _read(source: ObjectVersion, start: int, stop: int) -> memoryview:
    async with _places:
        return await source.read(start, stop)


async def forget(places: Collection[Place]) -> None:
    """Drop places that were asked for early and not taken."""
    for place in places:
        if (task := early.pop(place, None)) is not None:
            task.cancel()


def _heard(task: asyncio.Task[Any]) -> None:
    """Retrieve an error, else asyncio reports it if nobody waits for the result."""
    if not task.cancelled():
        task.exception()


async def bring(blocks: Collection[WantedBlock]) -> bool:
    """Bring blocks; whether the caches could keep all of them. Raises the first error; the others go on.

    Blocks that still wait for a place in flight would only wait for a failing store once more.
    """
    return all(await asyncio.gather(*(asyncio.shield(_task(each)) for each in blocks)))


async def fetch_again(blocks: Collection[WantedBlock]) -> None:
    """Fetch blocks again as far as they are here, because their bytes were found damaged. Raises as `bring` does.

    That is done once for a block until it is brought anew: bytes that are damaged in the store stay so.
    """
    for each in blocks:
        if each.block not in each.copy.again:
            task = each.copy.again[each.block] = asyncio.ensure_future(_fetch_again(each))
            task.add_done_callback(_heard)
    await asyncio.gather(*(asyncio.shield(each.copy.again[each.block]) for each in blocks))


async def _fetch_again(wanted: WantedBlock) -> None:
    place = wanted.copy, wanted.block
    while place in _flying and place not in _damaged:  # perhaps it has just stored the damaged bytes
        await asyncio.wait([_flying[place]])
    _damaged.add(place)
    if not await asyncio.shield(_task(wanted)):
        wanted.copy.again.pop(wanted.block, None)  # not here, or not replaced: it may be damaged when it comes


def _task(wanted: WantedBlock) -> asyncio.Task[bool]:
    """The task that brings a block, which others may wait for too."""
    place = wanted.copy, wanted.block
    task = _flying.get(place)
    if task is None:
        again = place in _damaged
        task = _flying[place] = asyncio.ensure_future(_bring(wanted, again=again))

        def end(ended: asyncio.Task[bool]) -> None:
            del _flying[place]
            _damaged.discard(place)
            _heard(ended)

        task.add_done_callback(end)
    return task


async def _bring(wanted: WantedBlock, *, again: bool) -> bool:
    cache, copy, block = wanted.cache, wanted.copy, wanted.block
    if not again:
        copy.again.pop(block, None)
    pause, longest = _LOOK
    end = time.monotonic() + STUCK
    while (copy, block) in cache.leaving or not try_lock(copy.fd, block):
        if time.monotonic() > end:  # the process that has it was stopped
            return False
        await asyncio.sleep(pause)
        if not again and copy.is_here(block, cache.evictions()):
            return True
        pause = min(longest, 2 * pause)
    try:
        if again:
            return copy.has_state(block) and await _replace(wanted)
        if copy.has_state(block) and await asyncio.to_thread(copy.is_valid, block):
            return True
        async with _room:
            return await _fetch(wanted)
    finally:
        unlock(copy.fd, block)


async def _fetch(wanted: WantedBlock) -> bool:
    """Fetch and store a block, unless there is no room for it."""
    cache, source, copy, block = wanted
    start, stop = copy.span(block)
    if not await cache.reserve(stop - start, _flying):
        return False
    kept = False
    try:
        data = await source.read(start, stop)
        for _ in range(2):
            try:
                await asyncio.to_thread(copy.store, block, data)
                kept = True
                break
            except OSError:  # the disk is full, earlier than the limit says
                if not await cache.make_room(stop - start, _flying, anyway=True):
                    break
        return kept
    finally:
        if not kept:
            await cache.count(start - stop)


async def _replace(wanted: WantedBlock) -> bool:
    """Fetch a block that is here, and store it over its bytes: those that are right do not change for its readers."""
    cache, source, copy, block = wanted
    start, stop = copy.span(block)
    async with _room:
        data = await source.read(start, stop)
        try:
            await asyncio.to_thread(copy.store, block, data)
        except OSError:  # a full disk; now the block is absent, but its bytes stay for its readers
            await cache.count(0, evictions=1)
            return False
    return True
