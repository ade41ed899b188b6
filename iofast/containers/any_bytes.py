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

    urls: Sequence[str]
    file: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    open: Callable[[Sequence[int]], list[StoredObject]]

    def spread(self, rows: slice | NDArray[np.int64], count: int) -> StoredPlaces:
        """The same payloads as these rows of `count`; the other rows have none."""
        columns = [np.zeros(count, np.int64) for _ in range(3)]
        for column, own in zip(columns, (self.file, self.offset, self.length), strict=True):
            column[rows] = own
        file, offset, length = columns
        return self._replace(file=file, offset=offset, length=length)


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


def fetch_again(found: Sequence[StoredPlaces]) -> bool:
    """Fetch payloads again that were found damaged; False if none of them is in an object store."""
    wanted: list[tuple[StoredObject, int, int]] = []
    for places in found:
        rows = np.flatnonzero(places.length > 0).tolist()
        numbers = np.unique(places.file[rows]).tolist()
        objects = dict(zip(numbers, places.open(numbers), strict=True))
        spans = zip(*(column[rows].tolist() for column in (places.file, places.offset, places.length)), strict=True)
        wanted += [(objects[file], offset, offset + length) for file, offset, length in spans]
    if wanted:
        from iofast.mirror import stored

        stored.fetch_again([stored.Wanted(*each) for each in wanted])
    return bool(wanted)
