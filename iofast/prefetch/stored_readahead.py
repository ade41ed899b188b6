"""Readahead from an object store: a thread brings the blocks of coming batches before they are needed.

Contract: it changes no result. Whatever it did not bring is fetched when it is read. It ends with the last batch, with
`close`, with its owner, and with the interpreter.

The bytes of the coming batches, up to a budget, show which blocks are dense: a block whose records are mostly needed
soon is brought whole. Of a sparse block (a full shuffle, or the first batch of a large window) only the records are
asked for, early, and the block is brought when nothing else is to be done and the cache has room for it. A batch waits
until its records have been decided on, so that no thread fetches a whole block for one of them.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.containers.any_bytes import StoredPlaces
from iofast.containers.base import Located, Reader
from iofast.errors import StorageError
from iofast.mirror import cache, fetching
from iofast.mirror.copies import BLOCK
from iofast.mirror.fetching import Place
from iofast.mirror.stored import StoredObject
from iofast.prefetch.threads import NEVER, Follower, Plan
from iofast.remote import requests

# (batch, few) to the number of this rank's rows, which come first, and the places of every field read
Locate = Callable[[int, bool], tuple[int, Sequence[Located]]]
Block = tuple[str, int]  # URL, number

DEPTH = 256  # batches
BUDGET = 256 << 20  # bytes of records whose blocks are known
DENSE = 8  # a block is dense if at least this part of it is needed within the budget
AHEAD = 32  # blocks on their way, of which `fetching` has half in flight
EARLY = 32 << 20  # bytes of records that were asked for early and are not used yet
SPARSE = 4096  # of them that wait
LOOKS = 8  # records that represent a batch
FILLING = 4  # blocks on their way, if all of them are sparse
WARM = (8, 32)  # so many batches in a row were here; then one of so many is looked at, until something is evicted

_log = logging.getLogger("iofast")
_FILES = 32  # objects that are open at a time
_WAIT_S = 0.001


def spaced(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return up to `LOOKS` of the values, evenly spaced."""
    return values[np.linspace(0, len(values) - 1, min(LOOKS, len(values))).astype(np.intp)]


class StoredReadahead(Follower):
    """Bring what `batches` need, ahead of the consumer.

    `located_of(batch, few)` returns the places in `reader` of a batch's payloads, of all ranks of this machine, or of a
    `few` of its rows. The thread calls it, so it must not keep this object alive. The loader has up to `depth` batches
    in the making: their threads block in `wait`, so these batches are decided on even beyond the budget.
    """

    def __init__(self, reader: Reader, located_of: Locate, batches: range, depth: int) -> None:
        self._blocks = BlockPlan(reader, located_of, batches, depth)
        super().__init__(self._blocks)

    def wait(self, batch: int) -> None:
        """Wait until it is decided how the records of `batch` are brought.

        Raises the `StorageError` that ended the readahead when its patience ended: another try would take as long.
        """
        while batch >= self._blocks.decided and self._blocks.wanted < NEVER:
            time.sleep(_WAIT_S)
        error = self.error
        if isinstance(error, StorageError) and error.was_patient:
            raise error.again()


class _Coming(NamedTuple):
    """A batch within the budget: number of this rank's rows, places of each field, bytes of each block and in all."""

    number: int
    own: int
    places: list[StoredPlaces]
    needs: dict[Block, int]
    size: int


class BlockPlan(Plan):
    """The choice of what to bring next."""

    tick = 0.05

    def __init__(self, reader: Reader, located_of: Locate, batches: range, depth: int) -> None:
        super().__init__()
        self._reader, self._located_of, self._depth = reader, located_of, depth
        self._cache = own = cache.current()
        own.add_needs(self)
        self._first, self._stop = batches.start, batches.stop
        self._asked = self._next = batches.start  # the consumer's batch, and the first one that is not located
        self.decided = batches.start  # the first batch that is not decided on
        self._budget = min(BUDGET, own.limit // 2)
        self._located: deque[_Coming] = deque()
        self._undecided: deque[_Coming] = deque()
        self._needs: dict[Block, int] = {}  # bytes of the located batches
        self._size = 0
        self._flying: dict[Block, Future[bool]] = {}
        self._early: deque[tuple[int, list[Place], int]] = deque()  # batch, places, bytes
        self._sparse: dict[Block, Callable[[], StoredObject]] = {}
        self._warm, self._evictions = 0, own.evictions()

    def blocks(self) -> set[Block]:
        """The blocks that coming batches need."""
        return set(self._needs)

    def reach(self, batch: int) -> None:
        self._asked = max(self._asked, batch)
        while self._located and self._located[0].number < self._asked:
            done = self._located.popleft()
            self._size -= done.size
            for block, size in done.needs.items():
                self._needs[block] -= size
                if not self._needs[block]:
                    del self._needs[block]
        while self._early and self._early[0][0] < self._asked:
            requests.run(fetching.forget(self._early.popleft()[1]))

    def advance(self) -> bool:
        """Locate batches within the budget, and bring what they need, as far as not too much is on its way."""
        self._flying = {block: future for block, future in self._flying.items() if not future.done()}
        self._locate()
        while self._undecided and self._is_due():
            self._decide(self._undecided[0])
            self._undecided.popleft()
        while self._sparse and len(self._flying) < FILLING and self._cache.used() + BLOCK <= self._cache.limit:
            block = next(iter(self._sparse))
            self._bring(block, self._sparse.pop(block)())
        self.decided = self._undecided[0].number if self._undecided else self._next
        if self.decided >= self._stop and not (self._sparse or self._early or self._flying):
            self.wanted = NEVER
        return self._next == self._first + 1 < self._stop

    def close(self) -> None:
        """Drop what was asked for early; the cache need not keep blocks any more."""
        if self.error is not None and not self.stop:
            _log.warning("reading ahead ended: %s", self.error)
        self._cache.drop_needs(self)
        while self._early:
            requests.run(fetching.forget(self._early.popleft()[1]))

    def _is_due(self) -> bool:
        """Whether the consumer is near the first undecided batch, or more may be on its way and much is located.

        Only then the dense ones of its blocks are known. At the far end of what is located, blocks of a window that has
        just come into view seem sparse: a slow consumer's records were read singly, and again with their blocks.
        """
        first = self._undecided[0].number
        if first <= self._asked + self._depth:
            return True
        has_room = len(self._flying) < AHEAD and sum(size for _, _, size in self._early) < EARLY
        is_far = self._next == self._stop or self._next - first > DEPTH // 2
        return has_room and (is_far or 2 * sum(each.size for each in self._undecided) > self._budget)

    def _locate(self) -> None:
        stop = min(self._stop, self._asked + DEPTH)
        self._next = max(self._next, self._asked)
        while self._next < stop and (self._size < self._budget or self._next <= self._asked + self._depth):
            if self._is_warm():
                self._next += 1
                continue
            own, places = self._places(few=False)
            needs = dict[Block, int]()
            for block, size in (item for each in places for item in _needs(each)):
                needs[block] = needs.get(block, 0) + size
                self._needs[block] = self._needs.get(block, 0) + size
            coming = _Coming(self._next, own, places, needs, sum(needs.values()))
            self._size += coming.size
            self._located.append(coming)
            self._undecided.append(coming)
            self._next += 1
            if coming.number == self._first:  # the consumer waits for it
                return

    def _is_warm(self) -> bool:
        """Whether the next batch is taken to be here, after a look at a few of its rows at most."""
        if self._cache.evictions() != self._evictions:
            self._warm, self._evictions = 0, self._cache.evictions()
            return False
        if self._warm >= WARM[0] and self._next % WARM[1]:
            return True
        is_here = all(map(_are_here, self._places(few=True)[1]))
        self._warm = self._warm + 1 if is_here else 0
        return is_here

    def _places(self, *, few: bool) -> tuple[int, list[StoredPlaces]]:
        own, located = self._located_of(self._next, few)
        return own, [places for each in located for places in self._reader.stored_places(each)]

    def _decide(self, coming: _Coming) -> None:
        """Bring the dense blocks of a batch, and ask early for its records in sparse ones."""
        # by the first batch alone, because the consumer waits for it
        needs = coming.needs if coming.number == self._first else self._needs
        early = list[Place]()
        for places in coming.places:
            for file, stored in _opened(places):
                early += self._sort(stored, places, file, needs, coming.own)
        if early:
            requests.run(fetching.ask_early(early))
            self._early.append((coming.number, early, sum(stop - start for _, start, stop in early)))

    def _sort(
        self, stored: StoredObject, places: StoredPlaces, file: int, needs: dict[Block, int], own: int
    ) -> list[Place]:
        """Bring the missing dense blocks of one object. Returns the records in sparse ones, of the first `own` rows."""
        rows = np.flatnonzero((places.file == file) & (places.length > 0))
        starts = places.offset[rows]
        stops = starts + places.length[rows]
        early, evictions = list[Place](), stored.cache.evictions()
        has_room = self._cache.used() + BLOCK <= self._cache.limit
        for row, start, stop in zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True):
            missing = [
                (stored.url, number)
                for number in range(start // BLOCK, (stop - 1) // BLOCK + 1)
                if not stored.copy.is_here(number, evictions)
            ]
            sparse = [
                each
                for each, (first, end) in ((each, stored.copy.span(each[1])) for each in missing)
                if each not in self._flying and needs.get(each, 0) * DENSE < end - first
            ]
            if sparse:
                if row < own:
                    early.append((stored.source, start, stop))
                if has_room and len(self._sparse) < SPARSE:
                    self._sparse |= {each: lambda: places.open([file])[0] for each in sparse}
            else:
                for each in missing:
                    self._bring(each, stored)
        return early

    def _bring(self, block: Block, stored: StoredObject) -> None:
        if block not in self._flying:
            self._flying[block] = future = requests.start(fetching.bring([stored.block(block[1])]))
            future.add_done_callback(lambda _: self.wake())
        self._sparse.pop(block, None)


def _needs(places: StoredPlaces) -> Iterator[tuple[Block, int]]:
    """The blocks of some payloads, each with the bytes of it that they need."""
    rows = np.flatnonzero(places.length > 0)
    start, file = places.offset[rows], places.file[rows]
    stop = start + places.length[rows]
    most = int(((stop - 1) // BLOCK - start // BLOCK).max(initial=0)) + 1  # blocks of one payload
    for number in range(most):
        block = start // BLOCK + number
        size = np.minimum(stop, (block + 1) * BLOCK) - np.maximum(start, block * BLOCK)
        there = size > 0
        keys, own = np.unique(file[there] << 32 | block[there], return_inverse=True)
        sums = np.bincount(own, size[there]).astype(np.int64)
        for key, total in zip(keys.tolist(), sums.tolist(), strict=True):
            yield (places.urls[key >> 32], key & 0xFFFFFFFF), total


def _are_here(places: StoredPlaces) -> bool:
    """Whether the first and last block of each payload are here."""
    for file, stored in _opened(places):
        evictions = stored.cache.evictions()
        own = (places.file == file) & (places.length > 0)
        ends = places.offset[own], places.offset[own] + places.length[own] - 1
        if not all(stored.copy.is_here(byte // BLOCK, evictions) for each in ends for byte in each.tolist()):
            return False
    return True


def _opened(places: StoredPlaces) -> Iterator[tuple[int, StoredObject]]:
    """The objects of some payloads by number; their versions are asked for together."""
    files = np.unique(places.file[places.length > 0]).tolist()
    for first in range(0, len(files), _FILES):
        some = files[first : first + _FILES]
        yield from zip(some, places.open(some), strict=True)
