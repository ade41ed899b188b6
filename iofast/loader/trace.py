"""A file that shows when each batch was made, by which thread: for Perfetto or chrome://tracing.

A JSON array of trace events, one on each line: a span for each batch and stage. Planning, waiting and handing over have
one; reading, decoding and values have one for each slice of the batch, on the thread that made it. Reading and decoding
alternate in a slice, and are shown one after the other.
"""

import json
import os
import threading
import weakref
from collections import deque
from time import monotonic_ns
from typing import Any, Self, TextIO


class Trace:
    """The trace that a loader writes. It ends with `close()`, or as a context manager."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115  it stays open
        self._file.write("[\n")
        self._events: deque[dict[str, Any]] = deque()  # any thread adds, the consumer writes
        self._named = set[int]()
        self._begun = monotonic_ns()
        header = {"name": "process_name", "ph": "M", "pid": os.getpid(), "args": {"name": "iofast"}}
        self._file.write(json.dumps(header))
        weakref.finalize(self, _end, self._file)

    def add(self, stage: str, place: tuple[int, int], begun: int, ended: int) -> None:
        """Add a span of this thread, in `monotonic_ns`; `place` is the batch's epoch and number."""
        if self.ended:
            return
        thread = threading.get_native_id()
        own = {"pid": os.getpid(), "tid": thread}
        if thread not in self._named:
            self._named.add(thread)
            named = {"name": threading.current_thread().name}
            self._events.append({"name": "thread_name", "ph": "M", **own, "args": named})
        times = {"ts": (begun - self._begun) / 1e3, "dur": (ended - begun) / 1e3}  # microseconds
        args = {"epoch": place[0], "batch": place[1]}
        self._events.append({"name": f"{place[1]} {stage}", "cat": stage, "ph": "X", **own, **times, "args": args})

    def made(self, place: tuple[int, int], begun: int, read: int, decoding: int) -> None:
        """Add a slice of a batch that was begun at `begun`, with nanoseconds of its reading and decoding."""
        self.add("read", place, begun, begun + read)
        self.add("decoded", place, begun + read, begun + read + decoding)
        self.add("values", place, begun + read + decoding, monotonic_ns())

    def handed_over(self, place: tuple[int, int], begun: int, arrived: int) -> None:
        """Add the consumer's spans of a batch, for which it waited from `begun` until `arrived`, and write the file."""
        self.add("waited", place, begun, arrived)
        self.add("handed over", place, arrived, monotonic_ns())
        while self._events and not self.ended:
            self._file.write(",\n" + json.dumps(self._events.popleft()))

    @property
    def ended(self) -> bool:
        """Whether the file is closed."""
        return self._file.closed

    def close(self) -> None:
        """End the file."""
        _end(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _end(file: TextIO) -> None:
    if not file.closed:
        file.write("\n]\n")
        file.close()
