"""The arrays and strings of a listing. Large ones are files, because a listing may be larger than the memory.

The files have no names and lie in the folder for temporary files (`TMPDIR`). The system writes their pages out and
drops them when memory gets short, unless that folder is itself in memory (tmpfs).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from iofast.errors import SourceError, because

_LARGE = 1 << 24  # bytes: what is larger becomes a file
STEP = 1 << 16  # rows that are computed at once

Scalar = TypeVar("Scalar", bound=np.generic)


def steps(count: int) -> Iterator[slice]:
    """Slices of `STEP` rows, so that intermediate values of all rows are never in memory at once."""
    return (slice(start, min(start + STEP, count)) for start in range(0, count, STEP))


def empty(count: int, dtype: type[Scalar]) -> NDArray[Scalar]:
    """An array of shape (count,) to be filled. Raises `SourceError` for a full disk."""
    size = count * np.dtype(dtype).itemsize
    if size < _LARGE:
        return np.empty(count, dtype)
    with _no_room(), tempfile.TemporaryFile(buffering=0) as file:
        os.truncate(file.fileno(), size)
        _allocate(file.fileno(), size)
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype)


def stable_order(ranks: NDArray[np.int32], count: int) -> tuple[list[int], NDArray[np.int64] | None]:
    """How many rows have each of the ranks 0 … count-1, and the rows in the order of a stable sort by rank.

    The order is None if the rows are in it already.
    """
    counts, is_sorted, last = np.zeros(count, np.int64), True, 0
    for rows in steps(len(ranks)):
        part = ranks[rows]
        counts += np.bincount(part, minlength=count)
        is_sorted &= bool(part[0] >= last and (part[1:] >= part[:-1]).all())
        last = part[-1]
    if is_sorted:
        return counts.tolist(), None
    order, places = empty(len(ranks), np.int64), np.cumsum(counts) - counts
    for rows in steps(len(ranks)):
        by_rank = np.argsort(ranks[rows], kind="stable")
        part, here = ranks[rows][by_rank], np.bincount(ranks[rows], minlength=count)
        order[places[part] + np.arange(len(part)) - (np.cumsum(here) - here)[part]] = rows.start + by_rank
        places += here
    return counts.tolist(), order


@contextlib.contextmanager
def _no_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"the listing cannot be kept in a temporary file: {because(error)}; TMPDIR names another folder for it"
        ) from None


def _allocate(descriptor: int, size: int) -> None:
    """Take the room of a file from the disk; else a full disk would kill the process when it fills the array."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except AttributeError:  # macOS
        return
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot
            raise


class ByteSpool:
    """Bytes that are written one after the other: in memory while they are few, then in a file."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._file: BinaryIO | None = None

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes. Raises `SourceError` for a full disk."""
        if self._file is None and len(self._bytes) + len(data) < _LARGE:
            self._bytes += data
            return
        with _no_room():
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with this
                data, self._bytes = self._bytes + data, bytearray()
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]

    def finish(self) -> bytes | memoryview:
        """All bytes; none can be added after this."""
        if self._file is None:
            return bytes(self._bytes)
        with _no_room():
            return memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))


@dataclass(frozen=True, slots=True)
class Strings:
    """N byte strings in one blob, each followed by one byte that is not part of it; `bounds` has N + 1 entries."""

    blob: bytes | memoryview
    bounds: NDArray[np.uint64]

    @classmethod
    def split(cls, blob: bytes) -> Self:
        """From strings that are each followed by a NUL, and have none themselves."""
        ends = np.flatnonzero(np.frombuffer(blob, np.uint8) == 0)
        return cls(blob, np.concatenate((np.zeros(1, np.uint64), ends.astype(np.uint64) + np.uint64(1))))

    @classmethod
    def gather(cls, strings: Iterable[bytes]) -> Strings:
        """From strings of any content. Raises `SourceError` for a full disk."""
        writer = StringsWriter()
        for string in strings:
            writer.add(string)
        return writer.finish()

    @classmethod
    def join(cls, parts: Iterable[tuple[bytes | bytearray, Sequence[int]]]) -> Self:
        """From several blobs, each with the ends of its strings (including the byte that follows each)."""
        blob, bounds = bytearray(), [np.zeros(1, np.uint64)]
        for own, ends in parts:
            bounds.append(np.array(ends, np.uint64) + np.uint64(len(blob)))
            blob += own
        return cls(bytes(blob), np.concatenate(bounds))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, row: int) -> bytes:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return bytes(self.blob[int(self.bounds[row]) : int(self.bounds[row + 1]) - 1])

    def __iter__(self) -> Iterator[bytes]:
        for rows in self.steps():
            yield from self.of(rows)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (bytes(self.blob), self.bounds)

    def steps(self) -> Iterator[slice]:
        """As `steps` of all rows, and with at most 16 MiB of strings at once, or one string."""
        start = 0
        while start < len(self):
            most = int(np.searchsorted(self.bounds, self.bounds[start] + np.uint64(_LARGE), "right")) - 1
            stop = min(max(start + 1, most), start + STEP, len(self))
            yield slice(start, stop)
            start = stop

    def of(self, rows: slice) -> list[bytes]:
        """The strings of some rows: faster than one by one."""
        bounds = self.bounds[rows.start : rows.stop + 1].tolist()
        blob, first = bytes(self.bytes_of(rows)), bounds[0]
        return [blob[start - first : end - first - 1] for start, end in itertools.pairwise(bounds)]

    def bytes_of(self, rows: slice) -> bytes | memoryview:
        """The bytes of some rows, with the byte behind each."""
        return self.blob[int(self.bounds[rows.start]) : int(self.bounds[rows.stop])]


class StringsWriter:
    """`Strings` that are made one by one, or many at once."""

    def __init__(self) -> None:
        self._blob, self._bounds = ByteSpool(), ByteSpool()
        self._new, self._ends = bytearray(), array("Q", [0])  # a list would take 40 bytes for each
        self._size, self._limit = 0, STEP

    def add(self, string: bytes) -> None:
        """Append a string. Raises `SourceError` for a full disk."""
        self._new += string
        self._new.append(0)
        self._size += len(string) + 1
        self._ends.append(self._size)
        if self._size >= self._limit:
            self._write()

    def extend(self, blob: bytes | memoryview, ends: NDArray[np.uint64]) -> None:
        """Append strings that are each followed by a NUL in `blob`, where they end behind it."""
        self._write()
        self._blob.write(blob)
        self._bounds.write((ends + np.uint64(self._size)).data.cast("B"))
        self._size += len(blob)

    def finish(self) -> Strings:
        """All strings; none can be added after this."""
        self._write()
        return Strings(self._blob.finish(), np.frombuffer(self._bounds.finish(), np.uint64))

    def _write(self) -> None:
        self._blob.write(self._new)
        self._bounds.write(memoryview(self._ends).cast("B"))
        self._new, self._ends, self._limit = bytearray(), array("Q"), self._size + STEP
