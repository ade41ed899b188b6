"""Readahead: a thread advises the kernel on the bytes of coming batches before the decoding threads need them.

Contract: the advice covers at most `depth` batches and `budget` bytes beyond the consumer's batch. It changes no result
and raises nothing. It ends with the last batch, with `close`, with its owner, and with the interpreter. Batches in the
page cache get no advice. Anything else is a bug.

Advice is given for groups of batches, sorted by place, so that a window of a block-local order becomes long reads. The
first group is one batch, because the consumer waits for it; each further one is as large as all before it. At most two
groups are on their way: a longer queue at the device would delay the decoding threads' own reads (at 50 MB/s with
everything requested at once, the first batch took 5 s).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from iofast.containers.base import Located, Reader
from iofast.machine import memory_limit
from iofast.prefetch.advice import FileAdvice, joined, sample
from iofast.prefetch.threads import join_thread, name_for_kernel, start_thread

Locate = Callable[[int, bool], Sequence[Located]]  # (batch, few) to the places of every field read

DEPTH = 256  # batches
BUDGET = 256 << 20  # bytes: two windows of 64 blocks of 64 records of 27 kB

# (batches in a row that were cached, then only one of so many is looked up). Before the first advice everything may be
# cached, and a short epoch must not pay for lookups. Later a window of a block-local order (16 batches) is cached as a
# whole after its first batches, and the next window is not.
_CACHED, _MIXED = (8, 32), (64, 8)
_POLL_S = 0.01  # first pause before asking whether advised bytes have arrived; it doubles
_POLL_MOST_S = 0.64
_JOIN_S = 10.0  # as in jobs.py
_NEVER = sys.maxsize


class Readahead:
    """Advice on batches below `count`, ahead of the consumer, which reports its position with `ask`.

    `located_of(batch, few)` returns the places in `reader` of a batch's payloads, or of a `few` of its rows. The thread
    calls it, so it must not keep this object alive. `budget` is in bytes; the default is an eighth of the memory that
    this process may use, at most 256 MiB. Does nothing on systems without `posix_fadvise`.
    """

    def __init__(
        self, reader: Reader, located_of: Locate, count: int, *, depth: int = DEPTH, budget: int | None = None
    ) -> None:
        self.advice = FileAdvice(reader)
        self._shared = shared = _ThreadState()
        ahead = _Ahead(located_of, self.advice, count, depth, _default_budget() if budget is None else budget)
        self._thread = threading.Thread(
            target=_work, args=(ahead, self.advice, shared), name="iofast-readahead", daemon=True
        )
        # a daemon, a finalizer that also runs at exit, a queue whose `put` a finalizer may call: see jobs.py
        self._finalizer = weakref.finalize(self, _end, self._thread, shared, os.getpid())
        if hasattr(os, "posix_fadvise"):
            try:
                start_thread(self._thread)
            except RuntimeError as error:  # no thread to give: the decoding threads need theirs more
                shared.error, shared.wanted = error, _NEVER

    @property
    def error(self) -> Exception | None:
        """The error that ended the advice early. The decoding threads meet it at the batch it belongs to."""
        return self._shared.error

    def ask(self, batch: int) -> None:
        """Report that the consumer has come to `batch`. Never blocks."""
        if batch >= self._shared.wanted:
            self._shared.asks.put(batch)

    def close(self) -> None:
        """End the thread. Calling it twice is harmless."""
        self._finalizer()


class _ThreadState:
    """What thread and finalizer share, without a reference to the `Readahead`."""

    def __init__(self) -> None:
        self.asks: SimpleQueue[int | None] = SimpleQueue()
        self.wanted = 0  # the thread need not wake up for batches below this one
        self.stop = False
        self.error: Exception | None = None


class _Ahead:
    """The choice of what to advise on next."""

    def __init__(self, located_of: Locate, advice: FileAdvice, count: int, depth: int, budget: int) -> None:
        self._located_of, self._advice, self._count = located_of, advice, count
        self._depth, self._budget = depth, budget
        self._asked = self._next = self._first = -1
        self._bytes = 0  # advised on, beyond the consumer's batch
        self._sizes: deque[tuple[int, int]] = deque()  # (batch, bytes), which add up to `_bytes`
        self._flying: deque[tuple[int, Located]] = deque()  # groups on their way: last batch, a sample of the places
        self._warm = 0  # cached batches in a row
        self._calm, self._each = _CACHED

    def reach(self, batch: int) -> None:
        """Note that the consumer has come to `batch`."""
        self._asked = max(self._asked, batch)
        if self._next < self._asked:  # at the start, or when the consumer has overtaken the advice
            self._first = self._next = self._asked
        while self._sizes and self._sizes[0][0] < self._asked:
            self._bytes -= self._sizes.popleft()[1]

    def wanted(self) -> int:
        """Return the consumer's batch at which to go on: when a quarter of the advice is used up."""
        return _NEVER if self._next >= self._count else self._asked + max(1, (self._next - self._asked) // 4)

    def waits_for_device(self) -> bool:
        """Return whether two groups are on their way. Groups that the consumer has passed do not count."""
        while self._flying and (self._flying[0][0] < self._asked or self._advice.is_there([self._flying[0][1]])):
            self._flying.popleft()
        return len(self._flying) > 1

    def group(self) -> list[Located]:
        """Return the places of the next group of batches; empty if the consumer has to come nearer first."""
        group: list[Located] = []
        stop = min(self._count, self._asked + self._depth)
        most, full = max(1, self._next - self._first), self._bytes + self._budget // 4
        while self._next < stop and len(group) < most and self._bytes < full:
            if self._warm >= self._calm and self._next % self._each:
                self._next += 1
                continue
            # look up a few rows first: while everything is cached, the other rows are not needed
            cached = self._advice.is_there(self._located_of(self._next, True))
            located = self._missing() if cached else self._located_of(self._next, False)
            if not located:
                self._warm, self._next = self._warm + 1, self._next + 1
                continue
            if not cached and self._warm >= self._calm:  # batches that were not looked up may be missing too
                self._warm, self._next = 0, self._sizes[-1][0] + 1 if self._sizes else self._asked
                continue
            size = sum(int(each.length.sum()) for each in located)
            if self._sizes and self._bytes + size > self._budget:
                break
            self._sizes.append((self._next, size))
            self._warm, self._next, self._bytes = 0, self._next + 1, self._bytes + size
            group.append(joined(located))
        if group:
            self._calm, self._each = _MIXED
            self._flying.append((self._next - 1, sample(joined(group))))
        return group

    def _missing(self) -> Sequence[Located]:
        """Return the missing rows of the next batch, whose sample is cached; none before the first advice."""
        return () if self._calm == _CACHED[0] else self._advice.missing(self._located_of(self._next, False))


def _default_budget() -> int:
    limit = memory_limit()  # the page cache counts towards it
    return BUDGET if limit is None else min(BUDGET, limit // 8)


def _work(ahead: _Ahead, advice: FileAdvice, shared: _ThreadState) -> None:
    name_for_kernel()
    pause: float | None = None  # seconds; None: until the consumer has come nearer
    try:
        while shared.wanted < _NEVER:
            with contextlib.suppress(Empty):
                batch = shared.asks.get(timeout=pause)
                if batch is None:
                    return
                ahead.reach(batch)
                pause = 0  # there may be further reports
                continue
            if ahead.waits_for_device():
                pause = min(2 * (pause or _POLL_S), _POLL_MOST_S)
            elif group := ahead.group():
                pause = 0
                for _ in advice.give(group):
                    if shared.stop:
                        return
            else:
                pause, shared.wanted = None, ahead.wanted()
    except Exception as error:  # the decoding threads meet it at the batch it belongs to
        shared.error = error
    finally:
        shared.wanted = _NEVER


def _end(thread: threading.Thread, shared: _ThreadState, pid: int) -> None:
    shared.stop = True
    if os.getpid() != pid:  # a forked child has no such thread
        return
    shared.asks.put(None)
    if threading.current_thread() is not thread and not sys.is_finalizing():
        join_thread(thread, _JOIN_S)
