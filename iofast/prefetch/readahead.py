"""Readahead: a thread advises the kernel on the bytes of coming batches before the decoding threads need them.

Contract: the advice covers at most `depth` batches and `budget` bytes beyond the consumer's batch. It changes no result
and raises nothing. It ends with the last batch, with `close`, with its owner, and with the interpreter. Anything else
is a bug.

Advice is given for groups of batches, sorted by place, so that a window of a block-local order becomes long reads. The
first group is one batch, because the consumer waits for it; each further one is as large as all before it.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from iofast.containers.base import Located, Reader
from iofast.machine import memory_limit
from iofast.prefetch.advice import FileAdvice, joined
from iofast.prefetch.threads import join_thread, name_for_kernel, start_thread

Locate = Callable[[int], Sequence[Located]]  # batch to the places of every field read

DEPTH = 256  # batches
BUDGET = 256 << 20  # bytes: two windows of 64 blocks of 64 records of 27 kB

_JOIN_S = 10.0  # as in jobs.py
_NEVER = sys.maxsize


class Readahead:
    """Advice on batches below `count`, ahead of the consumer, which reports its position with `ask`.

    `located_of(batch)` returns the places in `reader` of a batch's payloads. The thread calls it, so it must not keep
    this object alive. `budget` is in bytes; the default is an eighth of the memory that this process may use, at most
    256 MiB. Does nothing on systems without `posix_fadvise`.
    """

    def __init__(
        self, reader: Reader, located_of: Locate, count: int, *, depth: int = DEPTH, budget: int | None = None
    ) -> None:
        self.advice = FileAdvice(reader)
        self._shared = shared = _ThreadState()
        ahead = _Ahead(located_of, count, depth, _default_budget() if budget is None else budget)
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
        return _NEVER if self._next >= self._count else self._asked + max(1, (self._next - self._asked) // 4)

    def group(self) -> list[Located]:
        """Return the places of the next group of batches; empty if the consumer has to come nearer first."""
        group: list[Located] = []
        stop = min(self._count, self._asked + self._depth)
        most, full = max(1, self._next - self._first), self._bytes + self._budget // 4
        while self._next < stop and len(group) < most and self._bytes < full:
            located = self._located_of(self._next)
            size = sum(int(each.length.sum()) for each in located)
            if self._sizes and self._bytes + size > self._budget:
                break
            self._sizes.append((self._next, size))
            self._next, self._bytes = self._next + 1, self._bytes + size
            group.append(joined(located))
        return group


def _default_budget() -> int:
    limit = memory_limit()  # the page cache counts towards it
    return BUDGET if limit is None else min(BUDGET, limit // 8)


def _work(ahead: _Ahead, advice: FileAdvice, shared: _ThreadState) -> None:
    name_for_kernel()
    try:
        while shared.wanted < _NEVER:
            batch = shared.asks.get()
            while batch is not None and not shared.asks.empty():  # there may be further reports
                batch = shared.asks.get()
            if batch is None:
                return
            ahead.reach(batch)
            while shared.asks.empty() and (group := ahead.group()):
                for _ in advice.give(group):
                    if shared.stop:
                        return
            shared.wanted = ahead.wanted()
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
