"""Payloads that lie in many files, of which only a bounded number is open: what readers of shards have in common."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Failures, Located, Reader
from iofast.containers.descriptors import advice, bounded, keep
from iofast.containers.file_bytes import FileBytes, read_at
from iofast.containers.index import ABSENT
from iofast.containers.values import read_values, read_view
from iofast.errors import ContainerError, because
from iofast.kernel import Payloads
from iofast.record import Record

MAX_OPEN = 128  # descriptors of one reader; 1024 is what a process is usually allowed. Where it is less, so is this
_AT_A_TIME = MAX_OPEN // 2  # files whose payloads are asked for at once, so that two threads need no memory for them


class OpenFiles:
    """The files of a container by number, opened when they are first used, never more than `MAX_OPEN` at once.

    `check(number, status)` raises `ContainerError` where an opened file is not the one that the index speaks of. Any
    number of threads may use it. Without a lock, which a fork could copy while it is held.
    """

    def __init__(self, paths: Sequence[str], check: Callable[[int, os.stat_result], None]) -> None:
        self.paths, self._check = paths, check
        self._open: OrderedDict[int, _Permitted] = OrderedDict()  # least recently used first
        self.most = bounded(MAX_OPEN)
        self._permits = deque(range(self.most))
        keep(self)

    def __getstate__(self) -> tuple[Sequence[str], Callable[[int, os.stat_result], None]]:
        return self.paths, self._check  # a descriptor means nothing in another process

    def __setstate__(self, state: tuple[Sequence[str], Callable[[int, os.stat_result], None]]) -> None:
        OpenFiles.__init__(self, *state)

    def get(self, number: int) -> FileBytes | None:
        """The open file; None where all descriptors are in use. Raises `ContainerError`, naming the file."""
        found = self._open.get(number)
        if found is None:
            permit = self._permit()
            if permit is None:
                return None
            found = _Permitted(self.paths[number], self._permits, permit)
            self._check(number, os.fstat(found.fd))
            self._open[number] = found
        with contextlib.suppress(KeyError):  # another thread has just let go of it
            self._open.move_to_end(number)
        return found

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Bytes of a file; fewer where it ends. Raises `ContainerError`, naming the file."""
        file = self.get(number) or self._passing(number)
        try:
            return read_at(file.fd, offset, length)
        except OSError as error:
            raise ContainerError(f"{file.path} cannot be read at offset {offset}: {error.strerror}") from None

    @contextlib.contextmanager
    def payloads(self, located: Located, start: int, stop: int) -> Iterator[Payloads]:
        """Rows [start, stop) as the kernel reads them; the files stay open until the block ends.

        Where all descriptors are in use, payloads are read into memory.
        """
        rows = slice(start, stop)
        file, offsets, lengths = located.file[rows], located.offset[rows], located.length[rows]
        numbers, place = np.unique(file, return_inverse=True)
        held = [None if number == ABSENT else self.get(number) for number in numbers.tolist()]
        fds = np.array([-1 if each is None else each.fd for each in held], np.int32)[place]
        buffers: list[NDArray[np.uint8]] = []
        if any(each is None for each in held):
            offsets, lengths = offsets.copy(), lengths.copy()
            for row in np.flatnonzero(fds < 0).tolist():
                # one byte for nothing, so that there is an address
                data = b"" if file[row] == ABSENT else self.read(int(file[row]), int(offsets[row]), int(lengths[row]))
                buffers.append(np.frombuffer(data or b"\0", np.uint8))
                offsets[row], lengths[row] = buffers[-1].ctypes.data, len(data)
        yield located.payloads(rows, fds, offsets, lengths)

    def let_go(self) -> None:
        """Close all that no block holds: another one needs the descriptors."""
        with contextlib.suppress(KeyError):
            while True:
                self._open.popitem(last=False)

    def _permit(self) -> int | None:
        """The right to one more descriptor; the file that was not used for longest makes room."""
        while True:
            with contextlib.suppress(IndexError):
                return self._permits.pop()
            try:
                _, oldest = self._open.popitem(last=False)
            except KeyError:
                return None  # all are held by blocks that have not ended
            del oldest  # gives its permit back, unless such a block holds it

    def _passing(self, number: int) -> FileBytes:
        """The file for one read, beyond those that may stay open."""
        try:
            file = FileBytes(self.paths[number])
        except OSError as error:
            reason = f"{because(error)}{advice(error)}"
            raise ContainerError(f"{self.paths[number]} cannot be opened: {reason}") from None
        self._check(number, os.fstat(file.fd))
        return file


class _Permitted(FileBytes):
    """An open file that holds a permit as long as its descriptor."""

    def __init__(self, path: str, permits: deque[int], permit: int) -> None:
        self._permits, self._permit = permits, permit
        try:
            super().__init__(path)
        except OSError as error:
            reason = f"{because(error)}{advice(error)}"
            raise ContainerError(f"{path} cannot be opened: {reason}") from None

    def __del__(self) -> None:
        super().__del__()
        self._permits.append(self._permit)


class FilesReader(Reader):
    """A Reader whose payloads lie in files that `_files` knows by the number in `Located.file`."""

    @abstractmethod
    def _files(self) -> OpenFiles:
        """The files, opened again where `close` was called."""

    @abstractmethod
    def _there(self, index: int) -> list[str]:
        """The fields that a record has."""

    @abstractmethod
    def _key(self, index: int) -> str:
        """The key of a record."""

    def payloads(self, located: Located, start: int, stop: int) -> contextlib.AbstractContextManager[Payloads]:
        """The open files and the places in them; see `Reader.payloads`."""
        return self._files().payloads(located, start, stop)

    def view(self, index: int, field: str | None = None) -> memoryview:
        """The payload, by `pread`, its CRC32C checked where there is one; see `Reader.view`."""
        return read_view(self, index, field, self._read)

    def values(
        self,
        indices: NDArray[np.int64],
        field: str | None = None,
        *,
        check: bool = True,
        failed: Failures | None = None,
    ) -> list[bytes | None]:
        """Payloads of one field, by `pread`; see `Reader.values`. Of many files, some are opened at a time."""
        located = self.locate(indices, field)
        numbers, place = np.unique(located.file, return_inverse=True)
        step = max(1, min(_AT_A_TIME, self._files().most // 2))
        if len(numbers) <= step:
            return read_values(self, located, field, check, failed)
        values: list[bytes | None] = [None] * len(located.indices)
        for group in range(0, len(numbers), step):
            rows = np.flatnonzero((place >= group) & (place < group + step))
            here: Failures | None = None if failed is None else {}
            found = read_values(self, located.rows(rows), field, check, here)
            for row, value in zip(rows.tolist(), found, strict=True):
                values[row] = value
            if failed is not None and here:
                failed.update((int(rows[row]), error) for row, error in here.items())
        return values

    def record(self, index: int) -> Record:
        """One record whole, every payload checked where there are checksums."""
        return Record(self._key(index), {name: bytes(self.view(index, name)) for name in self._there(index)})

    def _read(self, file: int, start: int, length: int) -> bytes:
        payload = self._files().read(file, start, length)
        if len(payload) < length:
            path = self._files().paths[file]
            raise ContainerError(f"{path} was cut off: {len(payload)} of {length} bytes at offset {start}")
        return payload
