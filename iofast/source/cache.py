"""Indexes of folders and of other programs' files in the user's cache folder, as columns files that every rank maps.

The folder has mode 0700 and belongs to the user (`owned.cache_folder`), so what is in it was written by iofast. Only
checksums are compared (25 ms for ImageNet's 80 MB, once per process); a damaged index is built again.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from iofast import owned
from iofast.containers import columns
from iofast.errors import ContainerError, because
from iofast.source import saved

_log = logging.getLogger("iofast")

VERSION = 12  # of cached indexes: an older or newer one is built again
# Two changes of a folder or file within this time may leave the same time stamp (2 s on FAT, 4 ms on ext4). An index
# that was built so soon after a change may have missed another one.
SETTLED = 2_000_000_000  # ns

_UNCACHED = "the index is not kept, so the next start builds it again"


@dataclass(frozen=True, kw_only=True)
class CachedIndex:
    """What every index in the cache has; a subclass has its columns."""

    fingerprint: str = ""
    scanned: tuple[int, int] = (0, 0)  # begin and end of the scan in ns since 1970
    file: Path | None = field(default=None, compare=False)  # in the cache

    @property
    def changes(self) -> NDArray[np.int64]:
        """When the files and folders that decide the index were changed, in ns since 1970."""
        raise TypeError(f"{type(self).__name__} does not say what decides it")

    def is_settled(self) -> bool:
        """Whether none of these changes is so close to the scan that the scan may have missed another one."""
        began, ended = self.scanned
        return not bool(((self.changes > began - SETTLED) & (self.changes < ended + SETTLED)).any())


Index = TypeVar("Index", bound=CachedIndex)


def cache_file(*words: bytes) -> Path | None:
    """The index file of the data set that `words` identify, None without a cache folder."""
    folder = owned.cache_folder()
    if folder is None:
        return None
    digest = hashlib.sha256(b"".join(len(word).to_bytes(8, "little") + word for word in words))
    return folder / f"{digest.hexdigest()[:32]}.index"


def cached(
    file: Path | None, kind: type[Index], is_current: Callable[[Index], bool], build: Callable[[], Index]
) -> Index:
    """The index in `file` if it `is_current`, else a new one, which is stored.

    Several processes may call this at once: one builds the index, the others wait. An unusable cache costs time and a
    warning, never an error.
    """
    if file is None:
        _log.warning("%s: no folder, or another user may write to it", _UNCACHED)
        return build()
    asked = time.time_ns()

    def found() -> Index | None:
        index = load(file, kind)
        if index is None or not is_current(index):
            return None
        # an index that may have missed a change is valid only for a call that began before its scan
        return index if index.is_settled() or index.scanned[0] >= asked else None

    index = found()
    if index is None:
        with locked(file):
            index = found()
            if index is None:
                index = _stored(file, build())
    return index


def load(file: Path | None, kind: type[Index]) -> Index | None:
    """The index in a file of the cache; None if it is missing, damaged or of another version."""
    if file is None:
        return None
    try:
        members, arrays = columns.load(file)
        if members["cache"] != VERSION:
            return None
        index: Index = saved.value_of(members["index"], arrays, kind)
        return replace(index, file=file)
    except (OSError, ContainerError, LookupError, TypeError, ValueError):
        return None


def _stored(file: Path, index: Index) -> Index:
    """The index as it is mapped after it was stored; itself if that is impossible."""
    members, arrays = saved.taken_apart(index)
    try:
        columns.store(file, {"index": members, "cache": VERSION}, arrays)
    except (OSError, ContainerError) as error:  # a full or read-only disk, or a header beyond its limit
        why = because(error) if isinstance(error, OSError) else error
        _log.warning("%s: %s cannot be written: %s", _UNCACHED, file, why)
        return index
    mapped = load(file, type(index))
    return index if mapped is None else mapped


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Wait until no other process builds this index, where the file system can lock."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(file.with_suffix(".lock"), flags, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
