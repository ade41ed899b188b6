"""Readahead: a thread advises the kernel on the bytes of coming batches before the decoding threads need them.

Contract: the advice covers at most `depth` batches and `budget` bytes beyond the consumer's batch. It changes no result
and raises nothing. It ends with the last batch, with `close`, with its owner, and with the interpreter. Anything else
is a bug.

Advice is given for groups of batches, sorted by place, so that a window of a block-local order becomes long reads. The
first group is one batch, because the consumer waits for it; each further one is as large as all before it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from iofast.containers.base import Located, Reader
from iofast.machine import memory_limit
from iofast.prefetch.advice import FileAdvice
from iofast.prefetch.threads import NEVER, Follower, Reports

Locate = Callable[[int], Sequence[Located]]  # batch to the places of every field read

DEPTH = 256  # batches
BUDGET = 256 << 20  # bytes: two windows of 64 blocks of 64 records of 27 kB


class Readahead(Follower):
    """Advice on batches below `count`, ahead of the consumer.

    `located_of(batch)` returns the places in `reader` of a batch's payloads. The thread calls it, so it must not keep
    this object alive. `budget` is in bytes; the default is an eighth of the memory that this process may use, at most
    256 MiB. Does nothing on systems without `posix_fadvise`.
    """

    def __init__(
        self, reader: Reader, located_of: Locate, count: int, *, depth: int = DEPTH, budget: int | None = None
    ) -> None:
        groups = Groups(located_of, count, depth, _default_budget() if budget is None else budget)
        reports = Reports()
        super().__init__(reports, partial(_advise, groups, FileAdvice(reader), reports))


class Groups:
    """The groups of batches that advice is given for, one after another."""

    def __init__(self, located_of: Locate, count: int, depth: int, budget: int) -> None:
        self._located_of, self._count, self._depth, self._budget = located_of, count, depth, budget
        self._asked = self._next = self._first = -1
        self._bytes = 0  # advised on, beyond the consumer's batch
        self._sizes: deque[tuple[int, int]] = deque()  # (batch, bytes), which add up to `_bytes`

    def reach(self, batch: int) -> None:
        """Note that the consumer has come to `batch`."""
        self._asked = max(self._asked, batch)
        if self._next < self._asked:  # at the start, or when the consumer has overtaken the advice
            self._first = self._next = self._asked
        while self._sizes and self._sizes[0][0] < self._asked:
            self._bytes -= self._sizes.popleft()[1]

    def wanted(self) -> int:
        """Return the consumer's batch at which to go on: when a quarter of the advice is used up."""
        return NEVER if self._next >= self._count else self._asked + max(1, (self._next - self._asked) // 4)

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


def _default_budget() -> int:
    limit = memory_limit()  # the page cache counts towards it
    return BUDGET if limit is None else min(BUDGET, limit // 8)


def _advise(groups: Groups, advice: FileAdvice, reports: Reports) -> None:
    while hasattr(os, "posix_fadvise") and reports.wanted < NEVER:
        batch = reports.batches.get()
        while not reports.batches.empty():  # there may be further reports
            batch = max(batch, reports.batches.get())
        if reports.stop:
            return
        groups.reach(batch)
        while reports.batches.empty() and (group := groups.group()):
            for _ in advice.give(group):
                if reports.stop:
                    return
        reports.wanted = groups.wanted()
