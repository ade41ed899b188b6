"""A packing worker, `python -m iofast.packing.worker`: read chunks of images from stdin, send records to stdout.

It is a process of its own, so that a file which crashes a codec ends only this process. In a `careful` chunk, on which
a worker has died, it announces each image first. `messages` has what it reads and sends.
"""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from iofast import kernel
from iofast.errors import DecodeError, SourceError, StorageError, because
from iofast.packing.messages import ChunkJob, Done, PackedRecord, decode, described, encode
from iofast.packing.origin import FileOrigin, Origin, origin_of
from iofast.packing.sample import Image, SampleRecipe, make_record

_Order = ChunkJob | dict[str, Any]  # a set-up is a dictionary
_BEAT = 0.25  # seconds between messages during a chunk
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> int:
    """Work until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    _die_with(int(sys.argv[1]))
    # copies: the pipe of answers must not end before the process, or its exit status would not be known
    orders, answers = Connection(os.dup(0), writable=False), Connection(os.dup(int(sys.argv[2])), readable=False)
    return Worker(_Incoming(orders), answers).work()


class Worker:
    """Turns chunks of images into records."""

    def __init__(self, incoming: "_Incoming", answers: "Connection[Any, Any]") -> None:
        self._incoming, self._answers = incoming, answers
        self._recipe = SampleRecipe(kernel.TranscodeRecipe())
        self._origin: Origin = FileOrigin("")
        self._last_sent = time.monotonic()
        self._begun: ChunkJob | None = None  # a chunk whose images the origin fetches already
        self._careful = False

    def work(self) -> int:
        """Handle messages until there are no more (0), or until an error that would repeat for every image (1)."""
        self._send("ready")
        try:
            while (order := self._incoming.next()) is not None:
                if isinstance(order, ChunkJob):
                    self._chunk(order)
                else:
                    self._recipe, self._origin = SampleRecipe.of(order["recipe"]), origin_of(order)
                    self._origin.waiting = self._wait
        except (SourceError, StorageError) as error:  # `_chunk` catches those of images
            self._send("fatal", ("StorageError" if isinstance(error, StorageError) else "SourceError", str(error)))
            return 1
        return 0

    def _send(self, kind: str, value: object = None, payloads: Sequence[bytes] = ()) -> None:
        self._answers.send_bytes(encode(kind, value, payloads))
        self._last_sent = time.monotonic()

    def _chunk(self, job: ChunkJob) -> None:
        records: list[PackedRecord] = []
        failures: list[tuple[int, str]] = []
        bytes_in = left_out = 0
        self._careful = job.careful
        self._origin.begin([] if job.careful else job.images)  # prefetching would hide which image kills the worker
        for image in job.images:
            if self._careful:
                self._send("begin", image.position)
            elif time.monotonic() - self._last_sent > _BEAT:
                self._send("alive")
            if self._origin.overlaps and not self._careful:
                self._begin_next()
            try:
                if reason := job.skip.get(image.position):
                    raise DecodeError(reason)
                sample = self._origin.read(image)
                record = make_record(sample, self._recipe)
                if record is None:
                    left_out += 1
                    continue
                records.append(record)
                bytes_in += len(sample.data) + sum(map(len, sample.beside.values()))
            except StorageError:  # it would fail for every image
                raise
            except Exception as error:  # a damaged image may raise anything, and must not end the run
                reason, where = _reason(error), self._origin.where(image)
                failures.append((image.position, reason if where in reason else f"{reason} (in {where})"))
        if self._careful:
            self._send("begin")  # no image is to blame from here on
        self._send("done", *described(Done(job.chunk, len(job.images), records, failures, bytes_in, left_out)))

    def _wait(self) -> None:
        """Use the time in which the origin waits for an object store."""
        if time.monotonic() - self._last_sent > _BEAT:
            self._send("alive")
        if not self._careful:
            self._begin_next()

    def _begin_next(self) -> None:
        """Have the next chunk fetched while this one is transcoded."""
        following = self._incoming.peek()
        if isinstance(following, ChunkJob) and following is not self._begun:
            self._begun = following
            if not following.careful:
                self._origin.begin(following.images)


def _reason(error: Exception) -> str:
    """One line for the file of errors: the cause, with details in brackets."""
    if isinstance(error, DecodeError):
        return str(error)
    if isinstance(error, OSError):
        from iofast.source.classes import instead_of  # here: workers start without the listing's imports

        missing = isinstance(error, FileNotFoundError) and isinstance(error.filename, bytes)
        return f"the file cannot be read ({because(error)}{instead_of(error.filename) if missing else ''})"
    if isinstance(error, MemoryError):
        return "out of memory"
    return f"unexpected {type(error).__name__} ({' '.join(str(error).split())})"


class _Incoming:
    """Chunks and set-ups, which a thread reads, so that the packing process never waits for room in the pipe."""

    def __init__(self, orders: "Connection[Any, Any]") -> None:
        self._orders = orders
        self._arrived, self._count = deque[_Order | None](), threading.Semaphore(0)
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> "_Order | None":
        """Wait for the next one; None at the end."""
        self._count.acquire()
        return self._arrived.popleft()

    def peek(self) -> "_Order | None":
        """The next one, if it has arrived."""
        return self._arrived[0] if self._arrived else None

    def _read(self) -> None:
        order: _Order | None = {}
        while order is not None:
            try:
                kind, value, _ = decode(self._orders.recv_bytes())
                order = _chunk_of(*value) if kind == "chunk" else value
            except (EOFError, OSError):
                order = None
            self._arrived.append(order)
            self._count.release()


def _chunk_of(chunk: int, images: Sequence[Any], careful: bool, skip: Sequence[tuple[int, str]]) -> ChunkJob:
    return ChunkJob(chunk, [Image(*each) for each in images], careful, dict(skip))


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, not only after the present image."""
    if sys.platform != "linux":
        return  # elsewhere the worker ends when stdin does, after its chunk
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before prctl
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
