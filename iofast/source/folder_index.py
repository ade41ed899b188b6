"""The index of a plain folder: its listing and the size of each image, cached or built by reading all headers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers.columns_file import Arrays
from iofast.errors import ContainerError, SourceError
from iofast.source import stored
from iofast.source.cache import (
    cache_file,
    cached,
    check_columns,
    check_members,
    check_strings,
    is_outdated,
    is_settled,
    load,
)
from iofast.source.image_files import read_header
from iofast.source.in_threads import in_threads
from iofast.source.listing import Source, SourceOptions
from iofast.source.scan import scan

LOOKS = 1024  # files whose size and time are compared when a cached index is opened: 3 ms
COLUMNS = ("width", "height", "orientation", "size", "times")  # of `FolderIndex`


@dataclass(frozen=True, slots=True)
class FolderIndex:
    """A listing, and columns from the headers in listing order; 0 x 0 for an unreadable header."""

    source: Source
    fingerprint: str  # the source's
    width: NDArray[np.int32]  # pixels, upright
    height: NDArray[np.int32]
    orientation: NDArray[np.uint8]  # EXIF 1-8, still to be applied
    size: NDArray[np.uint64]  # bytes of the file
    times: NDArray[np.int64]  # last change of the file in ns since 1970, 0 if unreadable
    scanned: tuple[int, int]  # begin and end of the scan in ns since 1970
    file: Path | None = None  # the mapped index file


def open_index(root: str | os.PathLike[str], options: SourceOptions) -> FolderIndex:
    """The index of a folder or manifest file: the cached one if nothing was changed since, else a new one.

    Every folder and `LOOKS` of the files are checked; a change of another file is noticed when it is read. Raises
    `SourceError` as `scan` does. See `cached`.
    """
    asked = time.time_ns()
    return cached(
        _file(root, options),
        lambda file: _valid(file, root, asked),
        lambda: build_index(root, options),
        _parts,
        lambda file: _loaded(file, root),
    )


def reopen_index(root: str | os.PathLike[str], options: SourceOptions, fingerprint: str) -> FolderIndex:
    """The cached index with this fingerprint, or the present one if it is gone.

    The folder is not checked for changes, so that all workers see the same images.
    """
    file = _file(root, options)
    index = None if file is None else _loaded(file, root)
    return index if index is not None and index.fingerprint == fingerprint else open_index(root, options)


def build_index(root: str | os.PathLike[str], options: SourceOptions) -> FolderIndex:
    """Scan, and read the header of every image in parallel, with a progress bar after a second."""
    began = time.time_ns()
    source = scan(root, options)
    if source.objects is not None:
        raise SourceError(f"{os.fspath(root)} names images in object stores, which are not read one by one: pack them")
    ended = time.time_ns()
    count = len(source)
    size, orientation, times = np.zeros(count, np.uint64), np.ones(count, np.uint8), np.zeros(count, np.int64)
    width, height = np.zeros(count, np.int32), np.zeros(count, np.int32)
    base = os.fsencode(source.root)

    def read(start: int, stop: int) -> None:
        for row in range(start, stop):
            path = os.path.join(base, source.paths[row])
            size[row], times[row], width[row], height[row], orientation[row] = read_header(path)

    in_threads(read, count, " images", "reading headers")
    return FolderIndex(source, source.fingerprint(), width, height, orientation, size, times, (began, ended))


def _file(root: str | os.PathLike[str], options: SourceOptions) -> Path | None:
    return cache_file(
        os.fsencode(os.path.realpath(root)), os.fsencode(os.path.abspath(root)), repr(astuple(options)).encode()
    )


def _valid(file: Path, root: str | os.PathLike[str], asked: int) -> FolderIndex | None:
    """The cached index if it equals one built now."""
    index = _loaded(file, root)
    if index is None or is_outdated(file) or not _unchanged(index.source) or not _files_unchanged(index):
        return None
    settled = is_settled(index.source.watched.stamps, index.scanned)
    return index if settled or index.scanned[0] >= asked else None


def _unchanged(source: Source) -> bool:
    base = os.fsencode(source.root)
    try:
        return all(
            os.stat(os.path.join(base, path)).st_mtime_ns == stamp
            for path, stamp in zip(source.watched.paths, source.watched.stamps.tolist(), strict=True)
        )
    except (OSError, ValueError):  # missing, or not a file name
        return False


def _files_unchanged(index: FolderIndex) -> bool:
    """Whether evenly spaced files are unchanged; those that were unreadable then are skipped."""
    base = os.fsencode(index.source.root)
    rows = np.linspace(0, len(index.size) - 1, min(LOOKS, len(index.size))).astype(np.intp)
    known = zip(rows.tolist(), index.size[rows].tolist(), index.times[rows].tolist(), strict=True)
    try:
        for row, size, time_ns in known:
            status = os.stat(os.path.join(base, index.source.paths[row])) if time_ns else None
            if status is not None and (status.st_size, status.st_mtime_ns) != (size, time_ns):
                return False
    except (OSError, ValueError):
        return False
    return True


def _loaded(file: Path, root: str | os.PathLike[str]) -> FolderIndex | None:
    try:
        members, arrays = load(file)
        return _whole(file, Path(os.path.abspath(root)), members, arrays)
    except (OSError, ContainerError, ValueError, KeyError, TypeError, AttributeError):
        return None  # missing or damaged: build it again


def _parts(index: FolderIndex) -> tuple[dict[str, object], Arrays]:
    members, arrays = stored.parts(index.source)
    arrays |= {name: getattr(index, name) for name in COLUMNS}
    return {**members, "fingerprint": index.fingerprint, "scanned": index.scanned}, arrays


def _whole(file: Path, path: Path, members: Mapping[str, Any], arrays: Arrays) -> FolderIndex:
    source = stored.source_of(stored.root_of(path, members["kind"]), members, arrays)
    began, ended = members["scanned"]
    columns = {name: arrays[name] for name in COLUMNS}
    _check(file, source, columns)
    check_members(
        len(source),
        members["fingerprint"],
        fields=sorted({*source.fields, "jpg", "json"}),
        splits=source.splits,
        classes=source.classes,
        class_order=source.class_order,
    )
    for name in ("paths", "watched", *(f"column.{column.field}" for column in source.columns)):
        check_strings(arrays[f"{name}.blob"], arrays[f"{name}.bounds"])
    return FolderIndex(source, members["fingerprint"], scanned=(int(began), int(ended)), file=file, **columns)


def _check(file: Path, source: Source, columns: Arrays) -> None:
    """Raise `ContainerError` for values that no scan produces; a file in the cache is not trusted."""
    count = len(source)
    fields = [array for column in source.columns for array in (column.values, column.states)]
    if any(len(array) != count for array in (*columns.values(), source.listed_labels, *fields)):
        raise ContainerError(f"{file} has columns of other lengths than its {count} paths")
    check_columns({**columns, "label": source.listed_labels}, 0)
    if not source.splits:
        raise ContainerError(f"{file} has no splits")
    if source.order is not None and not np.array_equal(np.sort(source.order), np.arange(count)):
        raise ContainerError(f"{file} has an order that is not a permutation of its {count} paths")
