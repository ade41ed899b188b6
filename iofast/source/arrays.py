"""The strings of a listing, in one block of bytes, and steps over its rows."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

_STEP_BYTES = 1 << 24  # bytes of strings that are handled at once
STEP = 1 << 16  # rows that are computed at once

Scalar = TypeVar("Scalar", bound=np.generic)


def steps(count: int) -> Iterator[slice]:
    """Slices of `STEP` rows, so that intermediate values of all rows are never in memory at once."""
    return (slice(start, min(start + STEP, count)) for start in range(0, count, STEP))


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
    order, places = np.empty(len(ranks), np.int64), np.cumsum(counts) - counts
    for rows in steps(len(ranks)):
        by_rank = np.argsort(ranks[rows], kind="stable")
        part, here = ranks[rows][by_rank], np.bincount(ranks[rows], minlength=count)
        order[places[part] + np.arange(len(part)) - (np.cumsum(here) - here)[part]] = rows.start + by_rank
        places += here
    return counts.tolist(), order


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
        """From strings of any content."""
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
            most = int(np.searchsorted(self.bounds, self.bounds[start] + np.uint64(_STEP_BYTES), "right")) - 1
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
        self._blob, self._bounds = bytearray(), array("Q", [0])  # a list would take 40 bytes for each

    def add(self, string: bytes) -> None:
        """Append a string."""
        self._blob += string
        self._blob.append(0)
        self._bounds.append(len(self._blob))

    def extend(self, blob: bytes | memoryview, ends: NDArray[np.uint64]) -> None:
        """Append strings that are each followed by a NUL in `blob`, where they end behind it."""
        self._bounds.frombytes((ends + np.uint64(len(self._blob))).tobytes())
        self._blob += blob

    def finish(self) -> Strings:
        """All strings; none can be added after this."""
        return Strings(memoryview(self._blob).toreadonly(), np.frombuffer(self._bounds, np.uint64))
