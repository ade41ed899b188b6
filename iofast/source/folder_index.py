"""The index of a plain folder: its listing and every image's size, from the cache or from reading all headers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.bars import open_bar
from iofast.errors import ContainerError
from iofast.source.cache import (
    Arrays,
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
from iofast.source.listing import Column, Source, SourceOptions, Strings, Watched
from iofast.source.scan import scan

THREADS = 16  # also on few cores: on a disk or network most of the time is waiting
CHUNK = 256  # images per task
LOOKS = 1024  # files whose size and time are compared when a cached index is opened: 3 ms
COLUMNS = ("width", "height", "orientation", "size", "times")  # of `FolderIndex`


@dataclass(frozen=True, slots=True)
class FolderIndex:
    """A listing with what the headers said: columns in listing order, 0 x 0 where a header could not be read."""

    source: Source
    fingerprint: str  # the source's
    width: NDArray[np.int32]  # pixels, upright
    height: NDArray[np.int32]
    orientation: NDArray[np.uint8]  # EXIF 1-8, still to be applied
    size: NDArray[np.uint64]  # bytes of the file
    times: NDArray[np.int64]  # ns since 1970: when the file was changed, 0 where it could not be read
    scanned: tuple[int, int]  # ns since 1970: when the scan began and ended
    file: Path | None = None  # the index file that this is a map of


def open_index(root: str | os.PathLike[str], options: SourceOptions) -> FolderIndex:
    """The index of a folder or manifest file: the cached one if nothing was changed since, else a new one.

    Every folder is looked at, and `LOOKS` of the files: a change of another one is found when it is read.

    Any number of processes may call this at the same moment: one builds, the others wait for it. A cache that cannot
    be used costs time, never an error. Raises `SourceError` as `scan` does.
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
    """The index as another process of this run has opened it, or as the folder is now where that one is gone.

    Does not look at the folder if the cached index has this fingerprint, so all workers see the same images.
    """
    file = _file(root, options)
    found = None if file is None else _loaded(file, root)
    return found if found is not None and found.fingerprint == fingerprint else open_index(root, options)


def build_index(root: str | os.PathLike[str], options: SourceOptions) -> FolderIndex:
    """Scan, and read the header of every image in parallel; with a progress bar if that takes over a second."""
    began = time.time_ns()
    source = scan(root, options)
    ended = time.time_ns()
    count = len(source)
    size, orientation, times = np.zeros(count, np.uint64), np.ones(count, np.uint8), np.zeros(count, np.int64)
    width, height = np.zeros(count, np.int32), np.zeros(count, np.int32)
    base = os.fsencode(source.root)

    def read(start: int) -> int:
        stop = min(start + CHUNK, count)
        for row in range(start, stop):
            path = os.path.join(base, source.paths[row])
            size[row], times[row], width[row], height[row], orientation[row] = read_header(path)
        return stop - start

    _run(read, count)
    return FolderIndex(source, source.fingerprint(), width, height, orientation, size, times, (began, ended))


def _run(read: Callable[[int], int], count: int) -> None:
    pool = ThreadPoolExecutor(THREADS, "iofast-headers")
    try:
        tasks = [pool.submit(read, start) for start in range(0, count, CHUNK)]
        with open_bar(count, " images", "reading headers", delay=1) as bar:
            for task in as_completed(tasks):
                bar.update(task.result())
    finally:
        pool.shutdown(cancel_futures=True)


def _file(root: str | os.PathLike[str], options: SourceOptions) -> Path | None:
    return cache_file(
        os.fsencode(os.path.realpath(root)), os.fsencode(os.path.abspath(root)), repr(astuple(options)).encode()
    )


def _valid(file: Path, root: str | os.PathLike[str], asked: int) -> FolderIndex | None:
    """The cached index if it is as good as one built now."""
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
    except (OSError, ValueError):  # gone, or no name of a file
        return False


def _files_unchanged(index: FolderIndex) -> bool:
    """Whether files, evenly spaced, are as they were indexed; those that could not be read then do not count."""
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
        return None  # absent, or written by something else: built again


def _parts(index: FolderIndex) -> tuple[dict[str, object], Arrays]:
    source = index.source
    arrays: Arrays = {name: getattr(index, name) for name in COLUMNS}
    arrays |= {"labels": source.listed_labels, "stamps": source.watched.stamps}
    arrays |= {} if source.order is None else {"order": source.order}
    arrays |= _strings("paths", source.paths) | _strings("watched", source.watched.paths)
    for column in source.columns:
        arrays |= _strings(f"column.{column.field}", column.values) | {f"column.{column.field}.states": column.states}
    members: dict[str, object] = {
        "fingerprint": index.fingerprint,
        "scanned": index.scanned,
        "kind": source.kind,
        "classes": source.classes,
        "class_order": source.class_order,
        "splits": source.splits,
        "fields": source.fields,
        "warnings": source.warnings,
        "notes": source.notes,
    }
    return members, arrays


def _strings(name: str, strings: Strings) -> Arrays:
    return {f"{name}.blob": np.frombuffer(strings.blob, np.uint8), f"{name}.bounds": strings.bounds}


def _whole(file: Path, path: Path, members: Mapping[str, Any], arrays: Arrays) -> FolderIndex:
    def strings(name: str) -> Strings:
        return Strings(arrays[f"{name}.blob"].data, arrays[f"{name}.bounds"])

    source = Source(
        root=path.parent if members["kind"] == "manifest" else path,
        kind=members["kind"],
        classes=None if members["classes"] is None else tuple(members["classes"]),
        splits=tuple((name, start, stop) for name, start, stop in members["splits"]),
        paths=strings("paths"),
        listed_labels=arrays["labels"],
        watched=Watched(strings("watched"), arrays["stamps"]),
        class_order=members["class_order"],
        columns=tuple(
            Column(field, strings(f"column.{field}"), arrays[f"column.{field}.states"]) for field in members["fields"]
        ),
        order=arrays.get("order"),
        warnings=tuple(members["warnings"]),
        notes=tuple(members["notes"]),
    )
    began, ended = members["scanned"]
    if any(len(column) != len(source) for column in (*(arrays[name] for name in COLUMNS), source.listed_labels)):
        raise ContainerError(f"{file} has columns of other lengths than its {len(source)} paths")
    fields = sorted({*source.fields, "jpg", "json"})
    check_members(
        len(source),
        members["fingerprint"],
        fields=fields,
        splits=source.splits,
        classes=source.classes,
        class_order=source.class_order,
    )
    check_columns({name: arrays[name] for name in COLUMNS}, 0)
    check_columns({"label": source.listed_labels}, 0)
    order = source.order
    if not source.splits:
        raise ContainerError(f"{file} has no splits")
    if order is not None and not np.array_equal(np.sort(order), np.arange(len(source))):
        raise ContainerError(f"{file} has an order that is none of its {len(source)} paths")
    for name in ("paths", "watched", *(f"column.{column.field}" for column in source.columns)):
        check_strings(arrays[f"{name}.blob"], arrays[f"{name}.bounds"])
    if any(len(column.values) != len(source) or len(column.states) != len(source) for column in source.columns):
        raise ContainerError(f"{file} has fields of other lengths than its {len(source)} paths")
    known = {name: arrays[name] for name in COLUMNS}
    return FolderIndex(source, members["fingerprint"], scanned=(int(began), int(ended)), file=file, **known)
