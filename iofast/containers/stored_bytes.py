"""The bytes of a stored object by position."""

import os
import stat
from collections import deque

import numpy as np
from numpy.typing import NDArray

from iofast.containers.file_bytes import FileBytes
from iofast.errors import ContainerError
from iofast.meter.traffic import traffic
from iofast.mirror.copies import BLOCK
from iofast.mirror.stored import StoredObject, Wanted, fetch_again, held, stamp
from iofast.remote.store import ObjectInfo

_IN_MEMORY = 16  # blocks of one file: an index of 2.8 million images
_SLICES = 16  # that are fetched again if one of them is damaged: more than the pages on a path to a value


class StoredBytes(FileBytes):
    """One version of an object; `fd` is its sparse local copy, whose bytes are only there in a block of `readable`.

    Raises `ObjectMissingError`, `ObjectConflictError` if the object has changed, and `StorageError`.
    """

    is_stored = True

    def __init__(self, url: str, info: ObjectInfo | None = None) -> None:
        self.path, self.object = url, StoredObject(url, info)
        if not self.object.size:
            raise ContainerError(f"{url} is empty")
        self._size = self.object.size
        self._memory: dict[int, bytes] = {}  # blocks by number
        self._slices: deque[Wanted] = deque(maxlen=_SLICES)  # the last ones

    def __del__(self) -> None:
        """The copy closes its own descriptor."""

    @property
    def fd(self) -> int:  # type: ignore[override]
        """The descriptor of the copy."""
        return self.object.copy.fd

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        if start < stop:
            self._slices.append(Wanted(self.object, start, stop))
        return self.object.read(start, stop)

    def gather(self, offsets: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """See `FileBytes.gather`. Blocks that the cache has no room for stay in memory: an index is read again."""
        if not len(offsets):
            return np.empty((0, size), np.uint8)
        traffic.was_read(len(offsets) * size)
        blocks = np.unique(np.concatenate((offsets, offsets + (size - 1))) // BLOCK).tolist()
        self.object.copy.kept.update(blocks)
        memory = self._memory  # never changed, but replaced: other threads read it
        asked = [block for block in blocks if block not in memory]
        with held([Wanted(self.object, *self.object.copy.span(block)) for block in asked]) as direct:
            if len(asked) == len(blocks) and not direct:
                return super().gather(offsets, size)
            new = {asked[number]: data for number, data in direct.items()}
            known = memory | new
            parts = [known[block] if block in known else self._block(block) for block in blocks]
        if new and self._memory is memory:  # else damaged bytes may be in `known` that another thread has dropped
            self._memory = dict(list(known.items())[-_IN_MEMORY:])
        starts = np.cumsum([0, *map(len, parts)])[np.searchsorted(blocks, offsets // BLOCK)] + offsets % BLOCK
        rows: NDArray[np.uint8] = np.frombuffer(b"".join(parts), np.uint8)[starts[:, None] + np.arange(size)]
        return rows

    def _block(self, number: int) -> bytes:
        start, stop = self.object.copy.span(number)
        return os.pread(self.fd, stop - start, start)

    def fetch_again(self, start: int = 0, stop: int = 0) -> bool:
        wanted = [Wanted(self.object, start, stop)] if start < stop else [*self._slices]
        self._memory = {}
        fetch_again(wanted)
        return True

    def status(self) -> os.stat_result:
        """The size of the object, and a number of its version in place of a time."""
        times = {"st_mtime_ns": stamp(self.object.source.etag)}
        return os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, self._size, 0, 0, 0), times)

    def check_size(self) -> None:
        """Nothing: an object does not change, another version is another object."""
