"""The index of another program's files: a table of places, built by one scan and cached until a file changes.

A `Format` (`tar`, `tfrecord`, `lmdb`, `arrow`) lists its files and scans them. The rest is common to all.
"""

import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.containers.any_bytes import open_bytes, stored_stamps
from iofast.containers.columns import Arrays, lacking
from iofast.containers.file_bytes import FileBytes
from iofast.containers.manifest import MAX_FIELDS, WHOLE, Manifest, Shard
from iofast.containers.open_files import OpenFiles
from iofast.errors import ContainerError, DecodeError, IofastError, SourceError, unreadable
from iofast.foreign.options import ForeignOptions
from iofast.record import JSON_FIELD, LABEL_FIELD, ImageInfo, image_field
from iofast.remote.urls import absolute, is_url
from iofast.source.arrays import Strings
from iofast.source.cache import CachedIndex, cache_file, cached, load
from iofast.source.table import check_file

MAX_RECORDS = 655_360_000  # of one index, which a scan builds in memory: 40 GB for one field
MAX_NAMES = 100  # names of members or features kept for error messages; each record may have new ones


@dataclass(frozen=True, kw_only=True)
class ForeignIndex(CachedIndex):
    """Columns with one row per record.

    `arrays` has the columns of an index of iofast (`containers.columns`), without checksums in most formats; and
    `starts`, the number of records before each file. `open_index` sets `fingerprint`, `state`, `stamps` and `scanned`.
    """

    arrays: Arrays = field(repr=False)
    fields: tuple[str, ...]
    keys: Strings | None = None  # None: keys are positions
    json: Strings | None = None  # payloads of a field `json` that is in no file; empty for a record without it
    label_from_index: bool = True  # the field `cls` is made from the column `label`; it is in no file
    classes: tuple[str, ...] | None = None
    class_order: str = "lexicographic"
    splits: tuple[tuple[str, int, int], ...] = ()
    left_out: tuple[str, ...] = ()  # sentences about contents of the files that no record has
    names_seen: tuple[str, ...] = ()  # names of the members or features in the files, up to `MAX_NAMES`
    state: tuple[int, ...] = ()  # further numbers that change when the files do
    stamps: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64), repr=False)  # size, time

    def __len__(self) -> int:
        return len(self.arrays["label"])

    @property
    def changes(self) -> NDArray[np.int64]:
        return self.stamps[:, 1]

    def files_of(self, indices: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The number of the file with each record."""
        return (np.searchsorted(self.arrays["starts"], indices, "right") - 1).astype(np.uint32)

    @property
    def labelled(self) -> bool:
        """Whether any record has a label."""
        return bool((self.arrays["label"] >= 0).any())

    def has_named(self, ours: str, theirs: str) -> bool:
        """Whether any record has what the option `names` calls `ours=theirs`; of a label, whether one may have it."""
        if ours == "label":  # the list of names ends after `MAX_NAMES`
            member = JSON_FIELD if theirs.lower().startswith(f"{JSON_FIELD}/") else theirs
            seen = {member, member.lower()}.intersection(self.names_seen)
            return self.labelled or bool(seen) or len(self.names_seen) >= MAX_NAMES
        if ours == "path":
            return self.json is not None and b'"path":' in bytes(self.json.blob)
        return ours in self.fields if ours != "image" else image_field(self.fields) is not None

    @property
    def unplaced(self) -> tuple[str, ...]:
        """Fields that are made from the index and are in no file. The records may have none of them."""
        label = (LABEL_FIELD,) if self.label_from_index else ()
        return label if self.json is None else (*label, JSON_FIELD)

    def manifest(self, size: int) -> Manifest:
        """The manifest of the records; `size` is the total size of the files in bytes."""
        count, fields = len(self), set(self.fields)
        if self.label_from_index and self.labelled:
            fields.add(LABEL_FIELD)
        if self.json is not None and len(self.json.blob) > count:  # more than the byte behind each
            fields.add(JSON_FIELD)
        ranges = {name: ((start, stop),) for name, start, stop in self.splits if stop > start}
        return Manifest(
            count=count,
            fields=tuple(sorted(fields)),
            splits=ranges or {WHOLE: ((0, count),)},
            fingerprint=self.fingerprint,
            shards=(Shard("", count, size),),
            classes=self.classes,
            class_order=self.class_order,
        )


class Format(ABC):
    """The files of one data set in another program's format. Pickled with its reader."""

    name: ClassVar[str]
    has_checksums: ClassVar[bool] = False
    renames: ClassVar[bool] = True  # see `Reader.renames`
    names_are_fixed: ClassVar[bool] = False  # the files define all names, so `ForeignOptions` do not apply

    def __init__(self, paths: Sequence[str], options: ForeignOptions) -> None:
        self.paths, self.options = [absolute(path) for path in paths], options

    @abstractmethod
    def scan(self, stamped: NDArray[np.int64]) -> ForeignIndex:
        """Build the index, with a progress bar if that takes long. `stamped`: sizes and times of all files.

        Raises `ContainerError`, naming file and offset, for bytes that contradict the format.
        """

    def words(self) -> list[bytes]:
        """What identifies this data set; the name of its index in the cache is a hash of it."""
        places = [
            os.fsencode(place)
            for path in self.paths
            for place in (path if is_url(path) else os.path.realpath(path), path)
        ]
        return [self.options.identity(), *places]

    def state(self) -> tuple[int, ...]:
        """See `ForeignIndex.state`."""
        return ()

    def is_readable(self, stamped: NDArray[np.int64]) -> bool:  # noqa: ARG002
        """Whether everything that an index of files with these sizes and times refers to is there."""
        return True

    def files(self, stamped: NDArray[np.int64]) -> OpenFiles:
        """The files; opening one that changed since it was indexed raises `ContainerError`."""
        return OpenFiles(self.paths, partial(check_unchanged, self.paths, stamped))  # picklable, as readers are


def check_unchanged(paths: Sequence[str], stamped: NDArray[np.int64], number: int, status: os.stat_result) -> None:
    """Raise `ContainerError` if an opened file has another size or time than when it was indexed."""
    size, changed = stamped[number].tolist()
    if (status.st_size, status.st_mtime_ns) != (size, changed):
        change = f"{status.st_size} bytes, it had {size}" if status.st_size != size else "at another time"
        raise ContainerError(f"{paths[number]} was changed since it was indexed ({change}): open it again")


def open_index(data: Format) -> ForeignIndex:
    """Return the cached index of these files, or build it if there is none or a file changed; see `cached`.

    Raises `SourceError` for a file that is missing or being written, `ContainerError` for bytes that contradict the
    format.
    """
    before, state = stamps(data.paths), data.state()

    def is_current(index: ForeignIndex) -> bool:
        return np.array_equal(index.stamps, before) and index.state == state and data.is_readable(before)

    return cached(_file(data), ForeignIndex, is_current, lambda: _build(data, before, state))


def reopen_index(data: Format, fingerprint: str) -> ForeignIndex:
    """Return the cached index with this fingerprint, or open the files again if it is gone."""
    index = load(_file(data), ForeignIndex)
    return index if index is not None and index.fingerprint == fingerprint else open_index(data)


def stamps(paths: Sequence[str]) -> NDArray[np.int64]:
    """Size (bytes) and last change (ns) of each file, int64 (N, 2). Raises `SourceError` for a missing file.

    An object has a number of its version in place of the time.
    """
    urls = [path for path in paths if is_url(path)]
    found = dict(zip(urls, stored_stamps(urls), strict=True)) if urls else {}
    for path in paths:
        if path not in found:
            try:
                check_file(path)
                status = os.stat(path)
            except OSError as error:
                raise unreadable(path, error) from None
            found[path] = status.st_size, status.st_mtime_ns
    return np.array([found[path] for path in paths], np.int64).reshape(-1, 2)


def joined(files: Sequence[Arrays]) -> Arrays:
    """The columns of the records of all files, one after another, and `starts`."""
    counts = [len(own["position"]) for own in files]
    if sum(counts) > MAX_RECORDS:
        raise ContainerError(f"{sum(counts)} records are too many")
    arrays: Arrays = {"starts": np.cumsum(counts, dtype=np.int64) - np.array(counts, np.int64)}
    for name in dict.fromkeys(name for own in files for name in own if name != "position"):
        own = [each[name] if name in each else lacking(name, count) for each, count in zip(files, counts, strict=True)]
        arrays[name] = np.concatenate(own)
    return arrays


def few_names(names: Iterable[Collection[str]]) -> tuple[str, ...]:
    """Return `ForeignIndex.names_seen` from the names found in each file."""
    return tuple(sorted(set[str]().union(*names))[:MAX_NAMES])


def opened(path: str) -> FileBytes:
    """Open a file or an object. Raises `SourceError`, `StorageError`."""
    try:
        return open_bytes(path)
    except IofastError:
        raise
    except OSError as error:
        raise unreadable(path, error) from None


def described(read: Callable[[int, int], bytes], length: int, label: int = -1) -> ImageInfo:
    """What the header of an image says, read by `kernel.probe`; no size if it is damaged."""
    try:
        header = kernel.probe(read, length)
    except DecodeError:
        return ImageInfo(label)
    return ImageInfo(label, header.width, header.height, header.orientation)


def _file(data: Format) -> Path | None:
    return cache_file(data.name.encode(), *data.words())


def _build(data: Format, before: NDArray[np.int64], state: tuple[int, ...]) -> ForeignIndex:
    began = time.time_ns()
    index = data.scan(before)
    where = f"{data.paths[0]} …" if len(data.paths) > 1 else data.paths[0]
    if not np.array_equal(stamps(data.paths), before) or data.state() != state:
        raise SourceError(f"{where} was written to while it was indexed: wait until writing ends")
    if len(index) > MAX_RECORDS or len(index.fields) > MAX_FIELDS:
        raise ContainerError(f"{where}: {len(index)} records of {len(index.fields)} fields are too many")
    whole = replace(index, state=state, stamps=before, scanned=(began, time.time_ns()))
    return replace(whole, fingerprint=_fingerprint(index))


def _fingerprint(index: ForeignIndex) -> str:
    """A hash of the index. It does not change with a payload that keeps its size: there are no checksums."""
    digest = hashlib.sha256(json.dumps([index.fields, index.classes, index.splits]).encode())
    for name, array in sorted(index.arrays.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).data)
    for strings in (index.keys, index.json):
        digest.update(b"" if strings is None else strings.bounds.tobytes())
        digest.update(b"" if strings is None else strings.blob)
    return f"sha256:{digest.hexdigest()}"
