"""The Python twin of the native kernel, on Pillow: the same functions, the same arguments, the same pixels.

It runs where no compiler was there, does the rows that the native kernel does not take (everything but JPEG), and is
the oracle that the native kernel is tested against. `DecodeOptions.fast` changes nothing here: it permits, and asks
for nothing.
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

from iofast.errors import IofastError, OptionError
from iofast.kernel import pillow, raw, resampling, strangers
from iofast.kernel.contract import (
    ALL_FILTERS,
    MAX_PIXELS,
    STAGES,
    WAYS,
    Counts,
    DecodeOptions,
    Header,
    Kind,
    Payloads,
    Status,
    Timed,
)
from iofast.kernel.file_rows import cached as cached
from iofast.kernel.file_rows import read_rows as read_rows
from iofast.kernel.payload import StoredPayload
from iofast.kernel.recode import transcode as transcode
from iofast.work import within

Buffer = bytes | bytearray | memoryview


class Context:
    """What one thread decodes with. The twin keeps nothing between calls; the native kernel keeps its scratch here."""

    def __init__(self, options: DecodeOptions, *, timed: Timed | None = None, way: str | None = None) -> None:
        self.options = options
        self.timed, self.way = timed, way  # of no effect: the twin reads no clock and knows one way
        self.closed = False
        self.decoded = self.unpacked = 0

    @property
    def read_ns(self) -> int:
        """Nothing is timed here."""
        return 0

    def counts(self) -> Counts:
        """The images decoded so far; nothing is timed here."""
        ways = {"raw": self.unpacked, "pillow": self.decoded}
        return Counts(dict.fromkeys(WAYS, 0) | ways, dict.fromkeys(STAGES, 0))

    def close(self) -> None:
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
    finish: None = None,  # noqa: ARG001 (the native kernel's; here `finish_batch` is None, and torch finishes)
) -> None:
    """Decode rows [start, stop): payload → upright RGB → region → resampled to virtual size → window → flip → `out`.

    `boxes` is (N, 8): the region x0, y0, x1, y1 in upright source pixels, the virtual width and height it is resampled
    to, and x, y of the window of the virtual image that is wanted, which has the size of `out`. `flips` is (N,): 1
    mirrors left to right; the bits above, where they are not 0, are the place of a filter in ALL_FILTERS, and one: it
    takes the place of the context's. `out` is uint8 (N, height, width, 3) of any strides. Each row's `Status` goes to
    `status`, and a row that failed is filled with zeros. A payload that has a checksum is read and compared as a
    whole. Raises `OptionError` if the arrays do not fit together.
    """
    if context.closed:
        raise OptionError("decode_batch was called with a context that is closed")
    if not 0 <= start <= stop <= len(out):
        raise OptionError(f"rows {start} to {stop} are not within a batch of {len(out)}")
    decode_rows(context.options, source, boxes, flips, out, status, range(start, stop))
    done = status[start:stop] == Status.OK
    unpacked = 0 if source.indexed is None else int((done & (source.indexed[start:stop, 0] != Kind.ENCODED)).sum())
    context.unpacked += unpacked
    context.decoded += int(done.sum()) - unpacked


def decode_rows(
    options: DecodeOptions,
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    out: NDArray[np.uint8],
    status: NDArray[np.int32],
    rows: Iterable[int],
) -> None:
    """`decode_batch` for exactly the given rows."""
    _check_shapes(source, boxes, flips, out, status)
    size = (out.shape[2], out.shape[1])
    for row in rows:
        try:
            box = tuple(int(edge) for edge in boxes[row])
            mirrored, filter = flips[row] & 1, int(flips[row]) >> 1
            own = replace(options, filter=ALL_FILTERS[filter - 1]) if filter else options
            width, height = size
            if options.clip:
                box = tuple(within(boxes[row], out.shape[1:3]).tolist())
                width, height = max(min(width, box[4]), 1), max(min(height, box[5]), 1)
            if source.indexed is None or source.indexed[row, 0] == Kind.ENCODED:
                pixels = _window(source, row, box, (width, height), own)
            else:
                pixels = _raw_window(source, row, source.indexed[row].tolist(), box, (width, height), own)
            out[row, :height, :width] = pixels[:, ::-1] if mirrored else pixels
            status[row] = Status.OK
        except Exception as error:  # a damaged image raises whatever it likes; one row must never end a batch
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
    """`decode_batch` of all rows, each into an array (height, width, 3) of its own size and any strides."""
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
    """Raise `OptionError` unless every array has a row for each of `outs`, which are of `dtype`."""
    lengths = {len(column) for column in (*source, boxes, flips, status) if column is not None}
    if lengths - {len(outs)}:
        raise OptionError(f"decode_each wants {len(outs)} rows, as outs has, found {sorted(lengths)}")
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
        raise OptionError(f"source, flips and status must have the shape ({len(out)},) as out has, found {shapes}")


def payload(source: Payloads, row: int, max_bytes: int) -> bytes:
    """A row's payload as a whole, its checksum compared. Raises `StatusError`."""
    length = int(source.lengths[row])
    if length > max_bytes:
        raise pillow.StatusError(Status.LIMIT)
    data = _bytes(source, row, 0, length)
    if source.crcs is not None and source.crcs[row] >= 0 and crc32c(data) != source.crcs[row]:
        raise pillow.StatusError(Status.CHECKSUM)
    return data


def stranger(source: Payloads, row: int) -> str:
    """What a row is that is no image here, "" where its first bytes do not tell."""
    try:
        return strangers.described(_bytes(source, row, 0, min(int(source.lengths[row]), 256)))
    except pillow.StatusError:
        return ""


def is_changed(source: Payloads, row: int, upright: tuple[int, int], orientation: Callable[[], int]) -> bool:
    """Whether the header of an encoded image, its size made upright, contradicts what the index says of it."""
    kind, *size = (Kind.ENCODED, 0, 0) if source.indexed is None else source.indexed[row].tolist()
    if kind != Kind.ENCODED or size[0] <= 0:
        return False
    turn = int(source.orientations[row])
    return tuple(size) != upright or (1 <= turn <= 8 and turn != orientation())


def _bytes(source: Payloads, row: int, start: int, length: int) -> bytes:
    """Some bytes of a payload."""
    fd, offset = int(source.fds[row]), int(source.offsets[row]) + start
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


def _window(
    source: Payloads, row: int, box: tuple[int, ...], size: tuple[int, int], options: DecodeOptions
) -> NDArray[np.uint8]:
    opened = open_row(source, row, box, size, options)
    upright = pillow.turn(pillow.load(opened), int(source.orientations[row]))
    return _rgb(resampling.resample(upright, box, size, options.filter))


def open_row(
    source: Payloads, row: int, box: tuple[int, ...], size: tuple[int, int], options: DecodeOptions
) -> pillow.Opened:
    """An image that is as it was indexed, of which the window of `size` can be made. Raises `StatusError`."""
    opened = pillow.open_image(payload(source, row, options.max_bytes), options.max_pixels)
    orientation = int(source.orientations[row])
    if is_changed(source, row, opened.upright(orientation), lambda: opened.orientation):
        raise pillow.StatusError(Status.CHANGED)
    _check_box(box, size, opened.upright(orientation))
    if options.strict:
        pillow.check_end(opened)
        return opened
    return pillow.mend_end(opened)


def _raw_window(
    source: Payloads, row: int, what: list[int], box: tuple[int, ...], size: tuple[int, int], options: DecodeOptions
) -> NDArray[np.uint8]:
    """`_window` of raw pixels."""
    orientation = int(source.orientations[row])
    pixels = raw_row(source, row, what, box, size, options)
    return _rgb(resampling.resample(pillow.turn(pixels, orientation), box, size, options.filter))


def raw_row(
    source: Payloads, row: int, what: list[int], box: tuple[int, ...], size: tuple[int, int], options: DecodeOptions
) -> Image.Image:
    """Raw pixels as they are stored. Everything about their size is checked before they are read, as the kernel does
    it. Raises `StatusError`."""
    kind, width, height = what
    length, orientation = int(source.lengths[row]), int(source.orientations[row])
    if length > options.max_bytes:
        raise pillow.StatusError(Status.LIMIT)
    if kind not in (Kind.RGB, Kind.YUV420):
        raise pillow.StatusError(Status.UNSUPPORTED)
    if width < 1 or height < 1:
        raise pillow.StatusError(Status.CORRUPT)
    if width * height > options.max_pixels:
        raise pillow.StatusError(Status.LIMIT)
    if length != raw.length(kind, width, height):
        raise pillow.StatusError(Status.TRUNCATED if length < raw.length(kind, width, height) else Status.CORRUPT)
    _check_box(box, size, (width, height))
    stored = (height, width) if 5 <= orientation <= 8 else (width, height)
    data = payload(source, row, options.max_bytes)
    return Image.fromarray(raw.unpack(data, kind, *stored))


def _check_box(box: tuple[int, ...], size: tuple[int, int], image: tuple[int, int]) -> None:
    """Raise `StatusError` unless the window of `size` lies in the resampled region, and that in the upright image."""
    x0, y0, x1, y1, virtual_width, virtual_height, x, y = box
    if not (0 <= x0 < x1 <= image[0] and 0 <= y0 < y1 <= image[1]):
        raise pillow.StatusError(Status.BOX)
    if not (0 <= x <= virtual_width - size[0] and 0 <= y <= virtual_height - size[1]):
        raise pillow.StatusError(Status.BOX)


def _rgb(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image.convert("RGB"), dtype=np.uint8)


def read_header(data: Buffer | StoredPayload) -> Header:
    """What an image says before its pixels are decoded. Raises `DecodeError`.

    Where it raises on the first part of a file it may still succeed on the whole.
    """
    try:
        return pillow.header(pillow.open_image(data if isinstance(data, StoredPayload) else _as_bytes(data), 1 << 62))
    except IofastError:  # of what reads the file
        raise
    except Exception as error:  # Pillow's plugins raise anything on damaged headers
        raise pillow.decode_error(error) from error


def decode(data: Buffer, orientation: int = 1, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """A whole image as upright RGB, uint8 (height, width, 3), given its EXIF orientation. Raises `DecodeError`."""
    try:
        opened = pillow.open_image(_as_bytes(data), max_pixels)
        pillow.check_end(opened)
        return _rgb(pillow.turn(pillow.load(opened), orientation))
    except Exception as error:  # as above
        raise pillow.decode_error(error) from error


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC32C (Castagnoli) of `data`; `value` is the CRC32C of what comes before it."""
    return int(google_crc32c.extend(value, _as_bytes(data)))


def _as_bytes(data: Buffer) -> bytes:
    return data if isinstance(data, bytes) else bytes(data)
