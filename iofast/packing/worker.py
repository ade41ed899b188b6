"""A packing worker, `python -m iofast.packing.worker`: read chunks of images from stdin, send records to stdout.

It is a process of its own, so that a file which crashes a codec ends only this process. It sends `ready`, then `done`
for each chunk, `alive` now and then, and `fatal` when no further image can succeed. In a `careful` chunk, on which a
worker has died, it announces each image first.
"""

import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from iofast import kernel
from iofast.errors import DecodeError, SourceError, StorageError, because
from iofast.packing.messages import Frames, Message, PackedRecord, described, encode
from iofast.packing.origin import FileOrigin, Origin, origin_of
from iofast.packing.sample import Image, SampleRecipe, make_record

_BEAT = 0.25  # seconds between messages during a chunk
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_READ = 1 << 16


def main(parent: int | None = None) -> int:
    """Work until stdin ends. `parent`: pid of the packing process, by default from the arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    _die_with(int(sys.argv[1]) if parent is None else parent)
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # libraries must not print between the frames
    messages = _Incoming(incoming)
    worker = Worker(outgoing, messages.peek)
    worker.send({"ready": os.getpid()})
    for message in messages:
        if not worker.handle(message):
            return 1
    return 0


class Worker:
    """Turn chunks of images into records. `peek` returns the message after the present one, if it has arrived."""

    def __init__(self, outgoing: int, peek: Callable[[], dict[str, Any] | None] = lambda: None) -> None:
        self._outgoing, self._peek = outgoing, peek
        self._recipe = SampleRecipe(kernel.TranscodeRecipe())
        self._origin: Origin = FileOrigin("")
        self._last_sent = time.monotonic()
        self._begun: dict[str, Any] | None = None  # a chunk whose images the origin fetches already
        self._careful = False

    def send(self, message: Message, payloads: Sequence[bytes] = ()) -> None:
        """Write one frame."""
        rest = memoryview(encode(message, payloads))
        while rest:
            rest = rest[os.write(self._outgoing, rest) :]
        self._last_sent = time.monotonic()

    def handle(self, message: dict[str, Any]) -> bool:
        """Handle one frame. Return False after an error that would repeat for every image."""
        try:
            if "setup" in message:
                self._recipe = SampleRecipe.of(message["setup"]["recipe"])
                self._origin = origin_of(message["setup"])
                self._origin.waiting = self._wait
            else:
                self._chunk(message)
        except (SourceError, StorageError) as error:  # `_chunk` catches those of images
            self.send({"fatal": str(error), "of": "source" if isinstance(error, SourceError) else "storage"})
            return False
        return True

    def _chunk(self, message: dict[str, Any]) -> None:
        records: list[PackedRecord] = []
        failures: list[tuple[int, str]] = []
        bytes_in = left_out = 0
        self._careful = message["careful"]
        images = [Image(*row) for row in message["images"]]
        self._origin.begin([] if message["careful"] else images)  # prefetching would hide which image kills the worker
        for number, image in enumerate(images):
            if self._careful:
                self.send({"begin": image.position})
            elif time.monotonic() - self._last_sent > _BEAT:
                self.send({"alive": number})
            if self._origin.overlaps and not self._careful:
                self._begin_next()
            try:
                if reason := message["skip"].get(str(image.position)):
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
        if message["careful"]:
            self.send({"begin": None})  # no image is to blame from here on
        rows, payloads = described(records)
        done = {"done": message["chunk"], "records": rows, "failed": failures, "left_out": left_out}
        self.send({**done, "bytes_in": bytes_in}, payloads)

    def _wait(self) -> None:
        """Use the time in which the origin waits for an object store."""
        if time.monotonic() - self._last_sent > _BEAT:
            self.send({"alive": 0})
        if not self._careful:
            self._begin_next()

    def _begin_next(self) -> None:
        """Have the next chunk fetched while this one is transcoded."""
        following = self._peek()
        if following is not None and following is not self._begun and not following.get("careful", True):
            self._begun = following
            self._origin.begin([Image(*row) for row in following["images"]])


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
    """The messages from a pipe."""

    def __init__(self, fd: int) -> None:
        self._fd, self._frames = fd, Frames()
        self._arrived: deque[dict[str, Any]] = deque()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self._arrived or self._read():
            if self._arrived:
                yield self._arrived.popleft()

    def peek(self) -> dict[str, Any] | None:
        """The next message, if it has arrived."""
        if not self._arrived and select.select([self._fd], [], [], 0)[0]:
            self._read()
        return self._arrived[0] if self._arrived else None

    def _read(self) -> bool:
        """Wait for bytes. Return False at the end of the pipe."""
        data = os.read(self._fd, _READ)
        self._arrived.extend(message for message, _ in self._frames.feed(data))
        return bool(data)


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
