"""The files of an unfinished set: shards, and a file of entries beside each (docs/format.md 5.1)."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from iofast.containers import entries
from iofast.containers.entries import RecordEntry
from iofast.containers.writeback import Writeback
from iofast.kernel import crc32c

HEADER_SIZE = 128  # bytes at the start of a file of entries; zeros until the shard is full

# magic, shape, records, size and modification time (ns) of the shard, stop, length of the split, split
_HEADER = struct.Struct("<8sIQQqQB64s")
_U32 = struct.Struct("<I")
_MAGIC = b"iofrows\2"
_PIECES = 512  # of one system call; Linux takes 1024
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW  # EXCL: never a link to a published shard


class FullShard(NamedTuple):
    """A full, durable shard. It contains all records of its split before position `stop`."""

    split: str
    records: int
    size: int  # bytes
    stop: int


class OpenShard:
    """An unfinished shard and its entries. Neither file may exist before."""

    def __init__(self, path: Path, rows: Path, split: str) -> None:
        self.split, self.size, self.count = split, 0, 0
        self.position = -1  # of the last record
        self.rows_size = HEADER_SIZE
        self.fd = os.open(path, _FLAGS, 0o666)
        self._rows = -1
        try:
            self._rows = os.open(rows, _FLAGS, 0o666)
            write(self._rows, [bytes(HEADER_SIZE)], 0)
        except OSError:
            self.close()
            raise
        self._writeback = Writeback(self.fd)

    def add(self, pieces: Sequence[bytes], length: int, entry: RecordEntry) -> int:
        """Append a record of `length` bytes and return the offset of its entry."""
        write(self.fd, pieces, self.size)
        encoded, place = entries.encode(entry), self.rows_size
        write(self._rows, [encoded], place)
        self.rows_size += len(encoded)
        self.size, self.count, self.position = self.size + length, self.count + 1, entry.position
        self._writeback.wrote(self.size)
        return place

    def commit(self, end: bytes, stop: int, shape: int) -> FullShard:
        """Append the closing bytes and make the shard durable: a resumed run of the same `shape` keeps it."""
        write(self.fd, [end], self.size)
        full = FullShard(self.split, self.count, self.size + len(end), stop)
        os.fsync(self.fd)
        os.fsync(self._rows)  # before the header, which declares both complete
        split, changed = self.split.encode(), os.fstat(self.fd).st_mtime_ns
        head = _HEADER.pack(_MAGIC, shape, full.records, full.size, changed, stop, len(split), split)
        write(self._rows, [head + _U32.pack(crc32c(head))], 0)
        os.fsync(self._rows)
        self.close()
        return full

    def close(self) -> None:
        """Close both files. Without `commit` their content is not used again."""
        for descriptor in (self.fd, self._rows):
            if descriptor >= 0:
                os.close(descriptor)


def find_full(path: Path, rows: Path, shape: int) -> FullShard | None:
    """Return the full shard that an earlier run left in these files.

    None if it was not committed, was written with another `shape`, or its size or modification time differs.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError), _opened(rows) as fd:
        head = os.pread(fd, _HEADER.size + _U32.size, 0)
        if len(head) < _HEADER.size + _U32.size or _U32.unpack_from(head, _HEADER.size)[0] != crc32c(head[:-4]):
            return None
        magic, own, count, size, changed, stop, length, split = _HEADER.unpack_from(head)
        status = os.stat(path, follow_symlinks=False)
        if (magic, own) != (_MAGIC, shape) or (status.st_size, status.st_mtime_ns) != (size, changed):
            return None
        if sum(1 for _ in entries.read(fd, HEADER_SIZE)) == count:
            return FullShard(split[:length].decode("ascii"), count, size, stop)
    return None


def entries_in(rows: Path, start: int = HEADER_SIZE) -> Iterator[tuple[int, RecordEntry]]:
    """Yield (offset of the entry, record) of a shard, from offset `start` on."""
    with _opened(rows) as fd:
        yield from entries.read(fd, start)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


def write(fd: int, pieces: Sequence[bytes], offset: int | None) -> None:
    """Write all pieces at `offset`, or with None at the file's own position."""
    for first in range(0, len(pieces), _PIECES):
        part = pieces[first : first + _PIECES]
        total = sum(map(len, part))
        done = os.writev(fd, part) if offset is None else os.pwritev(fd, part, offset)
        if done < total:  # after a signal, or on a nearly full disk
            rest = memoryview(b"".join(part))[done:]
            while rest:
                more = os.write(fd, rest) if offset is None else os.pwrite(fd, rest, offset + done)
                rest, done = rest[more:], done + more
        offset = None if offset is None else offset + total
