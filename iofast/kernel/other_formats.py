"""Images that Pillow decodes for the kernel: formats and JPEGs that the C code does not support."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from iofast.kernel import lossless, memory, pillow, strangers
from iofast.kernel.contract import (
    MAX_BYTES,
    MAX_MEMORY,
    MAX_PIXELS,
    MESSAGES,
    DecodeOptions,
    Header,
    Kind,
    Payloads,
    Status,
    beyond,
    check_size,
)
from iofast.kernel.payload import StoredPayload

Buffer = bytes | bytearray | memoryview


def as_bytes(data: Buffer) -> bytes:
    """Return `data`, or a copy of it if it is not bytes."""
    return data if isinstance(data, bytes) else bytes(data)


@pillow.as_decode_errors()
def read_header(data: Buffer | StoredPayload, max_pixels: int = MAX_PIXELS, max_memory: int = MAX_MEMORY) -> Header:
    """Read the header of an image of any format; see `native.read_header`."""
    payload = data if isinstance(data, StoredPayload) else as_bytes(data)
    header = lossless.header(payload, max_pixels, max_memory)
    check_size(header.width, header.height, max_pixels)
    return header


@pillow.as_decode_errors()
def decode(
    data: Buffer, orientation: int = 1, max_pixels: int = MAX_PIXELS, max_memory: int = MAX_MEMORY
) -> NDArray[np.uint8]:
    """Decode a whole image; see `native.decode`."""
    opened = memory.loaded(as_bytes(data), max_pixels, max_memory)
    return pillow.array(pillow.turn(pillow.plain(opened.image), orientation), "RGB")


@contextmanager
def decoded_row(source: Payloads, row: int, options: DecodeOptions) -> Iterator[Image.Image]:
    """Decode an encoded image of a batch to `L` or `RGB` as it is stored, and keep its memory reserved meanwhile.

    Raises `StatusError`, or any of Pillow's.
    """
    if source.indexed_row(row)[0] != Kind.ENCODED:
        raise pillow.StatusError(Status.UNSUPPORTED)
    opened = memory.opened(read_payload(source, row, options.max_bytes), options.max_pixels)
    (_, *size), orientation = source.indexed_row(row), int(source.orientations[row])
    is_turned = 1 <= orientation <= 8 and orientation != opened.orientation
    if size[0] > 0 and (is_turned or tuple(size) != opened.upright(orientation)):  # its header contradicts the index
        raise pillow.StatusError(Status.CHANGED)
    if options.strict:
        pillow.check_end(opened)
    else:
        opened = pillow.mend_end(opened)
    with memory.reserved(memory.of_levels(opened)):
        opened.image.load()
        yield pillow.plain(opened.image)


def read_payload(source: Payloads, row: int, max_bytes: int) -> bytes:
    """Return the payload of a row after its checksum was compared. Raises `StatusError`."""
    length = int(source.lengths[row])
    if length > max_bytes:
        raise beyond("bytes", f"{length} bytes, the limit is {max_bytes}")
    data = _bytes(source, row, length)
    if source.crcs is not None and source.crcs[row] >= 0 and google_crc32c.value(data) != source.crcs[row]:
        raise pillow.StatusError(Status.CHECKSUM)
    return data


def _bytes(source: Payloads, row: int, length: int) -> bytes:
    """Return the first bytes of a payload. Raises `StatusError`."""
    fd, offset = int(source.fds[row]), int(source.offsets[row])
    if fd == -1:
        return ctypes.string_at(offset, length)
    parts = []
    while length:
        try:
            part = os.pread(fd, length, offset)
        except (OSError, OverflowError) as error:
            raise pillow.StatusError(Status.READ, str(error)) from error
        if not part:
            raise pillow.StatusError(Status.SHORT)
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return b"".join(parts)  # of a single one without a copy


def failure(status: int, source: Payloads, row: int) -> str:
    """Explain why a row was not decoded: the format of an unsupported file, the limit that a large one exceeds."""
    detail = ""
    try:
        if status == Status.UNSUPPORTED:
            detail = strangers.described(_bytes(source, row, min(int(source.lengths[row]), 256)))
        elif status == Status.LIMIT:
            opened = memory.opened(read_payload(source, row, MAX_BYTES))
            if opened.format == "jpeg":
                memory.check_whole(pillow.header(opened), len(opened.data))
    except Exception as error:  # of Pillow's plugins, too
        if (found := pillow.failure(error)).status == status:
            return found.reason
    return MESSAGES[Status(status)] + (f" ({detail})" if detail else "")
