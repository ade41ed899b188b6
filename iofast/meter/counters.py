"""Counters that any thread adds to without a lock, and their sums.

A lock could be copied by a fork while it is held, or wanted by a finalizer in the frame that holds it. Instead each
thread has a row of its own, and reading adds the rows up. A reader may see one figure of a batch and not yet another;
each figure by itself is right and never falls.
"""

from dataclasses import dataclass
from threading import get_ident
from typing import Final

STAGES: Final = ("read", "decode", "queue", "transfer")  # storage, kernel, waiting consumer, copy to the device

_ITEMS, _FAILED, _BYTES, _WORK, _WAIT = range(5)


class Cells:
    """`width` sums. A thread adds to `mine()`; `sums()` adds up all threads."""

    def __init__(self, width: int) -> None:
        self._width = width
        # By thread identity: a new thread may get that of an ended one and takes its row over. So there are no more
        # rows than threads alive at once, however many epochs there are
        self._rows: dict[int, list[int]] = {}

    def mine(self) -> list[int]:
        """Return the calling thread's row; no other thread may add to it."""
        row = self._rows.get(get_ident())
        return self._rows.setdefault(get_ident(), [0] * self._width) if row is None else row

    def sums(self) -> list[int]:
        """Return `width` numbers."""
        rows = list(self._rows.values())
        if len(rows) == 1:
            return rows[0].copy()
        return [sum(column) for column in zip(*rows, strict=True)] if rows else [0] * self._width


@dataclass(frozen=True)
class StageStats:
    """The work of a stage so far, with times summed over its threads.

    items       batches or images, as the stage counts
    failed      items that failed
    bytes       read from storage, or copied to the device
    work_s      seconds at work
    wait_s      seconds waiting for input
    """

    items: int = 0
    failed: int = 0
    bytes: int = 0
    work_s: float = 0.0
    wait_s: float = 0.0


class StageCounter:
    """Counts one stage of a loader; any thread may add at any time. Times are nanoseconds."""

    def __init__(self) -> None:
        self._cells = Cells(5)

    def add(self, items: int = 1, *, work_ns: int = 0, wait_ns: int = 0, nbytes: int = 0, failed: int = 0) -> None:
        """Count `items`, and this thread's time of work and wait for them."""
        row = self._cells.mine()
        row[_ITEMS] += items
        row[_WORK] += work_ns
        row[_WAIT] += wait_ns
        if nbytes:
            row[_BYTES] += nbytes
        if failed:
            row[_FAILED] += failed

    def stats(self) -> StageStats:
        """Return the sums so far."""
        items, failed, nbytes, work, wait = self._cells.sums()
        return StageStats(items, failed, nbytes, work / 1e9, wait / 1e9)


class Stages:
    """One counter for each stage of a loader. `is_remote`: its data is in an object store."""

    def __init__(self, *, is_remote: bool = False) -> None:
        self.is_remote = is_remote
        self.read, self.decode, self.queue, self.transfer = (StageCounter() for _ in STAGES)

    def stats(self) -> dict[str, StageStats]:
        """Return the sums so far by name, in the order of STAGES."""
        return {name: getattr(self, name).stats() for name in STAGES}
