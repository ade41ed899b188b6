"""Images that are others than the index says: rewritten in place, or in a file whose size and time stayed the same.

Where there are no checksums, the kernel compares each image's header with the index before it decodes anything
(`Status.CHANGED`). Here such images are taken as they are now.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.containers.base import Located, Reader
from iofast.errors import DecodeError
from iofast.kernel import Payloads, Status, pillow, twin
from iofast.kernel.contract import MAX_BYTES

_SLICE = 64  # payloads that are open at once


def renew(
    reader: Reader, located: Located, payloads: Payloads, status: NDArray[np.int32], start: int = 0
) -> NDArray[np.intp]:
    """The rows of `payloads` that have to be decoded again, after a decoding that gave `status`.

    `payloads` are rows of `located` from `start` on. Both say then what the images' headers say, so boxes made from
    the sizes before have to be made again. The reader has noted the rows.
    """
    rows = slice(start, start + len(status))
    unknown = (located.width[rows] == 0) & ~located.certain[rows]
    again = []
    for row in np.flatnonzero((status == Status.CHANGED) | (unknown & (status == Status.BOX))).tolist():
        if follow(reader, located, start + row, _payload(payloads, row)) is None:
            continue
        payloads.orientations[row] = located.orientation[start + row]
        if payloads.indexed is not None:
            payloads.indexed[row, 1:] = 0  # compared
        again.append(row)
    return np.array(again, np.intp)


def refresh(reader: Reader, located: Located) -> None:
    """Have all rows of `located` say what their images' headers say, for work that needs all sizes before any pixel.

    What has a checksum is not read.
    """
    rows = np.flatnonzero(~located.certain & (located.kind == 0))
    for first in range(0, len(rows), _SLICE):
        some = rows[first : first + _SLICE]
        with reader.payloads(located.rows(some), 0, len(some)) as payloads:
            for number, row in enumerate(some.tolist()):
                follow(reader, located, row, _payload(payloads, number))


def follow(reader: Reader, located: Located, row: int, data: bytes | memoryview | None) -> kernel.Header | None:
    """Have a row say what the header of its image says, and the reader note where that differs.

    None where there is no header in `data`. Rows whose image has a checksum are left alone.
    """
    try:
        header = None if data is None else kernel.read_header(data)
    except DecodeError:
        header = None
    if header is None or located.certain[row]:
        return header
    found = header.width, header.height, header.orientation
    if not located.orientation[row]:  # wanted as it is stored
        found = (*(found[1::-1] if header.orientation >= 5 else found[:2]), 0)
    columns: tuple[NDArray[Any], ...] = located.width, located.height, located.orientation
    if tuple(int(column[row]) for column in columns) != found:
        reader.note_changed(int(located.indices[row]), f"{header.width} x {header.height}")
        for column, value in zip(columns, found, strict=True):
            column[row] = value
    return header


def _payload(payloads: Payloads, row: int) -> bytes | None:
    """None where it cannot be read."""
    try:
        return twin.payload(payloads, row, MAX_BYTES)
    except pillow.StatusError:
        return None
