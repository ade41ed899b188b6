"""The Python twin of the native kernel, on Pillow: the same functions, arguments and pixels.

It replaces the native kernel where that was not built, decodes the images that the native kernel leaves (encoded, but
no JPEG), and is the oracle of its tests. `DecodeOptions.fast` has no effect here: it only permits approximation.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from iofast.boxes import HEIGHT, WIDTH, within
from iofast.errors import IofastError, OptionError
from iofast.kernel import lossless, memory, pillow, resampling, strangers
from iofast.kernel.contract import (
    ALL_FILTERS,
    MAX_BYTES,
    MAX_MEMORY,
    MAX_PIXELS,
    STAGES,
    TURNED,
    WAYS,
    Counts,
    DecodeOptions,
    Header,
    Kind,
    Payloads,
    Status,
    Timed,
    check_decoder,
)
from iofast.kernel.file_rows import read_rows as read_rows
from iofast.kernel.payload import StoredPayload
from iofast.kernel.recode import transcode as transcode
from iofast.record import raw_length

Buffer = bytes | bytearray | memoryview
Box = tuple[int, ...]  # the eight numbers of a row of `boxes`
Size = tuple[int, int]


class Context:
    """The decoding state of one thread. The twin keeps only its options and counts."""

    read_ns = 0  # nothing is timed

    def __init__(self, options: DecodeOptions, *, timed: Timed | None = None, decoder: str | None = None) -> None:
        del timed  # the twin has no clock, and one decoding path
        check_decoder(decoder)
        self.options = options
        self.closed = False
        self.decoded = self.unpacked = 0

    def counts(self) -> Counts:
        """Return the images decoded so far; all times are zero."""
        ways = {"raw": self.unpacked, "pillow": self.decoded}
        return Counts(dict.fromkeys(WAYS, 0) | ways, dict.fromkeys(STAGES, 0))

    def close(self) -> None:
        """Refuse further calls."""
        self.closed = True


def decode_batch(
    context: Context,
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    out: NDArray[np.uint8],
    status: NDArray[np.int32],
    start: int,
    stop: int,
    finish: None = None,  # noqa: ARG001 (native only: here `finish_batch` is None, and torch finishes)
) -> None:
    """Decode rows [start, stop): payload → upright RGB → region → resampled to virtual size → window → flip → `out`.

    boxes   (N, 8): the region x0, y0, x1, y1 in upright source pixels, the virtual width and height that it is
            resampled to, and x, y of the wanted window in the virtual image; the window has the size of `out`
    flips   (N,): bit 0 mirrors left to right. The other bits are 0, or the index of a filter in ALL_FILTERS plus one:
            that filter replaces the context's
    out     uint8 (N, height, width, 3), any strides
    status  (N,): receives the `Status` of each row. Failed rows are filled with zeros

    A payload with a checksum is read and compared as a whole. Raises `OptionError` if the arrays do not fit together.
    """
    if context.closed:
        raise OptionError("decode_batch was called with a context that is closed")
    if not 0 <= start <= stop <= len(out):
        raise OptionError(f"rows {start} to {stop} are not within a batch of {len(out)}")
    _check_shapes(source, boxes, flips, out, status)
    decode_rows(context.options, source, boxes, flips, out, status, range(start, stop))
    done = np.flatnonzero(status[start:stop] == Status.OK) + start
    unpacked = sum(source.indexed_row(row)[0] != Kind.ENCODED for row in done.tolist())
    context.unpacked += unpacked
    context.decoded += len(done) - unpacked


def decode_rows(
    options: DecodeOptions,
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    out: NDArray[Any],
    status: NDArray[np.int32],
    rows: Iterable[int],
) -> None:
    """Decode the given rows, as `decode_batch` does, of arrays that fit together."""
    for row in rows:
        try:
            mirrored, filter = flips[row] & 1, int(flips[row]) >> 1
            own = replace(options, filter=ALL_FILTERS[filter - 1]) if filter else options
            height, width = out.shape[1:3]
            box: Box = tuple(boxes[row].tolist())
            if options.clip:
                box = tuple(within(boxes[row], (height, width)).tolist())
                width, height = max(min(width, box[WIDTH]), 1), max(min(height, box[HEIGHT]), 1)
            pixels = _rgb_row(source, row, box, (width, height), own)
            out[row, :height, :width] = pixels[:, ::-1] if mirrored else pixels
            status[row] = Status.OK
        except Exception as error:  # damaged images raise anything; one row must never end a batch
            out[row] = 0
            status[row] = pillow.failure(error).status


def decode_each(
    context: Context,
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    outs: Sequence[NDArray[np.uint8]],
    status: NDArray[np.int32],
    finish: None = None,  # noqa: ARG001 (as for `decode_batch`)
) -> None:
    """Decode all rows, each into its own array (height, width, 3) of any size and strides; see `decode_batch`."""
    check_each(source, boxes, flips, outs, status)
    for row, out in enumerate(outs):
        one = slice(row, row + 1)
        decode_batch(context, source.rows(one), boxes[one], flips[one], out[None], status[one], 0, 1)


def check_each(
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    outs: Sequence[NDArray[Any]],
    status: NDArray[np.int32],
    dtype: type[np.generic] = np.uint8,
) -> None:
    """Raise `OptionError` unless every array has one row for each of `outs`, which are of `dtype`."""
    lengths = {len(column) for column in (*source, boxes, flips, status) if column is not None}
    if lengths - {len(outs)}:
        raise OptionError(f"decode_each: expected {len(outs)} rows, as in outs, found {sorted(lengths)}")
    if any(out.ndim != 3 or out.shape[2] != 3 or out.dtype != dtype or 0 in out.shape for out in outs):
        shapes = ", ".join(f"{out.dtype} {out.shape}" for out in outs)
        raise OptionError(f"each of outs must be {dtype.__name__} of shape (height, width, 3), found {shapes:.200}")


def _check_shapes(
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    out: NDArray[np.uint8],
    status: NDArray[np.int32],
) -> None:
    if out.ndim != 4 or out.shape[3] != 3 or out.dtype != np.uint8 or 0 in out.shape[1:]:
        raise OptionError(f"out must be uint8 of shape (N, height, width, 3), found {out.dtype} {out.shape}")
    if boxes.shape != (len(out), 8):
        raise OptionError(f"boxes must have the shape ({len(out)}, 8), found {boxes.shape}")
    if source.indexed is not None and source.indexed.shape != (len(out), 3):
        raise OptionError(f"indexed must have the shape ({len(out)}, 3), found {source.indexed.shape}")
    columns = [column for column in (*source[:5], flips, status) if column is not None]
    if any(column.shape != (len(out),) for column in columns):
        shapes = ", ".join(str(column.shape) for column in columns)
        raise OptionError(f"source, flips and status must have the shape ({len(out)},), as out has, found {shapes}")


def payload(source: Payloads, row: int, max_bytes: int) -> bytes:
    """Return a row's payload after its checksum was compared. Raises `StatusError`."""
    length = int(source.lengths[row])
    if length > max_bytes:
        raise pillow.StatusError(Status.LIMIT)
    data = _bytes(source, row, length)
    if source.crcs is not None and source.crcs[row] >= 0 and crc32c(data) != source.crcs[row]:
        raise pillow.StatusError(Status.CHECKSUM)
    return data


def detail(source: Payloads, row: int, status: int) -> str:
    """What a row is that is not a supported image, by its first bytes, or that is too large; "" if unknown."""
    try:
        if status == Status.UNSUPPORTED:
            return strangers.described(_bytes(source, row, min(int(source.lengths[row]), 256)))
        if status == Status.LIMIT:
            memory.opened(payload(source, row, MAX_BYTES))
    except Exception as error:  # of Pillow's plugins, too
        reason = pillow.failure(error)
        return str(reason) if reason.status == status else ""
    return ""


def is_changed(source: Payloads, row: int, upright: Size, orientation: Callable[[], int]) -> bool:
    """Whether the header of an encoded image, with its size made upright, contradicts the index."""
    (kind, *size), turn = source.indexed_row(row), int(source.orientations[row])
    if kind != Kind.ENCODED or size[0] <= 0:
        return False
    return tuple(size) != upright or (1 <= turn <= 8 and turn != orientation())


def _bytes(source: Payloads, row: int, length: int) -> bytes:
    """Return the first bytes of a payload."""
    fd, offset = int(source.fds[row]), int(source.offsets[row])
    return ctypes.string_at(offset, length) if fd == -1 else _read(fd, offset, length)


def _read(fd: int, offset: int, length: int) -> bytes:
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
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _rgb_row(source: Payloads, row: int, box: Box, size: Size, options: DecodeOptions) -> NDArray[np.uint8]:
    stored = pillow.plain(_stored_row(source, row, box, size, options))
    upright = pillow.turn(stored, int(source.orientations[row]))
    return pillow.rgb(resampling.resample(upright, box, size, options.filter))


def decoded_row(source: Payloads, row: int, box: Box, size: Size, options: DecodeOptions) -> NDArray[np.uint8]:
    """Decode a row to RGB as it is stored, if a window of `size` can be cut out of it. Raises any error."""
    return np.asarray(pillow.plain(_stored_row(source, row, box, size, options)).convert("RGB"), dtype=np.uint8)


def _stored_row(source: Payloads, row: int, box: Box, size: Size, options: DecodeOptions) -> Image.Image:
    """Decode a row as it is stored, if a window of `size` can be cut out of it. Raises `StatusError`."""
    if source.indexed_row(row)[0] != Kind.ENCODED:
        return _raw_row(source, row, box, size, options)
    opened = memory.opened(payload(source, row, options.max_bytes), options.max_pixels)
    orientation = int(source.orientations[row])
    if is_changed(source, row, opened.upright(orientation), lambda: opened.orientation):
        raise pillow.StatusError(Status.CHANGED)
    _check_box(box, size, opened.upright(orientation))
    if options.strict:
        pillow.check_end(opened)
    else:
        opened = pillow.mend_end(opened)
    opened.image.load()
    return opened.image


def _raw_row(source: Payloads, row: int, box: Box, size: Size, options: DecodeOptions) -> Image.Image:
    """Unpack raw pixels. As in the kernel, their size is validated before they are read. Raises `StatusError`."""
    kind, width, height = source.indexed_row(row)
    length, orientation = int(source.lengths[row]), int(source.orientations[row])
    if length > options.max_bytes:
        raise pillow.StatusError(Status.LIMIT)
    if kind != Kind.RGB:
        raise pillow.StatusError(Status.UNSUPPORTED)
    if width < 1 or height < 1:
        raise pillow.StatusError(Status.CORRUPT)
    if width * height > options.max_pixels:
        raise pillow.StatusError(Status.LIMIT)
    if length != raw_length(width, height):
        raise pillow.StatusError(Status.TRUNCATED if length < raw_length(width, height) else Status.CORRUPT)
    _check_box(box, size, (width, height))
    stored = (height, width) if orientation in TURNED else (width, height)
    return Image.frombytes("RGB", stored, bytes(payload(source, row, options.max_bytes)))


def _check_box(box: Box, size: Size, image: Size) -> None:
    if not window_fits(box, size, image):
        raise pillow.StatusError(Status.BOX)


def window_fits(box: Box, size: Size, image: Size) -> bool:
    """Whether a window of `size` lies in its resampled region, and the region in the upright image; (width, height)."""
    x0, y0, x1, y1, virtual_width, virtual_height, x, y = box
    inside = 0 <= x0 < x1 <= image[0] and 0 <= y0 < y1 <= image[1]
    return inside and 0 <= x <= virtual_width - size[0] and 0 <= y <= virtual_height - size[1]


def read_header(data: Buffer | StoredPayload, max_pixels: int = MAX_PIXELS, max_memory: int = MAX_MEMORY) -> Header:
    """Read the header of an image. Raises `DecodeError`, also if decoding it would exceed a limit.

    If it fails on the first part of a file, it may still succeed on the whole.
    """
    try:
        payload = data if isinstance(data, StoredPayload) else as_bytes(data)
        header = lossless.header(payload, max_pixels, max_memory)
        pillow.check_size(header.width, header.height, max_pixels)
        return header
    except IofastError:  # raised while reading the file
        raise
    except Exception as error:  # Pillow's plugins raise anything on damaged headers
        raise pillow.decode_error(error) from error


def decode(data: Buffer, orientation: int = 1, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Decode a whole image with an EXIF orientation to upright RGB, uint8 (height, width, 3). Raises `DecodeError`."""
    try:
        opened = memory.opened(as_bytes(data), max_pixels)
        pillow.check_end(opened)
        opened.image.load()
        return pillow.rgb(pillow.turn(pillow.plain(opened.image), orientation))
    except Exception as error:  # as above
        raise pillow.decode_error(error) from error


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC32C (Castagnoli) of `data`; `value` is the CRC32C of the bytes before it."""
    return int(google_crc32c.extend(value, as_bytes(data)))


def as_bytes(data: Buffer) -> bytes:
    """Return `data`, or a copy of it if it is not bytes."""
    return data if isinstance(data, bytes) else bytes(data)
