"""The bytes of files and of stored objects by position, whichever a path names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from iofast.containers.file_bytes import FileBytes
from iofast.remote.urls import is_url

if TYPE_CHECKING:
    from iofast.containers.stored_bytes import StoredBytes
    from iofast.mirror.stored import StoredObject
    from iofast.remote.store import ObjectInfo


class StoredPlaces(NamedTuple):
    """Where payloads lie in objects: row i has `length[i]` bytes at `offset[i]` of the object `urls[file[i]]`.

    Payloads that are in no object have length 0. `open` opens some of `urls`, by number.
    """

    urls: tuple[str, ...]
    file: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    open: Callable[[Sequence[int]], list[StoredObject]]


def open_bytes(path: str, info: ObjectInfo | None = None) -> FileBytes:
    """Open a file, or an object by its URL, in the version `info` if that is given."""
    if not is_url(path):
        return FileBytes(path)
    from iofast.containers.stored_bytes import StoredBytes  # here: local files do not need asyncio (30 ms)

    return StoredBytes(path, info)


def stored_stamps(urls: Sequence[str]) -> list[tuple[int, int]]:
    """Size and a number of the version of each object, as `FileBytes.status` has them."""
    from iofast.mirror.stored import look, stamp

    return [(info.size, stamp(info.etag)) for info in look(urls)]


@contextlib.contextmanager
def readable(
    files: Sequence[FileBytes | None],
    file: NDArray[np.intp],
    offsets: NDArray[np.uint64],
    lengths: NDArray[np.uint64],
) -> Iterator[dict[int, bytes]]:
    """Make the bytes of rows readable by their files' descriptors until the block ends.

    Row i has `lengths[i]` bytes at `offsets[i]` of `files[file[i]]`. Yields the bytes of rows that the cache of stored
    objects has no room for.
    """
    objects = [cast("StoredBytes", each).object if each is not None and each.is_stored else None for each in files]
    if not any(objects):
        yield {}
        return
    from iofast.meter.traffic import traffic
    from iofast.mirror.stored import Wanted, held, held_at_once

    numbers = np.cumsum([each is not None for each in objects]) - 1  # in `known`
    known = [each for each in objects if each is not None]
    stored = np.array([each is not None for each in objects])[file] & (lengths > 0)
    rows = np.flatnonzero(stored)
    own, starts = numbers[file[rows]], offsets[rows].astype(np.int64)
    stops = starts + lengths[rows].astype(np.int64)
    traffic.was_read(int(stops.sum() - starts.sum()))
    with held_at_once(known, own, starts, stops) as is_held:
        if is_held:
            yield {}
            return
    places = zip(own.tolist(), starts.tolist(), stops.tolist(), strict=True)
    with held([Wanted(known[number], start, stop) for number, start, stop in places]) as direct:
        yield {int(rows[number]): data for number, data in direct.items()}


def fetch_again(places: StoredPlaces | None) -> bool:
    """Fetch payloads again that were found damaged; False if none of them is in an object store."""
    rows = [] if places is None else np.flatnonzero(places.length > 0).tolist()
    if places is None or not rows:
        return False
    from iofast.mirror.stored import Wanted
    from iofast.mirror.stored import fetch_again as fetch_bytes_again

    numbers = np.unique(places.file[rows]).tolist()
    objects = dict(zip(numbers, places.open(numbers), strict=True))
    spans = zip(*(column[rows].tolist() for column in (places.file, places.offset, places.length)), strict=True)
    fetch_bytes_again([Wanted(objects[file], offset, offset + length) for file, offset, length in spans])
    return True


def in_memory(
    found: dict[int, bytes], fds: NDArray[np.int32], offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]
) -> tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.uint64]]:
    """The places of rows, some of which are in memory, as `Payloads` has them. `found` must stay alive."""
    if not found:
        return fds, offsets, lengths
    fds, offsets, lengths = fds.copy(), offsets.copy(), lengths.copy()
    for row, data in found.items():
        # an empty payload gets one byte, so that it has an address
        fds[row], lengths[row] = -1, len(data)
        offsets[row] = np.frombuffer(data or b"\0", np.uint8).ctypes.data
    return fds, offsets, lengths


def merged_places(pieces: Sequence[tuple[slice | NDArray[np.intp], StoredPlaces]], count: int) -> StoredPlaces:
    """The places of several readers as those of `count` rows, of which each piece has some."""
    starts = np.cumsum([0, *(len(piece.urls) for _, piece in pieces)]).tolist()
    columns = [np.zeros(count, np.int64) for _ in range(3)]
    for start, (rows, piece) in zip(starts, pieces, strict=False):
        for column, own in zip(columns, (piece.file + start, piece.offset, piece.length), strict=True):
            column[rows] = own

    def opened(some: Sequence[int]) -> list[StoredObject]:
        found: dict[int, StoredObject] = {}
        for start, (_, piece) in zip(starts, pieces, strict=False):
            own = [each for each in some if start <= each < start + len(piece.urls)]
            found.update(zip(own, piece.open([each - start for each in own]), strict=True))
        return [found[each] for each in some]

    file, offset, length = columns
    return StoredPlaces(tuple(url for _, piece in pieces for url in piece.urls), file, offset, length, opened)
