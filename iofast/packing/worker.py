"""One packing worker: `python -m iofast.packing.worker`, fed chunks of images on stdin, writing records to its journal.

A process of its own, not a fork: the parent may have threads, and a file that crashes a codec takes nobody else along.
It says `ready`, then for each chunk `done`, now and then `alive`, and `fatal` when no further image can succeed. Chunks
that are `careful` (a worker has died on them) announce each image before they touch it.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from iofast import kernel
from iofast.containers.journal import JournalFailure, JournalRecord, JournalWriter
from iofast.errors import DecodeError, TargetError
from iofast.kernel.contract import MAX_BYTES
from iofast.packing.frames import Frames, Message, encode
from iofast.record import RAW_FIELDS, ImageInfo

_BEAT = 0.25  # seconds between signs of life; a redraw of the bar, at most
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_READ = 1 << 16
_JPEG = b"\xff\xd8\xff"


class Image(NamedTuple):
    """One image of a chunk: as the parent's frame lists it."""

    position: int
    split: int
    label: int
    path: str  # as os.fsdecode gives it; relative to the chunk's root, or absolute


def main() -> int:
    """Work until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent alone decides
    _die_with_parent()
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not land between the frames
    worker = Worker(outgoing)
    worker.send({"ready": os.getpid()})
    for message in _messages(incoming):
        if not worker.handle(message):
            return 1
    return 0


class Worker:
    """Turns chunks into journal blocks."""

    def __init__(self, outgoing: int) -> None:
        self._outgoing = outgoing
        self._recipe = kernel.TranscodeRecipe()
        self._root = b""
        self._journal: JournalWriter | None = None
        self._last_sent = time.monotonic()

    def send(self, message: Message) -> None:
        """Write one frame."""
        rest = memoryview(encode(message))
        while rest:
            rest = rest[os.write(self._outgoing, rest) :]
        self._last_sent = time.monotonic()

    def handle(self, message: dict[str, Any]) -> bool:
        """Do what one frame asks; False after an error that every further image would meet again."""
        try:
            if "setup" in message:
                self._set_up(message["setup"])
            else:
                self._chunk(message)
        except TargetError as error:  # of the journal; images' own errors were caught
            self.send({"fatal": str(error)})
            return False
        return True

    def _set_up(self, setup: dict[str, Any]) -> None:
        self._recipe = kernel.TranscodeRecipe(**setup["recipe"])
        self._root = os.fsencode(setup["root"])
        self._journal = JournalWriter(setup["journal"])

    def _chunk(self, message: dict[str, Any]) -> None:
        if self._journal is None:
            raise TargetError("a chunk came before the set-up")
        records: list[JournalRecord] = []
        failures: list[JournalFailure] = []
        bytes_in = 0
        for number, image in enumerate(Image(*row) for row in message["images"]):
            self._show_life(number, image, message["careful"])
            try:
                if reason := message["skip"].get(str(image.position)):
                    raise DecodeError(reason)
                data = read_file(os.path.join(self._root, os.fsencode(image.path)))
                records.append(make_record(data, image, self._recipe))
                bytes_in += len(data)
            except Exception as error:  # a damaged image raises whatever it likes, and one must never end the run
                failures.append(JournalFailure(image.position, os.fsencode(image.path), _reason(error)))
        place = self._journal.append(message["chunk"], records, failures)
        failed = [(failure.position, failure.reason) for failure in failures]
        bytes_out = sum(len(payload) for record in records for payload in record.fields.values())
        sizes = {"bytes_in": bytes_in, "bytes_out": bytes_out}
        self.send({"done": message["chunk"], "offset": place.offset, "failed": failed, **sizes})

    def _show_life(self, number: int, image: Image, careful: bool) -> None:
        if careful:
            self.send({"begin": image.position})
        elif time.monotonic() - self._last_sent > _BEAT:
            self.send({"alive": number})


def make_record(data: bytes, image: Image, recipe: kernel.TranscodeRecipe) -> JournalRecord:
    """The record of one image file, without the fields that the source's own columns become."""
    made = kernel.transcode(data, recipe)
    about = {
        "path": os.fsencode(image.path).decode("utf-8", "backslashreplace"),
        "original_width": made.original_width,
        "original_height": made.original_height,
        "packed": _packed(data, made, recipe),
    }
    if made.field in RAW_FIELDS:
        about |= {"width": made.width, "height": made.height}
    fields = {made.field: made.data, "json": json.dumps(about, sort_keys=True, separators=(",", ":")).encode("ascii")}
    if image.label >= 0:
        fields["cls"] = b"%d" % image.label
    info = ImageInfo(image.label, made.width, made.height, made.orientation)
    return JournalRecord(image.position, image.split, info, fields)


def _packed(data: bytes, made: kernel.Transcoded, recipe: kernel.TranscodeRecipe) -> str:
    """What was done with the image, in one word."""
    if made.data == data:
        return "kept"
    if (made.width, made.height) != (made.original_width, made.original_height):
        return "resized"
    return "rewritten" if recipe.format == "keep" and data.startswith(_JPEG) else "encoded"


def read_file(path: bytes) -> bytes:
    """The bytes of a regular file of 1 to `MAX_BYTES` bytes. Raises `DecodeError`, `OSError`."""
    with open(path, "rb", buffering=0, opener=_open) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DecodeError("not a regular file")
        if not 0 < status.st_size <= MAX_BYTES:
            raise DecodeError("the file is empty" if status.st_size == 0 else "the file is larger than 1 GiB")
        data = file.readall()
        after = os.fstat(file.fileno())
        if (len(data), after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            raise DecodeError(
                f"the file changed while it was read ({status.st_size} bytes before, {after.st_size} after)"
            )
        return data


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # or a FIFO with an image's name would hold the worker for ever


def _reason(error: Exception) -> str:
    """One line for the file of errors: the cause, details in brackets."""
    if isinstance(error, DecodeError):
        return str(error)
    if isinstance(error, OSError):
        return f"the file cannot be read ({(error.strerror or str(error)).lower()})"
    if isinstance(error, MemoryError):
        return "out of memory"
    return f"unexpected {type(error).__name__} ({' '.join(str(error).split())})"


def _messages(incoming: int) -> Iterator[dict[str, Any]]:
    frames = Frames()
    while data := os.read(incoming, _READ):
        yield from frames.feed(data)


def _die_with_parent() -> None:
    """Be killed when the parent is: it notices nothing of a killed parent while inside a long image."""
    if sys.platform != "linux":
        return  # elsewhere the end of stdin, after the chunk in hand, is soon enough
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # it died before the line above
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
