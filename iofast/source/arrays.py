"""The strings of a listing, in one block of bytes, and steps over its rows."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

STEP = 1 << 16  # rows that are computed at once


def steps(count: int) -> Iterator[slice]:
    """Slices of `STEP` rows, so that intermediate values of all rows are never in memory at once."""
    return (slice(start, min(start + STEP, count)) for start in range(0, count, STEP))


def stable_order(ranks: NDArray[np.int32], count: int) -> tuple[list[int], NDArray[np.int64] | None]:
    """How many rows have each of the ranks 0 … count-1, and the rows in the order of a stable sort by rank.

    The order is None if the rows are in it already.
    """
    counts: list[int] = np.bincount(ranks, minlength=count).tolist()
    return counts, None if (ranks[1:] >= ranks[:-1]).all() else np.argsort(ranks, kind="stable")


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
    def join(cls, parts: Iterable[Strings]) -> Self:
        """From those of several parts, one after another."""
        blob, bounds = bytearray(), [np.zeros(1, np.uint64)]
        for part in parts:
            bounds.append(part.bounds[1:] + np.uint64(len(blob)))
            blob += part.blob
        return cls(bytes(blob), np.concatenate(bounds))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, row: int) -> bytes:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return bytes(self.blob[int(self.bounds[row]) : int(self.bounds[row + 1]) - 1])

    def __iter__(self) -> Iterator[bytes]:
        for rows in steps(len(self)):  # faster than one by one
            bounds = self.bounds[rows.start : rows.stop + 1].tolist()
            first, blob = bounds[0], bytes(self.blob[bounds[0] : bounds[-1]])
            yield from (blob[start - first : end - first - 1] for start, end in itertools.pairwise(bounds))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (bytes(self.blob), self.bounds)


class StringsWriter:
    """`Strings` that are made one by one."""

    def __init__(self) -> None:
        self._blob, self._bounds = bytearray(), array("Q", [0])  # a list would take 40 bytes for each

    def add(self, string: bytes) -> None:
        """Append a string."""
        self._blob += string
        self._blob.append(0)
        self._bounds.append(len(self._blob))

    def finish(self) -> Strings:
        """All strings; none can be added after this."""
        return Strings(memoryview(self._blob).toreadonly(), np.frombuffer(self._bounds, np.uint64))
