"""The bytes of an open file by position.

A file that shrinks, or a disk that fails, is an error and not a signal: files that another process may truncate are
never mapped, because a page can vanish after any check, and reading it then kills the process (SIGBUS). `pread` reads
and reports the length in one step.

A process may have few descriptors (256 in some containers and on macOS): readers keep a bounded number of files open
for later, and close them when no descriptor is left.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import weakref
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from iofast.errors import ContainerError, SourceError
from iofast.kernel import read_rows
from iofast.kernel.strangers import POINTER, is_pointer

MAX_OPEN = 128  # descriptors of one reader, of the 1024 that most processes may have; fewer if the limit is lower
_PART = 8  # one reader gets this part of the process's descriptors
_TRIES = 3  # another thread may take a descriptor that was just closed
_keepers: set[weakref.WeakMethod[Callable[[], None]]] = set()  # every change is one step, because there is no lock
T = TypeVar("T")
_LARGE = 1 << 20  # bytes; shorter reads are not compared with the size of the file


def keep(let_go: Callable[[], None]) -> None:
    """Call this method, as long as its object lives, when this process has no descriptor left."""
    _keepers.add(weakref.WeakMethod(let_go, _keepers.discard))


def bounded(most: int) -> int:
    """`most` descriptors, or an eighth of the process's limit; at least 1 unless `most` is 0."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if soft == resource.RLIM_INFINITY else min(most, max(1, soft // _PART))


def opened(path: str | bytes, flags: int) -> int:
    """`os.open`. If no descriptor is left, close the files kept for later and try again."""
    for _ in range(_TRIES):
        try:
            return os.open(path, flags)
        except OSError as error:
            if not none_left(error):
                raise
            for each in list(_keepers):
                if (let_go := each()) is not None:
                    let_go()
    return os.open(path, flags)


def none_left(error: OSError) -> bool:
    """Whether this process, or the machine, has no descriptor left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def advice(error: OSError) -> str:
    """Advice to append to a message if no descriptor is left, otherwise empty."""
    if not none_left(error):
        return ""
    return f" (this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}: ulimit -n)"


class FileBytes:
    """A regular file that is open for reading, with the length it had then. Threads and forks may share it.

    It is closed with the last reference. Errors are `ContainerError` that name `path`.
    """

    is_stored = False  # whether it is an object's copy

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = opened(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # NONBLOCK: a pipe without a writer
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
            raise ContainerError(f"{path} is not a regular file, or is empty")
        if is_pointer(path, status.st_size):
            raise ContainerError(f"{path} is {POINTER}")
        self._size = status.st_size

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        """The bytes of a slice, like those of `bytes`."""
        start, stop, _ = part.indices(self._size)
        try:
            data = read_at(self.fd, start, max(0, stop - start))
        except OSError as error:
            raise ContainerError(f"{self.path} cannot be read at offset {start}: {error.strerror}") from None
        if len(data) < stop - start:
            raise self._cut(f"from offset {start} {len(data)} of {stop - start} bytes could be read")
        return data

    def gather(self, offsets: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """The `size` bytes at each of the offsets (N,), as (N, size), with one wait for the GIL at most."""
        try:
            return read_rows(self.fd, offsets, size)
        except EOFError as error:
            raise self._cut(str(error)) from None
        except OSError as error:
            raise ContainerError(f"{self.path} cannot be read: {error.strerror}") from None

    def status(self) -> os.stat_result:
        """Kind, size and times of the file."""
        return os.fstat(self.fd)

    def fetch_again(self, start: int = 0, stop: int = 0) -> bool:  # noqa: ARG002
        """Fetch the bytes [start, stop) again that were found damaged, by default those of the last slices.

        Returns False for a file, whose bytes stay as they are.
        """
        return False

    def check_size(self) -> None:
        """Raise `ContainerError` if the file is shorter than when it was opened."""
        if os.fstat(self.fd).st_size < self._size:
            raise self._cut("")

    def _cut(self, what: str) -> ContainerError:
        found = f"{os.fstat(self.fd).st_size} bytes, expected {self._size}"
        return ContainerError(f"{self.path} was truncated while it was open: {found}{what and f' ({what})'}")


def retried(data: FileBytes, read: Callable[[], T]) -> T:
    """Return what `read` finds in the last slices of `data`. Damage in an object's copy is fetched again once."""
    try:
        return read()
    except ContainerError:
        if not data.fetch_again():
            raise
    return read()


def read_at(fd: int, offset: int, length: int) -> bytes:
    """As many of the bytes as the file has; one `pread` may return fewer (at most 2 GiB, or after a signal)."""
    if length > _LARGE:  # `pread` allocates this length before it reads
        length = min(length, max(0, os.fstat(fd).st_size - offset))
    if offset >> 63:
        return b""
    data = os.pread(fd, length, offset)
    while len(data) < length:
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def check_access(place: str | os.PathLike[str]) -> None:
    """Raise `SourceError` for missing permissions; some versions of Python report such a path as missing."""
    try:
        if stat.S_ISDIR(os.stat(place).st_mode):
            os.stat(os.path.join(place, os.curdir))
    except PermissionError as error:
        folder = "folder " if os.path.isdir(place) else ""
        raise SourceError(f"{folder}{place} cannot be read: {str(error.strerror).lower()}") from None
    except (OSError, ValueError):
        return  # missing, or not a path: reported by the caller
