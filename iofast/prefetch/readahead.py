"""Bytes asked of the disk before the decoding threads need them, in the order in which the batches will come.

Contract: a thread of its own advises the kernel on the coming batches, at most `depth` batches and `budget` bytes
beyond the one that the consumer has come to. It only ever advises: it changes no result, raises nothing, and ends with
the last batch, with `close`, and like the threads of `prefetch` with its owner and with the interpreter. While what it
looks at is in the page cache it gives no advice. If the implementation is inconsistent with this, it is a bug.

Advice is given for groups of batches together, sorted by place, so that a window of a block-local order becomes long
reads. The first group is one batch, for which the consumer waits; each next one is as large as all before it. Two
groups at most are on their way: a device that works through a long queue would keep a decoding thread's own read
waiting (measured at 50 MB/s with everything asked for at once: 5 s for the first batch).
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

Locate = Callable[[int, bool], Sequence[Located]]  # of a batch, or a few of its rows: the places of every field read

DEPTH = 256  # batches
BUDGET = 256 << 20  # bytes: two windows of 64 blocks of 64 records of 27 kB

# (so many batches in a row that were there, let only one of so many be looked at). While nothing had to be asked for,
# all may be in the page cache: a short epoch is not to pay for looks. Later a window of a block-local order, of 16
# batches, is there as a whole once its first batches were asked for, and the next window is not.
_CACHED, _MIXED = (8, 32), (64, 8)
_POLL_S = 0.01  # before the first look whether what was asked for has come; each next one waits twice as long
_POLL_MOST_S = 0.64
_JOIN_S = 10.0  # as in prefetch
_NEVER = sys.maxsize


class Readahead:
    """Advice on batches below `count`, ahead of the consumer, who says with `ask` how far it has come.

    `located_of(batch, few)` says where the payloads of a batch, or of a `few` of its rows, lie in `reader`. It is
    called in the thread, so it must not keep this object alive. `budget` is in bytes; without it an eighth of the
    memory that this process may have, 256 MiB at most. On systems without `posix_fadvise` nothing happens.
    """

    def __init__(
        self, reader: Reader, located_of: Locate, count: int, *, depth: int = DEPTH, budget: int | None = None
    ) -> None:
        self.advice = FileAdvice(reader)
        self._shared = shared = _Running()
        budget = _budget() if budget is None else budget
        ahead = _Ahead(located_of, self.advice, count, depth, budget)
        self._thread = threading.Thread(
            target=_work, args=(ahead, self.advice, shared), name="iofast-readahead", daemon=True
        )
        # daemon, a finalizer that runs at exit too, a queue that may be put to from a finalizer: see prefetch
        self._finalizer = weakref.finalize(self, _end, self._thread, shared, os.getpid())
        if hasattr(os, "posix_fadvise"):
            try:
                start_thread(self._thread)
            except RuntimeError as error:  # no more threads to give: those that decode are wanted more
                shared.error, shared.wanted = error, _NEVER

    @property
    def error(self) -> Exception | None:
        """What ended the advice early. The decoding threads meet it too, at the batch it belongs to."""
        return self._shared.error

    def ask(self, batch: int) -> None:
        """The consumer has come to `batch`. Never blocks."""
        if batch >= self._shared.wanted:
            self._shared.asks.put(batch)

    def close(self) -> None:
        """End the thread. Calling it twice is harmless."""
        self._finalizer()


class _Running:
    """Seen by the thread and by the finalizer, so that neither keeps the `Readahead` itself alive."""

    def __init__(self) -> None:
        self.asks: SimpleQueue[int | None] = SimpleQueue()
        self.wanted = 0  # the batch that the thread waits for: it need not wake up before
        self.stop = False
        self.error: Exception | None = None


class _Ahead:
    """What to advise on next."""

    def __init__(self, located_of: Locate, advice: FileAdvice, count: int, depth: int, budget: int) -> None:
        self._located_of, self._advice, self._count = located_of, advice, count
        self._depth, self._budget = depth, budget
        self._asked = self._next = self._first = -1
        self._bytes = 0  # advised on, and the consumer has not yet come to them
        self._sizes: deque[tuple[int, int]] = deque()  # what they are made of: (batch, bytes)
        self._flying: deque[tuple[int, Located]] = deque()  # groups on their way: last batch, and some of their places
        self._warm = 0  # batches in a row that were in the page cache
        self._calm, self._each = _CACHED

    def reach(self, batch: int) -> None:
        """The consumer has come to `batch`."""
        self._asked = max(self._asked, batch)
        if self._next < self._asked:  # at the start, or overtaken
            self._first = self._next = self._asked
        while self._sizes and self._sizes[0][0] < self._asked:
            self._bytes -= self._sizes.popleft()[1]

    def wanted(self) -> int:
        """The batch with which it is worth going on: a quarter of what is ahead is used up."""
        return _NEVER if self._next >= self._count else self._asked + max(1, (self._next - self._asked) // 4)

    def waits_for_device(self) -> bool:
        """Whether two groups are on their way. What the consumer has passed no longer counts."""
        while self._flying and (self._flying[0][0] < self._asked or self._advice.is_there([self._flying[0][1]])):
            self._flying.popleft()
        return len(self._flying) > 1

    def group(self) -> list[Located]:
        """The places of the next group of batches; none where the consumer has to come nearer first."""
        found: list[Located] = []
        stop = min(self._count, self._asked + self._depth)
        most, full = max(1, self._next - self._first), self._bytes + self._budget // 4
        while self._next < stop and len(found) < most and self._bytes < full:
            if self._warm >= self._calm and self._next % self._each:
                self._next += 1
                continue
            # a few rows tell: while all is in the page cache nothing else of a batch is looked up
            there = self._advice.is_there(self._located_of(self._next, True))
            located = self._missing() if there else self._located_of(self._next, False)
            if not located:
                self._warm, self._next = self._warm + 1, self._next + 1
                continue
            if not there and self._warm >= self._calm:  # those that were not looked at may be missing too
                self._warm, self._next = 0, self._sizes[-1][0] + 1 if self._sizes else self._asked
                continue
            size = sum(int(each.length.sum()) for each in located)
            if self._sizes and self._bytes + size > self._budget:
                break
            self._sizes.append((self._next, size))
            self._warm, self._next, self._bytes = 0, self._next + 1, self._bytes + size
            found.append(joined(located))
        if found:
            self._calm, self._each = _MIXED
            self._flying.append((self._next - 1, sample(joined(found))))
        return found

    def _missing(self) -> Sequence[Located]:
        """What a look at every row of the next batch finds missing; nothing while nothing had to be asked for."""
        return () if self._calm == _CACHED[0] else self._advice.missing(self._located_of(self._next, False))


def _budget() -> int:
    """What is read ahead counts as this process's memory."""
    limit = memory_limit()
    return BUDGET if limit is None else min(BUDGET, limit // 8)


def _work(ahead: _Ahead, advice: FileAdvice, shared: _Running) -> None:
    name_for_kernel()
    wait: float | None = None  # seconds; None: until the consumer has come nearer
    try:
        while shared.wanted < _NEVER:
            with contextlib.suppress(Empty):
                batch = shared.asks.get(timeout=wait)
                if batch is None:
                    return
                ahead.reach(batch)
                wait = 0  # there may be more
                continue
            if ahead.waits_for_device():
                wait = min(2 * (wait or _POLL_S), _POLL_MOST_S)
            elif found := ahead.group():
                wait = 0
                for _ in advice.give(found):
                    if shared.stop:
                        return
            else:
                wait, shared.wanted = None, ahead.wanted()
    except Exception as error:  # whatever is wrong with the container, the loader meets it at the batch it belongs to
        shared.error = error
    finally:
        shared.wanted = _NEVER


def _end(thread: threading.Thread, shared: _Running, pid: int) -> None:
    shared.stop = True
    if os.getpid() != pid:  # in a forked child the thread does not exist
        return
    shared.asks.put(None)
    if threading.current_thread() is not thread and not sys.is_finalizing():
        join_thread(thread, _JOIN_S)
