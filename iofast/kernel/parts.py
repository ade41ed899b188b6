"""Parts of JPEGs in Python: of each payload the smallest JPEG that holds what a box needs, for a decoder elsewhere.

The twin of src/parts.c and src/splice.c: the same bytes, the same refusals. A JPEG whose
rows are whole restart segments gives those segments that the box touches, behind a header with the smaller size;
another gives its whole scan. Neither keeps APPn segments or comments: they may be larger than the pixels, and no
decoder is to turn the picture by itself.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

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
from iofast.work import within

_MARGIN = 2  # pixels around what is needed that a decoder's upsampling may look at
_EOI, _COM = 0xD9, 0xFE
_JFIF = b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes((1, 1, 0, 0, 1, 0, 1, 0, 0))  # its three components are YCbCr
_FILLED = b"\xff\xff\0"  # a fill byte before a stuffed zero: only libjpeg itself knows what libjpeg makes of it
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
    """Rows [start, stop): payload → checksum → the part of it that the row's box needs → `parts`. Nothing is decoded.

    `source` and `boxes` are `decode_batch`'s, `size` is (height, width) of the window, which is taken to be resampled
    bilinearly. A row that is whole but nothing for `parts` (no JPEG, raw pixels, progressive, CMYK, damaged as far as
    its markers tell, a box that does not fit) gets `Status.UNSUPPORTED`: `decode_batch` decodes it, or says what is
    wrong. `Status.MEMORY`: it has not enough room. The row of the table is zero where there is no part. Raises
    `OptionError` if the arrays do not fit together.
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
        except Exception as error:  # damaged headers raise whatever they like; one row must never end a batch
            status[row] = error.status if isinstance(error, pillow.StatusError) else Status.UNSUPPORTED


def check_parts(
    source: Payloads, boxes: NDArray[np.int32], parts: Parts, status: NDArray[np.int32], start: int, stop: int
) -> None:
    """Raise `OptionError` unless the arrays of `part_batch` go together."""
    rows = len(status)
    if not 0 <= start <= stop <= rows:
        raise OptionError(f"rows {start} to {stop} are not within a batch of {rows}")
    lengths = {len(column) for column in (*source, boxes, parts.table) if column is not None} | {len(parts.places) - 1}
    if lengths - {rows} or boxes.shape[1:] != (8,) or parts.table.shape[1:] != (len(PART_COLUMNS),):
        raise OptionError(f"part_batch wants {rows} rows, boxes of 8 and parts of 9 columns, found {sorted(lengths)}")
    places = parts.places[start : stop + 1]
    if (np.diff(places) < 0).any() or places[0] < 0 or places[-1] > len(parts.out):
        raise OptionError(f"places must rise and lie within the {len(parts.out)} bytes of out")


def _write(
    context: twin.Context, source: Payloads, row: int, box: list[int], size: tuple[int, int], parts: Parts
) -> tuple[int, ...]:
    if source.indexed is not None and source.indexed[row, 0] != Kind.ENCODED:
        raise pillow.StatusError(Status.UNSUPPORTED)
    data, exif = twin.payload(source, row, context.options.max_bytes), int(source.orientations[row])
    frame = frame_of(data)
    if frame is None:
        raise pillow.StatusError(Status.UNSUPPORTED)
    turned = exif in TURNED
    upright = (frame.height, frame.width) if turned else (frame.width, frame.height)
    if upright[0] * upright[1] > context.options.max_pixels or not _fits(box, upright, size):
        raise pillow.StatusError(Status.UNSUPPORTED)
    if twin.is_changed(source, row, upright, lambda: twin.read_header(data).orientation):
        raise pillow.StatusError(Status.UNSUPPORTED)
    axes = [
        _needed(box, axis, size[1 - axis], upright[axis], exif in (MIRRORED_Y if axis else MIRRORED_X))
        for axis in (0, 1)
    ]
    if turned:
        axes.reverse()
    (x0, x1), (y0, y1) = axes
    made, piece = splice(data, frame, (x0, y0, x1, y1), int(parts.places[row + 1] - parts.places[row]))
    at = int(parts.places[row])
    parts.out[at : at + len(made)] = np.frombuffer(made, np.uint8)
    wanted = piece if frame.spliceable else (x0, y0, x1, y1)
    x, y = piece[:2]
    own = (wanted[0] - x, wanted[1] - y, wanted[2] - x, wanted[3] - y)
    ends = [(wanted[0], wanted[2]), (wanted[1], wanted[3])]
    if turned:
        ends.reverse()
    left = upright[0] - ends[0][1] if exif in MIRRORED_X else ends[0][0]
    top = upright[1] - ends[1][1] if exif in MIRRORED_Y else ends[1][0]
    return len(made), piece[2] - x, piece[3] - y, *own, left, top


def _fits(box: list[int], image: tuple[int, int], size: tuple[int, int]) -> bool:
    x0, y0, x1, y1, virtual_width, virtual_height, x, y = box
    inside = 0 <= x0 < x1 <= image[0] and 0 <= y0 < y1 <= image[1]
    return inside and min(size) >= 1 and 0 <= x <= virtual_width - size[1] and 0 <= y <= virtual_height - size[0]


def _needed(box: list[int], axis: int, outputs: int, size: int, mirrored: bool) -> tuple[int, int]:
    """The stored pixels [low, high) that the window sees along an upright axis of `size` pixels, and the margin."""
    low, length, virtual, first = box[axis], box[2 + axis] - box[axis], box[4 + axis], box[6 + axis]
    reach = 2 * max(length, virtual)
    least = max(0, ((2 * first + 1) * length - reach - virtual) // (2 * virtual) + 1)
    most = min(length, -(-((2 * (first + outputs) - 1) * length + reach - virtual) // (2 * virtual)))
    ends = (size - low - most, size - low - least) if mirrored else (low + least, low + most)
    return max(0, ends[0] - _MARGIN), min(size, ends[1] + _MARGIN)


def splice(data: bytes, frame: FrameHeader, rect: Rect, room: int) -> tuple[bytes, Rect]:
    """The JPEG that holds `rect`, and which rectangle of the image it is. Raises `StatusError`."""
    origin = _segments(data, frame)
    x0, x1 = _cover(rect[0], rect[2], frame.h, frame.across)
    y0, y1 = _cover(rect[1], rect[3], frame.v, frame.down)
    if frame.spliceable:
        restart, per_row = frame.restart, frame.across // frame.restart
        x0, x1 = x0 - x0 % restart, -(-x1 // restart) * restart
        if x0 > 0 and frame.width - x0 * 8 * frame.h < 8:  # libjpeg upsamples narrow pictures in its own way
            x0 -= restart
        runs = [range(y * per_row + x0 // restart, y * per_row + x1 // restart) for y in range(y0, y1)]
        right, bottom = min(x1 * 8 * frame.h, frame.width), min(y1 * 8 * frame.v, frame.height)
        piece = (x0 * 8 * frame.h, y0 * 8 * frame.v, right, bottom)
    else:
        runs, piece = [range(len(origin) - 1)], (0, 0, frame.width, frame.height)
    if frame.scan + PART_ROOM + sum(origin[run.stop] - origin[run.start] for run in runs) > room:
        raise pillow.StatusError(Status.MEMORY)
    made = _header(data, frame, piece[2] - piece[0], piece[3] - piece[1])
    for number, segment in enumerate(segment for run in runs for segment in run):
        made += data[origin[segment] : origin[segment + 1]]
        made[-1] = 0xD0 | number & 7
    made[-1] = _EOI
    return bytes(made), piece


def _cover(low: int, high: int, samples: int, mcus: int) -> tuple[int, int]:
    """The MCUs that hold pixels [low, high) of an axis, and the next sample of chroma that is interpolated."""
    margin = int(samples > 1)
    return max(0, low - margin) // (8 * samples), min(mcus, -(-(high + margin) // (8 * samples)))


def _segments(data: bytes, frame: FrameHeader) -> list[int]:
    """Where each restart segment of the scan begins, and the end of the last; all markers must be what they should."""
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
    made, at = bytearray(_JFIF), 2
    while at < frame.scan:
        marker, size = data[at + 1], 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker & 0xF0 != 0xE0 and marker != _COM:
            made += data[at : at + size]
            if marker in FRAMES:
                sides = len(made) - size + 5
                made[sides : sides + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        at += size
    return made
