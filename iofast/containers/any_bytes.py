"""The bytes of files and of stored objects by position, whichever a path names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.containers.file_bytes import FileBytes
from iofast.remote.urls import is_url

if TYPE_CHECKING:
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
