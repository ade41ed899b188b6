"""Classify the values of a foreign LMDB: image files, Caffe's Datums, or neither."""

from __future__ import annotations

from typing import NamedTuple

from iofast import kernel
from iofast.containers.file_bytes import FileBytes
from iofast.errors import DecodeError
from iofast.foreign.cached_index import number_of
from iofast.foreign.datum import TAGS, Datum, NoDatumError, parse_datum
from iofast.kernel.payload import HEAD

ENCODED, COLOUR, GREY, NOTHING, OTHER = range(5)  # image file, 3 planes, 1 plane, Datum without an image; any other

_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")
_PICKLES = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))


class Value(NamedTuple):
    """One value of the LMDB."""

    label: int = -1
    width: int = 0
    height: int = 0
    orientation: int = 1
    kind: int = OTHER
    format: int = 0
    start: int = 0  # offset of the payload in the value
    length: int = 0


def classify(data: FileBytes, offset: int, length: int) -> Value:
    """Classify the value at this place."""
    head = data[offset : offset + min(length, HEAD)]
    if head[:1] and head[0] in TAGS:

        def read(start: int, count: int) -> bytes:
            if start + count <= len(head):
                return head[start : start + count]
            return data[offset + start : offset + start + count]

        try:
            return _of_datum(data, offset, parse_datum(read, length))
        except NoDatumError:
            return Value()
    return _of_image(data, offset, length, -1, head) or Value()


def _of_datum(data: FileBytes, offset: int, datum: Datum) -> Value:
    label, start, length = max(datum.label, -1), datum.start, datum.stop - datum.start
    if datum.is_raw and datum.channels in (1, 3):
        kind = COLOUR if datum.channels == 3 else GREY
        return Value(label, datum.width, datum.height, 1, kind, 0, start, length)
    head = data[offset + start : offset + start + min(length, HEAD)]
    image = None if datum.is_raw else _of_image(data, offset + start, length, label, head)
    if image is None:  # two or four channels, or no pixels: a record without an image
        return Value(label, kind=NOTHING)
    return image._replace(start=start)


def _of_image(data: FileBytes, offset: int, length: int, label: int, head: bytes) -> Value | None:
    """An image file, or None. One with an unreadable header gets no size, and decoding it fails."""
    has_magic = head.startswith(_MAGIC)
    try:
        if has_magic:
            header = kernel.probe(lambda start, count: data[offset + start : offset + start + count], length)
        else:
            header = kernel.read_header(head)
    except DecodeError:
        return Value(label, kind=ENCODED, length=length) if has_magic else None
    number = number_of(header.format)
    return Value(label, header.width, header.height, header.orientation, ENCODED, number, 0, length)


def what_else(data: FileBytes, offset: int, length: int) -> str:
    """Describe a value of the kind `OTHER`, for an error message."""
    head = data[offset : offset + min(length, 16)]
    if head.startswith(_PICKLES):
        return "is pickled, and loading it would run code from the file: store the bytes of the image instead"
    if head[:1] and head[0] in TAGS:
        return "looks like a Caffe Datum of floats, or is another protobuf message"
    return f"is neither an image file nor a Caffe Datum: it begins with {head!r}"
