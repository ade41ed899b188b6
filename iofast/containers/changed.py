"""Images that differ from the index: rewritten in place, perhaps in a file whose size and time stayed the same.

Without checksums the kernel compares each image's header with the index before it decodes (`Status.CHANGED`). The
functions here update the located columns from the headers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.containers.any_bytes import fetch_again
from iofast.containers.base import Located, Reader
from iofast.errors import DecodeError
from iofast.kernel import Payloads, Status, other_formats, pillow
from iofast.kernel.contract import MAX_BYTES

_SLICE = 64  # payloads that are open together


def renew(
    reader: Reader, located: Located, payloads: Payloads, status: NDArray[np.int32], start: int = 0
) -> NDArray[np.intp]:
    """Update changed rows after a decoding that returned `status`; return the rows of `payloads` to decode again.

    `payloads` are rows of `located` from `start` on. Both get the sizes of the images' headers, so boxes of these rows
    must be drawn again. The reader counts the changed images.
    """
    rows = slice(start, start + len(status))
    unknown = (located.width[rows] == 0) & ~located.certain[rows]
    again = []
    for row in np.flatnonzero((status == Status.CHANGED) | (unknown & (status == Status.BOX))).tolist():
        if follow(reader, located, start + row, _payload(payloads, row)) is None:
            continue
        payloads.orientations[row] = located.orientation[start + row]
        if payloads.indexed is not None:
            payloads.indexed[row, 1:] = 0  # already compared
        again.append(row)
    return np.array(again, np.intp)


def fetch_damaged(reader: Reader, located: Located, status: NDArray[np.int32], start: int = 0) -> NDArray[np.intp]:
    """Fetch stored payloads again whose checksum differs; return the rows of `status` to decode again.

    `status` is that of rows of `located` from `start` on. The bytes may have been damaged on their way here.
    """
    rows = np.flatnonzero(status == Status.CHECKSUM)
    if len(rows) and fetch_again(reader.stored_places(located.rows(start + rows))):
        return rows
    return rows[:0]


def refresh(reader: Reader, located: Located) -> None:
    """Update all rows of `located` from their images' headers, for work that needs all sizes before any pixel.

    Images with a checksum are not read.
    """
    rows = np.flatnonzero(~located.certain & (located.kind == 0))
    for first in range(0, len(rows), _SLICE):
        some = rows[first : first + _SLICE]
        with reader.payloads(located.rows(some), 0, len(some)) as payloads:
            for number, row in enumerate(some.tolist()):
                follow(reader, located, row, _payload(payloads, number))


def follow(reader: Reader, located: Located, row: int, data: bytes | memoryview | None) -> kernel.Header | None:
    """Update a row from the header of its image `data`; the reader counts it if they differ.

    Returns the header, or None if there is none. Rows with a checksum are not changed.
    """
    try:
        header = None if data is None else kernel.read_header(data)
    except DecodeError:
        header = None
    if header is None or (located.crc is not None and located.crc[row] >= 0):  # `certain`, of this row alone
        return header
    found = header.width, header.height, header.orientation
    if not located.orientation[row]:  # the stored orientation is wanted
        found = (*(found[1::-1] if header.orientation >= 5 else found[:2]), 0)
    columns: tuple[NDArray[Any], ...] = located.width, located.height, located.orientation
    if tuple(int(column[row]) for column in columns) != found:
        reader.note_changed(int(located.indices[row]), f"{header.width} x {header.height}")
        for column, value in zip(columns, found, strict=True):
            column[row] = value
    return header


def _payload(payloads: Payloads, row: int) -> bytes | None:
    """The bytes of a payload; None if they cannot be read."""
    try:
        return other_formats.read_payload(payloads, row, MAX_BYTES)
    except pillow.StatusError:
        return None
