"""Payloads in many files, of which a bounded number is open: the common part of readers of shards."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from iofast.containers.any_bytes import StoredPlaces, open_bytes
from iofast.containers.base import Located, Reader
from iofast.containers.columns import ABSENT
from iofast.containers.file_bytes import MAX_OPEN, FileBytes, advice, bounded, keep, read_at
from iofast.errors import ContainerError, IofastError, because
from iofast.kernel import Payloads
from iofast.record import KINDS
from iofast.remote.urls import is_url

if TYPE_CHECKING:
    from iofast.containers.stored_bytes import StoredBytes
    from iofast.mirror.stored import StoredObject
    from iofast.remote.store import ObjectInfo


class OpenFiles:
    """The files of a container by number, opened on first use, never more than `MAX_OPEN` at once.

    `check(number, status)` raises `ContainerError` if an opened file is not the indexed one. Threads may share it.
    There is no lock, because a fork could copy a lock that is taken.
    """

    def __init__(self, paths: Sequence[str], check: Callable[[int, os.stat_result], None]) -> None:
        self.paths, self._check = paths, check
        self._open: OrderedDict[int, FileBytes] = OrderedDict()  # least recently used first
        self._objects: dict[int, ObjectInfo] = {}  # versions of stored files, which stay
        self.most = bounded(MAX_OPEN)
        self._alive = WeakSet[FileBytes]()  # those of `_open`, and others that `payloads` blocks still use
        keep(self.let_go)

    def __getstate__(self) -> tuple[Sequence[str], Callable[[int, os.stat_result], None]]:
        return self.paths, self._check  # a descriptor means nothing in another process

    def __setstate__(self, state: tuple[Sequence[str], Callable[[int, os.stat_result], None]]) -> None:
        OpenFiles.__init__(self, *state)

    def get(self, number: int) -> FileBytes | None:
        """The open file, or None if all descriptors are in use. Raises `ContainerError`, naming the file."""
        found = self._open.get(number)
        if found is None:
            while len(self._alive) >= self.most:
                try:
                    self._open.popitem(last=False)  # which closes it, unless a `payloads` block still uses it
                except KeyError:
                    return None
            found = self._open[number] = self._opened(number)
            self._alive.add(found)
        with contextlib.suppress(KeyError):  # another thread has just closed it
            self._open.move_to_end(number)
        return found

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Bytes of a file; fewer where it ends. Raises `ContainerError`, naming the file."""
        file = self.get(number) or self._opened(number)  # one more descriptor, for this read only
        if is_url(file.path):
            return file[offset : offset + length]
        try:
            return read_at(file.fd, offset, length)
        except OSError as error:
            raise ContainerError(f"{file.path} cannot be read at offset {offset}: {error.strerror}") from None

    def has(self, number: int, offset: int, data: bytes) -> bool:
        """Whether a file has these bytes there. Damage in an object's copy is fetched again once."""
        if self.read(number, offset, len(data)) == data:
            return True
        file = self.get(number) or self._opened(number)
        return file.fetch_again(offset, offset + len(data)) and self.read(number, offset, len(data)) == data

    @contextlib.contextmanager
    def payloads(self, located: Located, start: int, stop: int) -> Iterator[Payloads]:
        """Rows [start, stop) as the kernel reads them; the files stay open until the block ends.

        If all descriptors are in use, payloads are read into memory.
        """
        rows = slice(start, stop)
        file, offsets, lengths = located.file[rows], located.offset[rows], located.length[rows]
        numbers, place = np.unique(file, return_inverse=True)
        self._look(numbers.tolist())
        files = [None if number == ABSENT else self.get(number) for number in numbers.tolist()]
        fds = np.array([-1 if each is None else each.fd for each in files], np.int32)[place]
        with _readable(files, place, offsets, lengths) as found:
            for row in np.flatnonzero(fds < 0).tolist():
                there = file[row] != ABSENT
                found[row] = self.read(int(file[row]), int(offsets[row]), int(lengths[row])) if there else b""
            yield located.payloads(rows, *_in_memory(found, fds, offsets, lengths))

    def stored(self, numbers: Sequence[int]) -> list[StoredObject]:
        """Stored files, open. Raises as `look` does."""
        self._look(numbers)
        return [cast("StoredBytes", self.get(each) or self._opened(each)).object for each in numbers]

    def let_go(self) -> None:
        """Close all files that no block uses."""
        with contextlib.suppress(KeyError):
            while True:
                self._open.popitem(last=False)

    def _opened(self, number: int) -> FileBytes:
        self._look([number])
        try:
            file = open_bytes(self.paths[number], self._objects.get(number))
        except IofastError:
            raise
        except OSError as error:
            reason = f"{because(error)}{advice(error)}"
            raise ContainerError(f"{self.paths[number]} cannot be opened: {reason}") from None
        self._check(number, file.status())
        return file

    def _look(self, numbers: Sequence[int]) -> None:
        """Ask for the versions of stored files, all at once. They are asked for once, and never mixed."""
        paths = {n: self.paths[n] for n in numbers if n not in self._objects and n != ABSENT and is_url(self.paths[n])}
        if paths:
            from iofast.mirror.stored import look

            self._objects.update(zip(paths, look([*paths.values()]), strict=True))


@contextlib.contextmanager
def _readable(
    files: Sequence[FileBytes | None], file: NDArray[np.intp], offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]
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
    from iofast.mirror.stored import Wanted, held

    numbers = np.cumsum([each is not None for each in objects]) - 1  # in `known`
    known = [each for each in objects if each is not None]
    stored = np.array([each is not None for each in objects])[file] & (lengths > 0)
    rows = np.flatnonzero(stored)
    own, starts = numbers[file[rows]], offsets[rows].astype(np.int64)
    stops = starts + lengths[rows].astype(np.int64)
    traffic.was_read(int(stops.sum() - starts.sum()))
    places = zip(own.tolist(), starts.tolist(), stops.tolist(), strict=True)
    with held([Wanted(known[number], start, stop) for number, start, stop in places]) as direct:
        yield {int(rows[number]): data for number, data in direct.items()}


def _in_memory(
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


class FilesReader(Reader):
    """A Reader whose payloads are in files; `Located.file` is the number of a file in `_files`.

    `path` names the container in messages.
    """

    path: str

    @abstractmethod
    def _files(self) -> OpenFiles:
        """The files, opened again after `close`."""

    def payloads(self, located: Located, start: int, stop: int) -> contextlib.AbstractContextManager[Payloads]:
        return self._files().payloads(located, start, stop)

    def stored_places(self, located: Located) -> list[StoredPlaces]:
        if not self.is_stored:
            return []
        files = self._files()
        length = np.where(located.file == ABSENT, 0, located.length)
        file, offset, length = (each.astype(np.int64) for each in (located.file, located.offset, length))
        return [StoredPlaces(files.paths, file, offset, length, files.stored)]

    def _named(self, field: str | None) -> list[str]:
        """The fields that are looked for, the first one that a record has: `field`, or images."""
        fields = self.manifest.fields
        if field is not None and field not in fields:
            raise KeyError(f"{self.path} has no field {field!r}, only {', '.join(fields)}")
        images = [name for name in KINDS if name in fields] if field is None else [field]
        if not images:
            raise KeyError(f"{self.path} has no image field, only {', '.join(fields)}")
        return images
