"""The files of a set that is being written: the shard that is filled, those of an earlier run, whole writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from iofast.containers.file_bytes import read_at
from iofast.containers.writeback import Writeback

_PIECES = 512  # of one system call; Linux takes 1024


class OpenShard:
    """The shard that is being filled."""

    def __init__(self, path: Path, split: str) -> None:
        self.path, self.split, self.size, self.count = path, split, 0, 0
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self._writeback = Writeback(self.fd)

    def grow(self, size: int) -> None:
        """There is one record more, and so many bytes."""
        self.size, self.count = size, self.count + 1
        self._writeback.wrote(size)


class StagedShards:
    """The shards of an earlier run, one open at a time."""

    def __init__(self, path: Callable[[int], Path]) -> None:
        self._path, self._number, self._fd = path, -1, -1

    def read(self, number: int, start: int, length: int) -> bytes | None:
        """Bytes of a shard; None where it has not so many, or is missing."""
        if number != self._number:
            self.close()
            try:
                self._fd, self._number = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), number
            except FileNotFoundError:
                return None
        if os.fstat(self._fd).st_size < start + length:
            return None
        data = read_at(self._fd, start, length)
        return data if len(data) == length else None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._number = self._fd = -1


def write(fd: int, pieces: Sequence[bytes], offset: int | None) -> None:
    """Write all pieces there, or where the file's own position is."""
    for first in range(0, len(pieces), _PIECES):
        part = pieces[first : first + _PIECES]
        total = sum(map(len, part))
        done = os.writev(fd, part) if offset is None else os.pwritev(fd, part, offset)
        if done < total:  # a signal came, or the disk is nearly full
            rest = memoryview(b"".join(part))[done:]
            while rest:
                more = os.write(fd, rest) if offset is None else os.pwrite(fd, rest, offset + done)
                rest, done = rest[more:], done + more
        offset = None if offset is None else offset + total
