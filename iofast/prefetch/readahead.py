"""Readahead: a thread advises the kernel on the bytes of coming batches before the decoding threads need them.

Contract: the advice covers at most `depth` batches and `budget` bytes beyond the consumer's batch. It changes no result
and raises nothing. It ends with the last batch, with `close`, with its owner, and with the interpreter. Anything else
is a bug.

Advice is given for groups of batches, sorted by place, so that a window of a block-local order becomes long reads. The
first group is one batch, because the consumer waits for it; each further one is as large as all before it.

Measured on a virtual disk of 1 GB/s: advice (`posix_fadvise`, WILLNEED) reads whole blocks as fast as `pread` in two
threads, and scattered records of 27 kB three times as fast as `pread` in any number of threads (600 MB/s against 150 to
240), for half the CPU time and without a copy.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Located, Reader
from iofast.machine import memory_limit
from iofast.prefetch.threads import NEVER, Follower, Plan

Locate = Callable[[int], Sequence[Located]]  # batch to the places of every field read

DEPTH = 256  # batches
BUDGET = 256 << 20  # bytes: two windows of 64 blocks of 64 records of 27 kB
# Gaps of up to this many bytes between two records are read too. In a shuffled order of 1.2 GB, 64 KiB read 8 % more
# bytes and 128 KiB 24 % more; in an LMDB, 99.9 % of the gaps between neighbours are below 10 KiB.
GAP = 16 << 10
WIDE_GAP = 1 << 20  # the same for dense records, as in a block-local order: what lies between them is needed soon
DENSE = 4  # records are dense if at most so many bytes are read for each one needed
PIECE = 1 << 20  # bytes in one call, if the device takes as much in one request
SMALL_PIECE = 128 << 10  # otherwise: the kernel drops what exceeds its readahead, 128 KiB by default
SAMPLED = 16  # places that tell whether all are in memory
FILES = 8  # open at once: the decoding threads need descriptors of a folder too


class Readahead(Follower):
    """Advice on batches below `count`, ahead of the consumer.

    `located_of(batch)` returns the places in `reader` of a batch's payloads. The thread calls it, so it must not keep
    this object alive. `budget` is in bytes; the default is an eighth of the memory that this process may use, at most
    256 MiB. Does nothing on systems without `posix_fadvise`.
    """

    def __init__(
        self, reader: Reader, located_of: Locate, count: int, *, depth: int = DEPTH, budget: int | None = None
    ) -> None:
        limit = memory_limit() if budget is None else None  # the page cache counts towards it
        budget = budget if budget is not None else BUDGET if limit is None else min(BUDGET, limit // 8)
        super().__init__(Groups(located_of, count, depth, budget, FileAdvice(reader)))


class Groups(Plan):
    """The groups of batches that `advice` is given for, one after another."""

    def __init__(self, located_of: Locate, count: int, depth: int, budget: int, advice: FileAdvice) -> None:
        super().__init__()
        self._located_of, self._count, self._depth, self._budget = located_of, count, depth, budget
        self._advice = advice
        self._asked = self._next = self._first = -1
        self._bytes = 0  # advised on, beyond the consumer's batch
        self._sizes: deque[tuple[int, int]] = deque()  # (batch, bytes), which add up to `_bytes`

    def reach(self, batch: int) -> None:
        self._asked = max(self._asked, batch)
        if self._next < self._asked:  # at the start, or when the consumer has overtaken the advice
            self._first = self._next = self._asked
        while self._sizes and self._sizes[0][0] < self._asked:
            self._bytes -= self._sizes.popleft()[1]

    def advance(self) -> bool:
        """Give advice on the next group, if there is one."""
        for _ in self._advice.give(group) if (group := self.group()) else ():
            if self.stop:
                return False
        # the consumer's batch at which to go on: when a quarter of the advice is used up
        self.wanted = NEVER if self._next >= self._count else self._asked + max(1, (self._next - self._asked) // 4)
        return bool(group)

    def group(self) -> list[Located]:
        """Return the places of the next group of batches; empty if the consumer has to come nearer first."""
        group, batches = list[Located](), 0
        stop = min(self._count, self._asked + self._depth)
        most, full = max(1, self._next - self._first), self._bytes + self._budget // 4
        while self._next < stop and batches < most and self._bytes < full:
            located = self._located_of(self._next)
            size = sum(int(each.length.sum()) for each in located)
            if self._sizes and self._bytes + size > self._budget:
                break
            self._sizes.append((self._next, size))
            self._next, self._bytes, batches = self._next + 1, self._bytes + size, batches + 1
            group += located
        return group


def ranges(offsets: NDArray[np.uint64], lengths: NDArray[np.uint64], gap: int) -> NDArray[np.uint64]:
    """Merge places (offset, length) of one file across gaps of up to `gap` bytes.

    Returns sorted ranges (start, stop), uint64 (M, 2). They begin and end where places do. Empty places are left out.
    """
    filled = lengths > 0
    if not filled.any():
        return np.empty((0, 2), np.uint64)
    order = np.argsort(offsets[filled], kind="stable")
    starts = offsets[filled][order]
    stops = np.maximum.accumulate(starts + lengths[filled][order])
    first = np.flatnonzero(np.append(True, starts[1:] > stops[:-1] + np.uint64(gap)))
    last = np.append(first[1:], len(starts)) - 1
    return np.stack((starts[first], stops[last]), axis=1)


def reading(offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the ranges to read for places of one file: few and long ones if the places are dense."""
    wide = ranges(offsets, lengths, WIDE_GAP)
    dense = (wide[:, 1] - wide[:, 0]).sum() <= DENSE * lengths.sum()
    return wide if dense else ranges(offsets, lengths, GAP)


def cached(fd: int, offsets: NDArray[np.uint64]) -> bool:
    """Whether the page cache has the first bytes of some of these places, and so most of all: reads do not wait.

    Advice on 256 records that are in memory took 1.3 ms, a sixth of what two cores did for such a batch.
    """
    step = -(-len(offsets) // SAMPLED)
    try:
        return all(os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) for offset in offsets[::step].tolist())
    except (OSError, AttributeError):  # not all of them, or the file system cannot tell
        return False


class FileAdvice:
    """Advice on the files of one reader."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._piece: dict[int, int] = {}  # by device
        self._random: set[int] = set()  # descriptors without the kernel's own readahead

    def give(self, located: Sequence[Located]) -> Iterator[None]:
        """Advise on all these payloads, one system call with each step of the iterator.

        A call returns at once, or when the device's queue has room again.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        rows = joined(located)
        starts = np.flatnonzero(np.append(True, rows.file[1:] != rows.file[:-1]))[::FILES].tolist()
        for start, stop in zip(starts, [*starts[1:], len(rows.file)], strict=True):  # a few files each
            with self._reader.payloads(rows, start, stop) as payloads:
                for fd in np.unique(payloads.fds[payloads.fds >= 0]).tolist():  # -1: the payload is in memory
                    own = payloads.fds == fd
                    if not cached(fd, payloads.offsets[own]):
                        yield from self._advise(fd, reading(payloads.offsets[own], payloads.lengths[own]))

    def _advise(self, fd: int, wanted: NDArray[np.uint64]) -> Iterator[None]:
        try:
            piece = self._piece_of(fd)
            if fd not in self._random:
                self._random.add(fd)
                # A thread that overtakes the advice then reads just its own bytes. In a block-local order the kernel's
                # readahead of 8 MiB added 15 % to all bytes read.
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            for start, stop in wanted.tolist():
                for at in range(start, stop, piece):
                    os.posix_fadvise(fd, at, min(piece, stop - at), os.POSIX_FADV_WILLNEED)
                    yield
        except OSError:  # the file is gone: the decoding thread reports it
            return

    def _piece_of(self, fd: int) -> int:
        device = os.fstat(fd).st_dev
        if device not in self._piece:
            self._piece[device] = PIECE if _largest_request(device) >= PIECE else SMALL_PIECE
        return self._piece[device]


def joined(located: Sequence[Located]) -> Located:
    """Join all rows, sorted by file and offset, without checksums."""
    columns = list(zip(*located, strict=True))
    columns[Located._fields.index("crc")] = (None,)
    rows = Located(*(None if column[0] is None else np.concatenate(column) for column in columns))  # type: ignore[arg-type]
    return rows.rows(np.lexsort((rows.offset, rows.file)))


def _largest_request(device: int) -> int:
    """Return the largest request of a block device in bytes, 0 if unknown."""
    folder = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for queue in (folder / "queue", folder.resolve().parent / "queue"):  # a partition has its disk's queue
        try:
            return int((queue / "max_sectors_kb").read_text()) << 10
        except (OSError, ValueError):
            continue
    return 0
