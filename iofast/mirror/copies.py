"""The local copy of one object: a sparse file with the object's bytes at their own offsets, as far as they are here.

Layout, little-endian: the bytes of the object; from the next multiple of 4096 on an entry of 16 bytes for each block of
4 MiB; then 4096 bytes of JSON (`url`, `etag`, `size`), padded with spaces. An entry is u8 state (0 absent, 1 here), 3
zero bytes, u32 of the boot in which it was stored, u32 CRC32C of the block, u32 time in seconds. The first 8 bytes are
written last and in one call, so a killed process leaves a block absent. Nothing is made durable: after another boot the
checksum decides whether a block is used.

A process that stores, checks or evicts a block has locked the byte of the file with the block's number.
"""

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import random
import struct
import time
import weakref
import zlib
from pathlib import Path

from iofast.kernel import crc32c

BLOCK = 4 << 20  # bytes: at 100 MB/s 40 ms, so that 30 ms until the first byte are hidden by few requests

_ALIGN = 4096
_ENTRY = struct.Struct("<B3xIII")  # state, boot, CRC32C, time
_STATE, _REST = struct.Struct("<B3xI"), struct.Struct("<II")
_HERE = 1
_KEEP_SIZE, _PUNCH = 0x01, 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE; with FALLOC_FL_PUNCH_HOLE


def _boot_tag() -> int:
    """A number of this boot. If it is unknown, one of this process, which then compares checksums itself."""
    try:
        return zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes()) | 1
    except OSError:
        return random.SystemRandom().getrandbits(32) | 1


_BOOT = _boot_tag()


class SparseCopy:
    """The blocks of the object `url` that are here, in the open file `fd`, which it closes. Threads may share it."""

    def __init__(self, fd: int, url: str, size: int) -> None:
        self.fd, self.url, self.size = fd, url, size
        self.kept = set[int]()  # blocks that this process does not evict
        # a `__del__` runs before weak references end, so that another thread could get the copy with a closed file
        weakref.finalize(self, os.close, fd).atexit = False
        self.blocks = -(-size // BLOCK)
        self._table = -(-size // _ALIGN) * _ALIGN
        self.again: dict[int, asyncio.Task[None]] = {}  # blocks that seemed damaged, and how they are fetched again
        self._seen: tuple[int, set[int]] = (-1, set())  # a number of evictions, and blocks that were here after so many

    def is_here(self, block: int, evictions: int) -> bool:
        """Whether a block may be read. It stays here if the caller took a hold and then read `evictions`."""
        seen = self._seen
        if seen[0] != evictions:
            seen = self._seen = (evictions, set())
        if block not in seen[1] and self._entry(block)[:2] == (_HERE, _BOOT):
            seen[1].add(block)
        return block in seen[1]

    def has_state(self, block: int) -> bool:
        """Whether a block was stored, in this boot or an earlier one."""
        return self._entry(block)[0] == _HERE

    def is_valid(self, block: int) -> bool:
        """Make a block that an earlier boot stored usable, if its bytes are still the same. Needs the lock."""
        state, boot, _, _ = self._entry(block)
        if state != _HERE:
            return False
        if boot != _BOOT:
            if not self.is_whole(block):
                return False
            os.pwrite(self.fd, _STATE.pack(_HERE, _BOOT), self._place(block))
        return True

    def is_whole(self, block: int) -> bool:
        """Whether the bytes of a block have the checksum with which they were stored."""
        start, stop = self.span(block)
        data = os.pread(self.fd, stop - start, start)
        return len(data) == stop - start and crc32c(data) == self._entry(block)[2]

    def store(self, block: int, view: memoryview) -> None:
        """Store the bytes of a block. Needs the lock. Raises `OSError`, for a full disk; then it is absent.

        The bytes of a block that was here stay, for those who read them at the moment.
        """
        start, stop = self.span(block)
        if len(view) != stop - start:
            raise ValueError(f"block {block} has {stop - start} bytes, found {len(view)}")
        try:
            with contextlib.suppress(OSError):  # with ext4 the write then takes two thirds of the time
                self._fallocate(_KEEP_SIZE, block)
            done = 0
            while done < len(view):
                done += os.pwrite(self.fd, view[done:], start + done)
            place = self._place(block)
            os.pwrite(self.fd, _REST.pack(crc32c(view), int(time.time()) & 0xFFFFFFFF), place + _STATE.size)
            os.pwrite(self.fd, _STATE.pack(_HERE, _BOOT), place)
        except OSError:
            if self.has_state(block):
                self.hide(block)
            else:
                self.free(block)
            raise

    def hide(self, block: int) -> bytes:
        """Make a block absent, before its bytes are freed, and return its state. Needs the lock."""
        state = os.pread(self.fd, _STATE.size, self._place(block))
        os.pwrite(self.fd, _STATE.pack(0, 0), self._place(block))
        return state

    def show(self, block: int, state: bytes) -> None:
        """Take `hide` back, before the bytes were freed. Needs the lock."""
        os.pwrite(self.fd, state, self._place(block))

    def free(self, block: int) -> None:
        """Give the space of an absent block back to the disk. Raises `OSError`."""
        self._fallocate(_PUNCH, block)

    def stored(self) -> list[tuple[int, int]]:
        """The blocks that are here, and when they were stored."""
        table = os.pread(self.fd, self.blocks * _ENTRY.size, self._table)
        entries = enumerate(_ENTRY.iter_unpack(table))
        return [(block, entry[3]) for block, entry in entries if entry[0] == _HERE]

    def span(self, block: int) -> tuple[int, int]:
        """The bytes of a block: start and stop."""
        return block * BLOCK, min((block + 1) * BLOCK, self.size)

    def _fallocate(self, mode: int, block: int) -> None:
        start, stop = self.span(block)
        if _libc.fallocate(self.fd, mode, ctypes.c_int64(start), ctypes.c_int64(stop - start)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def _entry(self, block: int) -> tuple[int, int, int, int]:
        data = os.pread(self.fd, _ENTRY.size, self._place(block))
        return _ENTRY.unpack(data) if len(data) == _ENTRY.size else (0, 0, 0, 0)

    def _place(self, block: int) -> int:
        return self._table + block * _ENTRY.size


def prepare(fd: int, description: dict[str, object], size: int) -> None:
    """Lay out the file of a copy without blocks."""
    end = file_size(size)
    text = described(description)
    if len(text) > _ALIGN:
        raise OSError(errno.ENAMETOOLONG, "its URL and ETag are too long")
    os.ftruncate(fd, end)
    os.pwrite(fd, text, end - _ALIGN)


def described(description: dict[str, object]) -> bytes:
    """The description as it is stored."""
    return json.dumps(description, sort_keys=True).encode().ljust(_ALIGN)


def description_of(fd: int) -> dict[str, object] | None:
    """The description in the file of a copy; None for another file."""
    end = os.fstat(fd).st_size
    try:
        found = json.loads(os.pread(fd, _ALIGN, max(0, end - _ALIGN)))
        return found if isinstance(found, dict) and end == file_size(found["size"]) else None
    except (ValueError, KeyError, TypeError):
        return None


def file_size(size: int) -> int:
    """Bytes of the file of a copy."""
    return -(-size // _ALIGN) * _ALIGN + -(-size // BLOCK) * _ENTRY.size + _ALIGN


_libc = ctypes.CDLL(None, use_errno=True)
