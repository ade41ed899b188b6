"""The index of a plain folder: its listing and the size of each image, cached or built by reading all headers."""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iofast.errors import SourceError
from iofast.source.cache import CachedIndex, cache_file, cached, load
from iofast.source.image_files import read_header
from iofast.source.in_threads import in_threads
from iofast.source.listing import Listing
from iofast.source.saved import root_of
from iofast.source.scan import scan

LOOKS = 1024  # files whose size and time are compared when a cached index is opened: 3 ms


@dataclass(frozen=True, kw_only=True)
class FolderIndex(CachedIndex):
    """A listing, and columns from the headers in listing order; 0 x 0 for an unreadable header."""

    source: Listing
    width: NDArray[np.int32]  # pixels, upright
    height: NDArray[np.int32]
    orientation: NDArray[np.uint8]  # EXIF 1-8, still to be applied
    size: NDArray[np.uint64]  # bytes of the file
    times: NDArray[np.int64]  # last change of the file in ns since 1970, 0 if unreadable

    @property
    def changes(self) -> NDArray[np.int64]:
        return self.source.watched.stamps


def open_index(root: str | os.PathLike[str]) -> FolderIndex:
    """The index of a folder or manifest file: the cached one if nothing was changed since, else a new one.

    Every folder and `LOOKS` of the files are checked; a change of another file is noticed when it is read. Raises
    `SourceError` as `scan` does. See `cached`.
    """
    index = cached(
        _file(root),
        FolderIndex,
        lambda index: _unchanged(_at(index, root)),
        lambda: build_index(root),
    )
    return _at(index, root)


def reopen_index(root: str | os.PathLike[str], fingerprint: str) -> FolderIndex:
    """The cached index with this fingerprint, or the present one if it is gone.

    The folder is not checked for changes, so that all workers see the same images.
    """
    index = load(_file(root), FolderIndex)
    is_same = index is not None and index.fingerprint == fingerprint
    return _at(index, root) if index is not None and is_same else open_index(root)


def build_index(root: str | os.PathLike[str]) -> FolderIndex:
    """Scan, and read the header of every image in parallel, with a progress bar after a second."""
    began = time.time_ns()
    source = scan(root)
    if source.objects is not None:
        raise SourceError(f"{os.fspath(root)} names images in object stores, which are not read one by one: pack them")
    scanned = began, time.time_ns()
    count = len(source)
    size, orientation, times = np.zeros(count, np.uint64), np.ones(count, np.uint8), np.zeros(count, np.int64)
    width, height = np.zeros(count, np.int32), np.zeros(count, np.int32)
    base = os.fsencode(source.root)

    def read(start: int, stop: int) -> None:
        for row in range(start, stop):
            path = os.path.join(base, source.paths[row])
            size[row], times[row], width[row], height[row], orientation[row] = read_header(path)

    in_threads(read, count, " images", "reading headers")
    return FolderIndex(
        source=source,
        width=width,
        height=height,
        orientation=orientation,
        size=size,
        times=times,
        fingerprint=source.fingerprint(),
        scanned=scanned,
    )


def _at(index: FolderIndex, root: str | os.PathLike[str]) -> FolderIndex:
    """The index with its root, which no file of the cache has."""
    return replace(index, source=replace(index.source, root=root_of(root, index.source.kind)))


def _file(root: str | os.PathLike[str]) -> Path | None:
    real, name = os.path.realpath(root), os.path.abspath(root)
    return cache_file(os.fsencode(real), os.fsencode(name))


def _unchanged(index: FolderIndex) -> bool:
    """Whether all that was listed is unchanged, and so are evenly spaced files that could be read then."""
    source, base = index.source, os.fsencode(index.source.root)
    rows = np.linspace(0, len(index.size) - 1, min(LOOKS, len(index.size))).astype(np.intp)
    known = zip(rows.tolist(), index.size[rows].tolist(), index.times[rows].tolist(), strict=True)
    try:
        for path, stamp in zip(source.watched.paths, source.watched.stamps.tolist(), strict=True):
            if os.stat(os.path.join(base, path)).st_mtime_ns != stamp:
                return False
        for row, size, time_ns in known:
            status = os.stat(os.path.join(base, source.paths[row])) if time_ns else None
            if status is not None and (status.st_size, status.st_mtime_ns) != (size, time_ns):
                return False
    except OSError:  # missing
        return False
    return True
