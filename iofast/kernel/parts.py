"""Parts of JPEGs in Python: of each payload the smallest JPEG that holds what a box needs, for a decoder elsewhere.

The twin of src/parts.c and src/splice.c, with the same bytes and refusals. If the rows of a JPEG are whole restart
segments, its part has the segments that the box touches, behind a header with the smaller size; otherwise it has the
whole scan. APPn segments and comments are dropped: they may be larger than the pixels, and no decoder may apply an
orientation.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from iofast.boxes import window_pixels, within
from iofast.errors import OptionError
from iofast.kernel import pillow, twin
from iofast.kernel.contract import (
    MIRRORED_X,
    MIRRORED_Y,
    PART_COLUMNS,
    PART_ROOM,
    TURNED,
    Kind,
    Parts,
    Payloads,
    Status,
)
from iofast.kernel.frame import FRAMES, FrameHeader, frame_of

_MARGIN = 2  # pixels around the needed ones that a decoder's upsampling may read
_EOI, _COM = 0xD9, 0xFE
_JFIF = b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes((1, 1, 0, 0, 1, 0, 1, 0, 0))  # marks three components as YCbCr
_FILLED = b"\xff\xff\0"  # a fill byte before a stuffed zero: decoders disagree on its meaning
_MARKER = re.compile(rb"\xff([\x01-\xfe])")
Rect = tuple[int, int, int, int]


def part_batch(
    context: twin.Context,
    source: Payloads,
    boxes: NDArray[np.int32],
    size: tuple[int, int],
    parts: Parts,
    status: NDArray[np.int32],
    start: int,
    stop: int,
) -> None:
    """Write the parts of rows [start, stop) to `parts`; nothing is decoded.

    `source` and `boxes` are those of `decode_batch`; `size` is the (height, width) of the window, which is resampled
    bilinearly. Rows that cannot have a part get `Status.UNSUPPORTED`, and `decode_batch` decodes them or finds the
    error: not a JPEG, raw pixels, progressive, CMYK, damaged markers, or a box that does not fit. A row with too little
    room gets `Status.MEMORY`. Rows of the table without a part are zero. Raises `OptionError` if the arrays do not fit
    together.
    """
    if context.closed:
        raise OptionError("part_batch was called with a context that is closed")
    check_parts(source, boxes, parts, status, start, stop)
    for row in range(start, stop):
        parts.table[row] = 0
        try:
            box = within(boxes[row], size) if context.options.clip else boxes[row]
            parts.table[row] = _write(context, source, row, box.tolist(), size, parts)
            status[row] = Status.OK
        except Exception as error:  # damaged headers raise anything; one row must never end a batch
            status[row] = error.status if isinstance(error, pillow.StatusError) else Status.UNSUPPORTED


def check_parts(
    source: Payloads, boxes: NDArray[np.int32], parts: Parts, status: NDArray[np.int32], start: int, stop: int
) -> None:
    """Raise `OptionError` unless the arrays of `part_batch` fit together."""
    rows = len(status)
    if not 0 <= start <= stop <= rows:
        raise OptionError(f"rows {start} to {stop} are not within a batch of {rows}")
    lengths = {len(column) for column in (*source, boxes, parts.table) if column is not None} | {len(parts.places) - 1}
    if lengths - {rows} or boxes.shape[1:] != (8,) or parts.table.shape[1:] != (len(PART_COLUMNS),):
        raise OptionError(f"part_batch: expected {rows} rows, boxes of 8 and a table of 9, found {sorted(lengths)}")
    places = parts.places[start : stop + 1]
    if (np.diff(places) < 0).any() or places[0] < 0 or places[-1] > len(parts.out):
        raise OptionError(f"places must rise and lie within the {len(parts.out)} bytes of out")


def _write(
    context: twin.Context, source: Payloads, row: int, box: list[int], size: tuple[int, int], parts: Parts
) -> tuple[int, ...]:
    """Write the part of one row and return its row of the table. Raises `StatusError`."""
    if source.indexed_row(row)[0] != Kind.ENCODED:
        raise pillow.StatusError(Status.UNSUPPORTED)
    data, exif = twin.payload(source, row, context.options.max_bytes), int(source.orientations[row])
    frame = frame_of(data)
    if frame is None:
        raise pillow.StatusError(Status.UNSUPPORTED)
    turned = exif in TURNED
    upright = (frame.height, frame.width) if turned else (frame.width, frame.height)
    fits = upright[0] * upright[1] <= context.options.max_pixels and min(size) >= 1
    if not fits or not twin.window_fits(tuple(box), size[::-1], upright):
        raise pillow.StatusError(Status.UNSUPPORTED)
    if twin.is_changed(source, row, upright, lambda: twin.read_header(data).orientation):
        raise pillow.StatusError(Status.UNSUPPORTED)
    mirrored = exif in MIRRORED_X, exif in MIRRORED_Y
    axes = [_needed(box, axis, size[1 - axis], upright[axis], mirrored[axis]) for axis in (0, 1)]
    (x0, x1), (y0, y1) = reversed(axes) if turned else axes
    at, end = parts.places[row : row + 2].tolist()
    part, piece = splice(data, frame, (x0, y0, x1, y1), end - at)
    parts.out[at : at + len(part)] = np.frombuffer(part, np.uint8)
    wanted = piece if frame.spliceable else (x0, y0, x1, y1)
    x, y = piece[:2]
    inner = (wanted[0] - x, wanted[1] - y, wanted[2] - x, wanted[3] - y)
    ends = [wanted[::2], wanted[1::2]]
    if turned:
        ends.reverse()
    corner = [upright[axis] - ends[axis][1] if mirrored[axis] else ends[axis][0] for axis in (0, 1)]
    return len(part), piece[2] - x, piece[3] - y, *inner, *corner


def _needed(box: list[int], axis: int, outputs: int, size: int, mirrored: bool) -> tuple[int, int]:
    """Return the stored pixels [low, high) that the window and the margin cover on an upright axis of `size` pixels."""
    first, end = (int(each[0]) for each in window_pixels(np.array([box]), axis, outputs))
    low, high = (size - end, size - first) if mirrored else (first, end)
    return max(0, low - _MARGIN), min(size, high + _MARGIN)


def splice(data: bytes, frame: FrameHeader, rect: Rect, room: int) -> tuple[bytes, Rect]:
    """Return the JPEG that holds `rect`, and its own rectangle in the image. Raises `StatusError`."""
    origin = _segments(data, frame)
    x0, x1 = _cover(rect[0], rect[2], frame.h, frame.across)
    y0, y1 = _cover(rect[1], rect[3], frame.v, frame.down)
    if frame.spliceable:
        restart, per_row = frame.restart, frame.across // frame.restart
        x0, x1 = x0 - x0 % restart, -(-x1 // restart) * restart
        if x0 > 0 and frame.width - x0 * 8 * frame.h < 8:  # libjpeg upsamples narrow images differently
            x0 -= restart
        runs = [range(y * per_row + x0 // restart, y * per_row + x1 // restart) for y in range(y0, y1)]
        right, bottom = min(x1 * 8 * frame.h, frame.width), min(y1 * 8 * frame.v, frame.height)
        piece = (x0 * 8 * frame.h, y0 * 8 * frame.v, right, bottom)
    else:
        runs, piece = [range(len(origin) - 1)], (0, 0, frame.width, frame.height)
    if frame.scan + PART_ROOM + sum(origin[run.stop] - origin[run.start] for run in runs) > room:
        raise pillow.StatusError(Status.MEMORY)
    part = _header(data, frame, piece[2] - piece[0], piece[3] - piece[1])
    for number, segment in enumerate(segment for run in runs for segment in run):
        part += data[origin[segment] : origin[segment + 1]]
        part[-1] = 0xD0 | number & 7
    part[-1] = _EOI
    return bytes(part), piece


def _cover(low: int, high: int, samples: int, mcus: int) -> tuple[int, int]:
    """Return the MCUs that hold pixels [low, high) of an axis and the next chroma sample, for interpolation."""
    margin = int(samples > 1)
    return max(0, low - margin) // (8 * samples), min(mcus, -(-(high + margin) // (8 * samples)))


def _segments(data: bytes, frame: FrameHeader) -> list[int]:
    """Return the offsets of the restart segments and the end of the last. Raises `StatusError` for a wrong marker."""
    count = -(-frame.across * frame.down // frame.restart) if frame.restart else 1
    origin = [frame.scan]
    for marker in _MARKER.finditer(data, frame.scan):
        origin.append(marker.end())
        last = len(origin) > count
        if data[marker.start(1)] != (_EOI if last else 0xD0 + (len(origin) - 2 & 7)):
            break
        if last and data.find(_FILLED, frame.scan, marker.start()) < 0:
            return origin
    raise pillow.StatusError(Status.UNSUPPORTED)


def _header(data: bytes, frame: FrameHeader, width: int, height: int) -> bytearray:
    """Copy the header up to the scan, with another size, without APPn segments and comments."""
    header, at = bytearray(_JFIF), 2
    while at < frame.scan:
        marker, size = data[at + 1], 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker & 0xF0 != 0xE0 and marker != _COM:
            header += data[at : at + size]
            if marker in FRAMES:
                sides = len(header) - size + 5
                header[sides : sides + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        at += size
    return header
