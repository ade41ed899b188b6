"""Images that are decoded once more: damaged on their way from an object store, or changed since they were indexed.

An image may have been rewritten in place, perhaps in a file whose size and time stayed the same. Without checksums the
kernel compares each header with the index before it decodes (`Status.CHANGED`), and `located` is updated from it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.containers.any_bytes import fetch_again
from iofast.containers.base import Located, Reader
from iofast.errors import DecodeError
from iofast.kernel import Payloads, Status, other_formats, pillow
from iofast.kernel.contract import MAX_BYTES

_SLICE = 64  # payloads that are open together


Decode = Callable[[Payloads, NDArray[np.intp]], NDArray[np.int32]]  # payloads of these rows → the status of each


class Rows(NamedTuple):
    """Rows of `located` that are decoded from `source`, which has a row for each."""

    reader: Reader
    located: Located
    rows: NDArray[np.intp]
    source: Payloads


def decode_again(
    wanted: Rows, status: NDArray[np.int32], decode: Decode, changed: Callable[[NDArray[np.intp]], NDArray[np.bool_]]
) -> None:
    """Decode those rows once more that need it, after a decoding that returned `status`, and update `status`.

    Stored payloads whose checksum differs are fetched again: the bytes may have been damaged on their way here. For
    changed images `located` gets the sizes in their headers, and the reader counts them; `changed(rows)` may draw their
    boxes again, and returns which of them to decode.
    """
    reader, located, rows, source = wanted
    again = np.flatnonzero(status == Status.CHECKSUM)
    if len(again) and fetch_again(reader.stored_places(located.rows(rows[again]))):
        with reader.payloads(located.rows(rows[again]), 0, len(again)) as fetched:
            status[again] = decode(fetched, rows[again])
    again = _updated(wanted, status)
    if len(again):
        again = again[changed(rows[again])]
        status[again] = decode(source.rows(again), rows[again])


def _updated(wanted: Rows, status: NDArray[np.int32]) -> NDArray[np.intp]:
    """Update `located` and `source` for changed images; return which of the rows these are."""
    reader, located, rows, source = wanted
    unknown = (located.width[rows] == 0) & ~located.certain[rows]
    updated = []
    for number in np.flatnonzero((status == Status.CHANGED) | (unknown & (status == Status.BOX))).tolist():
        row = int(rows[number])
        if follow(reader, located, row, _payload(source, number)) is None:
            continue
        source.orientations[number] = located.orientation[row]
        if source.indexed is not None:
            source.indexed[number, 1:] = 0  # already compared
        updated.append(number)
    return np.array(updated, np.intp)


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
