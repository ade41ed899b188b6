"""The arrays and strings of a listing. Large ones are files, because a listing may be larger than the memory.

The files have no names and lie in the folder for temporary files (`TMPDIR`). The system writes their pages out and
drops them when memory gets short.
"""

from __future__ import annotations

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
STEP = 1 << 18  # rows that are computed at once

Scalar = TypeVar("Scalar", bound=np.generic)


def steps(count: int) -> Iterator[slice]:
    """Slices of `STEP` rows, so that intermediate values of all rows are never in memory at once."""
    return (slice(start, min(start + STEP, count)) for start in range(0, count, STEP))


def empty(count: int, dtype: type[Scalar]) -> NDArray[Scalar]:
    """An array of shape (count,) to be filled. Raises `SourceError` if a file is needed and the disk is full."""
    size = count * np.dtype(dtype).itemsize
    if size < _LARGE:
        return np.empty(count, dtype)
    with tempfile.TemporaryFile(buffering=0) as file:
        try:
            os.truncate(file.fileno(), size)
            if hasattr(os, "posix_fallocate"):  # else a full disk would kill the process when it fills the array
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise _no_room(size, error) from None
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype)


def stable_order(ranks: NDArray[np.int32], count: int) -> tuple[list[int], NDArray[np.int64] | None]:
    """How many rows have each of the ranks 0 … count-1, and the rows in the order of a stable sort by rank.

    The order is None if the rows are in it already.
    """
    counts, is_sorted = np.zeros(count, np.int64), True
    for rows in steps(len(ranks)):
        counts += np.bincount(ranks[rows], minlength=count)
        is_sorted &= not (np.diff(ranks[max(rows.start - 1, 0) : rows.stop]) < 0).any()
    if is_sorted:
        return counts.tolist(), None
    order, ends = empty(len(ranks), np.int64), np.cumsum(counts) - counts
    for rows in steps(len(ranks)):
        for rank in range(count):
            found = np.flatnonzero(ranks[rows] == rank)
            order[ends[rank] : ends[rank] + len(found)] = rows.start + found
            ends[rank] += len(found)
    return counts.tolist(), order


class Spilled:
    """Bytes that are written one after the other: in memory while they are few, then in a file."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._file: BinaryIO | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes. Raises `SourceError` for a full disk."""
        self._bytes += data
        if len(self._bytes) >= _LARGE:
            self._spill()

    def finish(self) -> bytes | memoryview:
        """All bytes; none can be added after this."""
        if self._file is None:
            return bytes(self._bytes)
        self._spill()
        with self._file as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def _spill(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `finish`, or with this
            self._file.write(self._bytes)
            self._file.flush()
        except OSError as error:
            raise _no_room(len(self._bytes), error) from None
        self._bytes = bytearray()


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
        for rows in steps(len(self)):
            yield from self.some(rows)

    def some(self, rows: slice) -> list[bytes]:
        """The strings of some rows: faster than one by one."""
        bounds = self.bounds[rows.start : rows.stop + 1].tolist()
        blob, first = bytes(self.part(rows)), bounds[0]
        return [blob[start - first : end - first - 1] for start, end in itertools.pairwise(bounds)]

    def part(self, rows: slice) -> bytes | memoryview:
        """The bytes of some rows, with the byte behind each."""
        return self.blob[int(self.bounds[rows.start]) : int(self.bounds[rows.stop])]


class StringsWriter:
    """`Strings` that are made one by one, or many at once."""

    def __init__(self) -> None:
        self._blob, self._bounds = Spilled(), Spilled()
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


def _no_room(size: int, error: OSError) -> SourceError:
    return SourceError(
        f"the listing has no room for {size:,} more bytes in {tempfile.gettempdir()}: {because(error)}; name another "
        "folder with TMPDIR"
    )
