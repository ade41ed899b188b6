"""The folder of local copies: which are there, how much they may take, and what is evicted.

`<folder>/lock` has two numbers: evictions so far, and bytes in use. Its bytes 0 and 1 are locked by a process that
changes the numbers or evicts. Every reading locks a byte of its own beyond `_HOLDS` (a hold). An eviction first hides
blocks, then counts itself, and then waits until the holds that exist now are gone: a later reading sees that the blocks
are hidden. A hold costs 4 µs and is one for all blocks of a slice, so reading a batch costs the same for any number of
blocks.
"""

import asyncio
import contextlib
import hashlib
import itertools
import logging
import os
import random
import struct
import threading
import time
import weakref
from collections.abc import AsyncIterator, Container, Iterator
from pathlib import Path
from typing import Protocol

from iofast import owned
from iofast.errors import StateError, TargetError
from iofast.mirror.copies import BLOCK, SparseCopy, described, description_of, prepare
from iofast.mirror.locks import locked_elsewhere, try_lock, unlock
from iofast.option import parse_size

FOLDER, SIZE = "IOFAST_CACHE", "IOFAST_CACHE_SIZE"  # variables: a folder, and how many bytes it may take
SUFFIX = ".copy"

_NUMBERS = struct.Struct("<QQ")
_COUNTING, _EVICTING = 0, 1
_HOLDS, _USERS = 1 << 40, 1 << 61  # from here on: a byte for each hold, and for each process that has the folder open
_OPEN = 1 << 40  # the same in a copy: a byte for each process that has it open
_MANY = (1 << 60) - 1
_PART_OF_DISK = 0.8  # of what is free or in use for copies: the default limit
_IN_MEMORY = 1 << 30  # bytes, the default limit without a folder
_AT_A_TIME = 16  # blocks that are evicted together, so that holds are waited for once
STUCK = 10.0  # seconds to wait for another process
_PATIENCE = 0.3  # seconds until an eviction is given up, because something is read for long
_PAUSE = 1.0  # seconds without a further attempt after one that found nothing to evict
_TICK = 0.002


class Needs(Protocol):
    """What coming batches need."""

    def blocks(self) -> set[tuple[str, int]]:
        """URL and number of blocks."""


class BlockCache:
    """The copies in a folder, or in memory without one, which take at most `limit` bytes together.

    It belongs to the process that made it.
    """

    def __init__(self, folder: Path | None, limit: int | None) -> None:
        self.folder, self._pid = folder, os.getpid()
        self._lock, self._watch = _opened_twice(folder)
        self.limit = limit if limit is not None else self._default_limit()
        self._copies: weakref.WeakValueDictionary[str, SparseCopy] = weakref.WeakValueDictionary()
        self._numbers = itertools.count(random.SystemRandom().getrandbits(60))
        self._hopeless_until = 0.0
        self._guard = threading.Lock()  # of the weak collections
        self._evicting = asyncio.Lock()
        self.leaving = set[tuple[SparseCopy, int]]()  # blocks that are being evicted
        self._needs: weakref.WeakSet[Needs] = weakref.WeakSet()
        own = self._lock_any(self._lock, _USERS)
        if try_lock(self._lock, _COUNTING):
            # alone: nothing is in flight, and killed processes may have left a wrong number
            if folder is not None and locked_elsewhere(self._watch, _USERS) <= {own}:
                used = sum(status.st_blocks * 512 for _, status in self.files())
                os.pwrite(self._lock, _NUMBERS.pack(self.evictions(), used), 0)
            unlock(self._lock, _COUNTING)

    def __del__(self) -> None:
        for fd in {getattr(self, "_lock", -1), getattr(self, "_watch", -1)} - {-1}:
            os.close(fd)

    @property
    def is_current(self) -> bool:
        """Whether the folder is still the one that was opened: it may have been removed."""
        if self.folder is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._lock), os.stat(self.folder / "lock"))
        except OSError:
            return False

    def open(self, url: str, etag: str, size: int) -> SparseCopy:
        """The copy of one version of an object; all readers of a process share it. Raises `OSError`."""
        description = {"url": url, "etag": etag, "size": size}
        name = hashlib.sha256(described(description)).hexdigest()[:32] + SUFFIX
        with self._guard:
            found = self._copies.get(name)
            if found is None:
                fd = self._opened(name, description, size)
                found = self._copies[name] = SparseCopy(fd, url, size)
            return found

    @contextlib.contextmanager
    def holding(self) -> Iterator[int]:
        """Keep every block from being freed that is here now. Yields the number of evictions, for `is_here`."""
        if os.getpid() != self._pid:
            raise StateError(
                "stored objects cannot be read in a fork of a process that has read them: start "
                f"processes with the method spawn or forkserver (process {self._pid}, fork {os.getpid()})"
            )
        byte = self._lock_any(self._lock, _HOLDS)
        try:
            yield self.evictions()
        finally:
            unlock(self._lock, byte)

    def evictions(self) -> int:
        """The number of evictions so far."""
        return self._read_numbers()[0]

    def used(self) -> int:
        """Bytes that copies are counted to take; in memory, those that they take."""
        if self.folder is None:
            return sum(os.fstat(each.fd).st_blocks * 512 for each in self._open_copies())
        return self._read_numbers()[1]

    def add_needs(self, needs: Needs) -> None:
        """Keep the blocks that `needs` tells, as long as it lives, and evict the newest of the others first."""
        with self._guard:
            self._needs.add(needs)

    def drop_needs(self, needs: Needs) -> None:
        """Take `add_needs` back."""
        with self._guard:
            self._needs.discard(needs)

    def _open_copies(self) -> list[SparseCopy]:
        with self._guard:
            return list(self._copies.values())

    async def reserve(self, size: int, busy: Container[tuple[SparseCopy, int]]) -> bool:
        """Count `size` bytes as used, if needed after an eviction of blocks that are not `busy`; False without room."""
        while True:
            if await self.count(size, limit=self.limit):
                return True
            if not await self.make_room(size, busy):
                return False

    async def make_room(self, size: int, busy: Container[tuple[SparseCopy, int]], *, anyway: bool = False) -> bool:
        """Evict until `size` bytes are free, or `anyway` because the disk is full; False if nothing may be evicted.

        First copies that no process has open, the one that was opened longest ago; then blocks of this process's own
        copies, see `_victims`.
        """
        if time.monotonic() < self._hopeless_until:
            return False
        async with self._evicting, self._locked(_EVICTING) as is_locked:
            if not is_locked or time.monotonic() < self._hopeless_until:  # another task has just tried
                return False
            if not anyway and self.used() + size <= self.limit:  # another one evicted meanwhile
                return True
            freed = self._remove_unused(size) or await self._evict(self._victims(size, busy))
            if freed:
                await self.count(-freed)
                return True
            self._hopeless_until = time.monotonic() + _PAUSE
            return False

    def _opened(self, name: str, description: dict[str, object], size: int) -> int:
        if self.folder is None:
            fd = os.memfd_create(name)
            prepare(fd, description, size)
            return fd
        while True:
            fd = _open_or_make(self.folder / name, description, size)
            self._lock_any(fd, _OPEN)
            os.utime(fd)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(self.folder / name)):
                    return fd
            os.close(fd)  # another process has just removed it as unused

    def _default_limit(self) -> int:
        if self.folder is None:
            return _IN_MEMORY
        disk = os.statvfs(self.folder)
        return int(_PART_OF_DISK * (disk.f_bavail * disk.f_frsize + self.used()))

    def _read_numbers(self) -> tuple[int, int]:
        data = os.pread(self._lock, _NUMBERS.size, 0)
        return _NUMBERS.unpack(data) if len(data) == _NUMBERS.size else (0, 0)

    async def count(self, used: int, *, evictions: int = 0, limit: int | None = None) -> bool:
        """Add to the numbers; False, and nothing is added, if more than `limit` bytes would be in use.

        With `evictions`, blocks that were here are absent now.
        """
        async with self._locked(_COUNTING) as is_locked:
            numbers = self._read_numbers()
            if limit is not None and (not is_locked or self.used() + used > limit):
                return False
            os.pwrite(self._lock, _NUMBERS.pack(numbers[0] + evictions, max(0, numbers[1] + used)), 0)
            return True

    def files(self) -> list[tuple[Path, os.stat_result]]:
        """The files of copies in the folder, the one that was opened longest ago first."""
        found = []
        for path in [] if self.folder is None else self.folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):
                found.append((path, path.stat()))
        return sorted(found, key=lambda item: item[1].st_mtime)

    def _remove_unused(self, size: int) -> int:
        """Remove copies that no process has open, until `size` bytes are free; returns how many are."""
        freed = 0
        for path, status in self.files():
            if freed >= size:
                break
            with contextlib.suppress(OSError):
                if path.name not in self._copies and not is_open(path):
                    path.unlink()
                    freed += status.st_blocks * 512
        return freed

    def _victims(self, size: int, busy: Container[tuple[SparseCopy, int]]) -> list[tuple[SparseCopy, int]]:
        """Blocks of this process's copies to evict: some more than `size` bytes.

        With an order that is known they are the newest that no coming batch needs: those have been used in this epoch,
        and the others are still to come. So every block that was here when an epoch began is used before it goes. A
        cache of a tenth of the set then saves a tenth of the requests in every epoch, where the usual rule (the oldest
        first) saves none: it always evicts what is needed next. Without an order they are the oldest.
        """
        with self._guard:
            needs = list(self._needs)
        needed = set[tuple[str, int]]().union(*(each.blocks() for each in needs))
        stored = [(when, copy, block) for copy in self._open_copies() for block, when in copy.stored()]
        free = [
            each
            for each in stored
            if each[1:] not in busy and each[2] not in each[1].kept and (each[1].url, each[2]) not in needed
        ]
        free.sort(key=lambda each: (each[0], each[2]), reverse=bool(needs))
        return [(copy, block) for _, copy, block in free[: max(_AT_A_TIME, -(-size // BLOCK))]]

    async def _evict(self, blocks: list[tuple[SparseCopy, int]]) -> int:
        """Free blocks that no process is storing or reading, and return how many bytes.

        Returns 0 if something is read for too long.
        """
        taken = [(copy, block) for copy, block in blocks if try_lock(copy.fd, block)]
        if not taken:
            return 0
        self.leaving.update(taken)  # locks do not exclude tasks of this process
        freed = 0
        try:
            states = [copy.hide(block) for copy, block in taken]
            await self.count(0, evictions=1)
            ended = await self._holds_end()
            for (copy, block), state in zip(taken, states, strict=True):
                if not ended:
                    copy.show(block, state)
                    continue
                with contextlib.suppress(OSError):  # a file system without holes
                    copy.free(block)
                    freed += copy.span(block)[1] - copy.span(block)[0]
            return freed
        finally:
            self.leaving.difference_update(taken)
            for copy, block in taken:
                unlock(copy.fd, block)

    async def _holds_end(self) -> bool:
        """Wait until all holds that exist now are gone; False if that takes too long."""
        end = time.monotonic() + _PATIENCE
        waiting = locked_elsewhere(self._watch, _HOLDS, _USERS)
        while waiting and time.monotonic() < end:
            await asyncio.sleep(_TICK)
            waiting &= locked_elsewhere(self._watch, _HOLDS, _USERS)
        return not waiting

    def _lock_any(self, fd: int, start: int) -> int:
        """Lock a byte from `start` on that no other process has."""
        while not try_lock(fd, byte := start + (next(self._numbers) & _MANY)):
            pass
        return byte

    @contextlib.asynccontextmanager
    async def _locked(self, byte: int) -> AsyncIterator[bool]:
        """Wait for a byte of the lock file, which excludes other processes; yields whether it was got.

        A process that was stopped may keep it.
        """
        end = time.monotonic() + STUCK
        while not (is_locked := try_lock(self._lock, byte)) and time.monotonic() < end:
            await asyncio.sleep(_TICK)
        try:
            yield is_locked
        finally:
            if is_locked:
                unlock(self._lock, byte)


def is_open(path: Path) -> bool:
    """Whether another opening of a copy exists. Raises `OSError`."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return bool(locked_elsewhere(fd, _OPEN))
    finally:
        os.close(fd)


def _opened_twice(folder: Path | None) -> tuple[int, int]:
    """The lock file, opened twice: the second descriptor sees what the first one has locked. Raises `OSError`."""
    if folder is None:
        fd = os.memfd_create("iofast-cache")
        return fd, os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    folder.mkdir(0o700, parents=True, exist_ok=True)
    owned.trust(folder)  # copies are private, so names are all that others may see
    path = folder / "lock"
    fds = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600) for _ in range(2)]
    return fds[0], fds[1]


def _open_or_make(path: Path, description: dict[str, object], size: int) -> int:
    """Open a copy; a missing one is made whole under another name, and of several processes one makes it."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                is_ours = description_of(fd) == description
            except BaseException:
                os.close(fd)
                raise
            if is_ours:
                return fd
            os.close(fd)
            path.unlink(missing_ok=True)  # from before a power failure
        draft = path.with_name(f".{path.name}-{os.urandom(8).hex()}.tmp")
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            prepare(fd, description, size)
            try:
                os.link(draft, path)
            except FileExistsError:
                pass  # another process was first: both shall use the same file
            except OSError:
                draft.rename(path)  # a file system without links, where two processes at once do not share
        finally:
            os.close(fd)
            draft.unlink(missing_ok=True)


def current() -> BlockCache:
    """The cache of this process: in `$IOFAST_CACHE`, by default the user's cache folder, or in memory without one.

    Raises `OptionError` for a size that is none.
    """
    global _current
    given = os.environ.get(FOLDER, ""), os.environ.get(SIZE, "")
    with _choosing:
        if _current is None or _current[0] != given or not _current[1].is_current:
            _current = (given, _made(*given))
        return _current[1]


def _made(folder: str, size: str) -> BlockCache:
    limit = None
    if size:
        limit = 0 if size.strip() == "0" else parse_size(size, SIZE)
    own = owned.cache_folder()
    place = Path(os.path.abspath(folder)) if folder else own and own / "objects"
    try:
        return BlockCache(place, limit)
    except (OSError, TargetError) as error:
        _log.warning("%s cannot keep copies of stored objects (%s): they are kept in memory", place, error)
        return BlockCache(None, limit)


def in_memory() -> BlockCache:
    """The cache of this process for objects that the folder cannot keep."""
    global _memory
    limit = min(current().limit, _IN_MEMORY)
    with _choosing:
        if _memory is None:
            _memory = BlockCache(None, limit)
        return _memory


_memory: BlockCache | None = None
_current: tuple[tuple[str, str], BlockCache] | None = None
_choosing = threading.Lock()
_log = logging.getLogger("iofast")
