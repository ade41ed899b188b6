"""The bytes of a stored object by position, and of any file or object: `open_bytes`."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from iofast.containers.file_bytes import FileBytes
from iofast.errors import ContainerError
from iofast.mirror.copies import BLOCK
from iofast.mirror.stored import StoredObject, Wanted, held
from iofast.remote.store import ObjectInfo
from iofast.remote.urls import is_url


class StoredBytes(FileBytes):
    """One version of an object; `fd` is its sparse local copy, whose bytes are only there in a block of `readable`.

    Raises `ObjectMissingError`, `ObjectConflictError` if the object has changed, and `StorageError`.
    """

    def __init__(self, url: str, info: ObjectInfo | None = None) -> None:
        self.path, self.object = url, StoredObject(url, info)
        if not self.object.size:
            raise ContainerError(f"{url} is empty")
        self._size = self.object.size

    def __del__(self) -> None:
        """The copy closes its own descriptor."""

    @property
    def fd(self) -> int:  # type: ignore[override]
        """The descriptor of the copy."""
        return self.object.copy.fd

    def __getitem__(self, part: slice) -> bytes:
        """See `FileBytes`."""
        start, stop, _ = part.indices(self._size)
        return self.object.read(start, stop)

    def gather(self, offsets: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """See `FileBytes.gather`."""
        if not len(offsets):
            return np.empty((0, size), np.uint8)
        blocks = np.unique(np.concatenate((offsets, offsets + (size - 1))) // BLOCK).tolist()
        wanted = [Wanted(self.object, block * BLOCK, min((block + 1) * BLOCK, self._size)) for block in blocks]
        with held(wanted) as direct:
            if not direct:
                return super().gather(offsets, size)
        rows = np.empty((len(offsets), size), np.uint8)
        for row, start in enumerate(offsets.tolist()):
            rows[row] = np.frombuffer(self.object.read(start, start + size), np.uint8)
        return rows

    def status(self) -> os.stat_result:
        """The size of the object; times are 0."""
        return os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, self._size, 0, 0, 0))

    def check_size(self) -> None:
        """Nothing: an object does not change, another version is another object."""


def open_bytes(path: str, info: ObjectInfo | None = None) -> FileBytes:
    """Open a file, or an object by its URL, in the version `info` if that is given."""
    return StoredBytes(path, info) if is_url(path) else FileBytes(path)


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
    objects = [each.object if isinstance(each, StoredBytes) else None for each in files]
    if not any(objects):
        yield {}
        return
    places = zip(file.tolist(), offsets.tolist(), lengths.tolist(), strict=True)
    rows, wanted = list[int](), list[Wanted]()
    for row, (number, offset, length) in enumerate(places):
        if (own := objects[number]) is not None and length:
            rows.append(row)
            wanted.append(Wanted(own, offset, offset + length))
    with held(wanted) as direct:
        yield {rows[number]: data for number, data in direct.items()}


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
