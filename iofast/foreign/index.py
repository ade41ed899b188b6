"""What a scan of another program's files has found: a table of places, kept in the user's cache until a file changes.

A format (`tar`, `tfrecord`, `lmdb`, `mds`, `beton`) says which files it has, and scans them. The rest is the same for
all.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from iofast.containers.index import ABSENT
from iofast.containers.manifest import MAX_COUNT, MAX_FIELDS, WHOLE, Manifest, Shard
from iofast.containers.open_files import OpenFiles
from iofast.errors import ContainerError, SourceError
from iofast.foreign.options import ForeignOptions
from iofast.record import IMAGE_FIELDS, JSON_FIELD, LABEL_FIELD, check_field
from iofast.source.cache import (
    Arrays,
    cache_file,
    cached,
    check_columns,
    check_members,
    check_strings,
    is_settled,
    load,
    stamps,
)
from iofast.source.listing import Strings

FORMATS = ("jpg", "png", "webp", "gif", "bmp", "tif")  # a column has the number in here
MAX_NAMES = 100  # of members or features, for messages: somebody may have a new one in every record
NUMBERS = ("|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8")
COLUMNS = {"label": "<i4", "width": "<i4", "height": "<i4", "orientation": "|u1", "format": "|u1"}
PARTS = {"file": "<u4", "offset": "<u8", "length": "<u8"}  # of a place, and `crc` where the format has checksums
_NUMBER = {"jpeg": 0, "tiff": 5} | {name: number for number, name in enumerate(FORMATS)}
_MEMBERS = ("fields", "dtypes", "says_label", "classes", "class_order", "splits", "left_out", "called", "state")


@dataclass(frozen=True, slots=True)
class ForeignIndex:
    """Columns of one row per record.

    `arrays` has label, width, height, orientation and format (see `FORMATS`) of the image; `file.n`, `offset.n`,
    `length.n` and, where there are checksums, `crc.n` of field n; `starts`, the number of records before each file.
    The scan leaves `fingerprint`, `stamps` and `scanned` to `open_index` if it has none of its own.
    """

    arrays: Arrays = field(repr=False)
    fields: tuple[str, ...]
    dtypes: tuple[str, ...] = ()  # of each field; "" where its bytes are the payload, else it is a number
    keys: Strings | None = None  # None: the places in the order are the keys
    json: Strings | None = None  # the payload of `json` that the index itself says, empty where a record has none
    says_label: bool = True  # `cls` is said by the index, and lies in no file
    classes: tuple[str, ...] | None = None
    class_order: str = "lexicographic"
    splits: tuple[tuple[str, int, int], ...] = ()
    left_out: tuple[str, ...] = ()  # what is in the files and in no record, in sentences
    called: tuple[str, ...] = ()  # what the files call their members or features, the first `MAX_NAMES`
    state: tuple[int, ...] = ()  # what tells the files from later ones beside their stamps
    fingerprint: str = ""
    stamps: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64), repr=False)  # size, time
    scanned: tuple[int, int] = (0, 0)  # ns since 1970: when the scan began and ended
    file: Path | None = None  # the file in the cache that this is a map of

    def __len__(self) -> int:
        return len(self.arrays["label"])

    @property
    def labelled(self) -> bool:
        """Whether any record has a label."""
        return bool((self.arrays["label"] >= 0).any())

    @property
    def unplaced(self) -> tuple[str, ...]:
        """The fields that lie in no file, because the index itself says them; a set may have none of them."""
        label = (LABEL_FIELD,) if self.says_label else ()
        return label if self.json is None else (*label, JSON_FIELD)

    def manifest(self, size: int) -> Manifest:
        """As a container's; `size` is the number of bytes of all files."""
        count, said = len(self), set[str]()
        if self.says_label and self.labelled:
            said.add(LABEL_FIELD)
        if self.json is not None and len(self.json.blob) > count:  # more than the byte behind each
            said.add(JSON_FIELD)
        ranges = {name: ((start, stop),) for name, start, stop in self.splits if stop > start}
        return Manifest(
            count=count,
            fields=tuple(sorted({*self.fields, *said})),
            splits=ranges or {WHOLE: ((0, count),)},
            fingerprint=self.fingerprint,
            shards=(Shard("", count, size),),
            classes=self.classes,
            class_order=self.class_order,
        )


Asked = tuple[str, str, str, bool]  # our name, the files' name, what it is, and whether any record has it


class Format(ABC):
    """A data set in another program's format. Pickled with its reader."""

    name: ClassVar[str]
    says_all: ClassVar[bool] = False  # so that `ForeignOptions` have nothing to say

    def __init__(self, paths: Sequence[str], options: ForeignOptions, beside: Sequence[str] = ()) -> None:
        self.paths, self.options = [os.path.abspath(path) for path in paths], options
        self.beside = list(beside)  # further files whose change makes another index

    @abstractmethod
    def scan(self, stamped: NDArray[np.int64]) -> ForeignIndex:
        """Read what must be read of all files, of these sizes and times; with a progress bar if it takes long.

        Raises `ContainerError`, naming file and offset, where bytes are none of the format.
        """

    def words(self) -> list[bytes]:
        """What tells this data set from others: its index in the cache is named by it."""
        places = [os.fsencode(place) for path in self.paths for place in (os.path.realpath(path), path)]
        return [self.options.identity(), *places, *map(os.fsencode, self.beside)]

    def state(self) -> tuple[int, ...]:
        """See `ForeignIndex.state`."""
        return ()

    def sizes(self, stamped: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many bytes can be read of each file, of its size and time."""
        return stamped[: len(self.paths), 0]

    def files(self, stamped: NDArray[np.int64]) -> OpenFiles:
        """The files, which must be those that were indexed."""
        return OpenFiles(self.paths, Same(self.paths, stamped))

    def asked(self, index: ForeignIndex) -> Iterable[Asked]:  # noqa: ARG002
        """The names that a user gave, and whether they are in the files."""
        return ()


class Same:
    """Compares an opened file with its stamp; a class, because readers are pickled."""

    def __init__(self, paths: Sequence[str], seen: NDArray[np.int64]) -> None:
        self._paths, self._seen = paths, seen

    def __call__(self, number: int, status: os.stat_result) -> None:
        size, changed = self._seen[number].tolist()
        if (status.st_size, status.st_mtime_ns) != (size, changed):
            found = f"{status.st_size} bytes, it had {size}" if status.st_size != size else "at another time"
            raise ContainerError(f"{self._paths[number]} was changed since it was indexed ({found}): open it again")


def open_index(data: Format) -> ForeignIndex:
    """The index of these files: the cached one if none was changed since, else a new one.

    Any number of processes may call this at the same moment: one builds, the others wait for it. A cache that cannot
    be used costs time, never an error. Raises `SourceError` where a file is missing or is being written, and
    `ContainerError` where its bytes are none of the format.
    """
    asked = time.time_ns()
    before, state = stamps([*data.paths, *data.beside]), data.state()

    def valid(file: Path) -> ForeignIndex | None:
        found = _loaded(file, data)
        if found is None or not np.array_equal(found.stamps, before) or found.state != state:
            return None
        # one that may have missed a change counts only for those who asked before it was begun
        return found if is_settled(found.stamps[:, 1], found.scanned) or found.scanned[0] >= asked else None

    return cached(_file(data), valid, lambda: _build(data, before, state), _parts, lambda file: _loaded(file, data))


def reopen_index(data: Format, fingerprint: str) -> ForeignIndex:
    """The index as another process of this run has opened it, or as the files are now where that one is gone."""
    file = _file(data)
    found = None if file is None else _loaded(file, data)
    return found if found is not None and found.fingerprint == fingerprint else open_index(data)


def number_of(image_format: str) -> int:
    """The place in `FORMATS` of what `kernel.Header.format` says."""
    return _NUMBER.get(image_format.lower(), 0)


def few_names(names: Iterable[Collection[str]]) -> tuple[str, ...]:
    """`ForeignIndex.called` of the names that were found in each file."""
    return tuple(sorted(set[str]().union(*names))[:MAX_NAMES])


def may_be_there(name: str | None, names: Collection[str]) -> bool:
    """Whether some record may have a member or feature of that name; an index keeps `MAX_NAMES` of them."""
    return name in names or len(names) >= MAX_NAMES


def _file(data: Format) -> Path | None:
    return cache_file(data.name.encode(), *data.words())


def _build(data: Format, before: NDArray[np.int64], state: tuple[int, ...]) -> ForeignIndex:
    began = time.time_ns()
    index = data.scan(before)
    where = f"{data.paths[0]} …" if len(data.paths) > 1 else data.paths[0]
    if not np.array_equal(stamps([*data.paths, *data.beside]), before) or data.state() != state:
        raise SourceError(f"{where} was written to while it was indexed: wait until that has ended")
    if len(index) > MAX_COUNT or len(index.fields) > MAX_FIELDS:
        raise ContainerError(f"{where}: {len(index)} records of {len(index.fields)} fields are too many")
    if not index.dtypes:
        index = replace(index, dtypes=("",) * len(index.fields))
    whole = replace(index, state=state, stamps=before, scanned=(began, time.time_ns()))
    return replace(whole, fingerprint=index.fingerprint or _fingerprint(index))


def _fingerprint(index: ForeignIndex) -> str:
    """Of what is known of the records. Without checksums a payload that changed and kept its size is not told."""
    digest = hashlib.sha256(json.dumps([index.fields, index.dtypes, index.classes, index.splits]).encode())
    for name, array in sorted((index.arrays | _texts(index)).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).data)
    return f"sha256:{digest.hexdigest()}"


def _texts(index: ForeignIndex) -> Arrays:
    arrays: Arrays = {}
    for name, strings in (("keys", index.keys), ("json", index.json)):
        if strings is not None:
            arrays |= {f"{name}.blob": np.frombuffer(strings.blob, np.uint8), f"{name}.bounds": strings.bounds}
    return arrays


def _parts(index: ForeignIndex) -> tuple[dict[str, object], Arrays]:
    members: dict[str, object] = {name: getattr(index, name) for name in (*_MEMBERS, "fingerprint", "scanned")}
    return members, index.arrays | _texts(index) | {"stamps": index.stamps.reshape(-1)}


def _loaded(file: Path, data: Format) -> ForeignIndex | None:
    try:
        members, arrays = load(file)
        seen = arrays.pop("stamps").reshape(-1, 2)
        keys, said = (_strings(arrays, name) for name in ("keys", "json"))
        known = {name: tuple(members[name]) for name in ("dtypes", "left_out", "called", "state", "scanned")}
        index = ForeignIndex(
            arrays,
            tuple(check_field(name) for name in members["fields"]),
            keys=keys,
            json=said,
            says_label=bool(members["says_label"]),
            classes=None if members["classes"] is None else tuple(map(str, members["classes"])),
            class_order=members["class_order"],
            splits=tuple((str(name), int(start), int(stop)) for name, start, stop in members["splits"]),
            fingerprint=members["fingerprint"],
            stamps=seen,
            file=file,
            **known,
        )
        _check(index, data)
    except (OSError, ContainerError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None  # absent, or written by something else: built again
    return index


def _strings(arrays: Arrays, name: str) -> Strings | None:
    if f"{name}.bounds" not in arrays:
        return None
    blob, bounds = arrays.pop(f"{name}.blob"), arrays.pop(f"{name}.bounds")
    check_strings(blob, bounds)
    return Strings(blob.data, bounds)


def _check(index: ForeignIndex, data: Format) -> None:
    """Raise for what no scan says: the cache is a file like any other."""
    count, arrays = len(index), index.arrays
    places = [f"{part}.{n}" for n in range(len(index.fields)) for part in PARTS]
    lengths = {len(arrays[name]) for name in (*COLUMNS, *places)}
    texts = {len(strings) for strings in (index.keys, index.json) if strings is not None}
    starts, numbers = arrays["starts"], {name for name, dtype in zip(index.fields, index.dtypes, strict=True) if dtype}
    files = len(data.paths)
    known = lengths == {count} and texts <= {count} and set(index.dtypes) <= {"", *NUMBERS}
    known &= len(index.stamps) == files + len(data.beside) and not numbers.intersection(IMAGE_FIELDS)
    known &= len(starts) > 0 and not starts[0] and not (np.diff(starts) < 0).any() and len(starts) <= files
    known &= not (arrays["format"] >= len(FORMATS)).any()
    if not known:
        raise ContainerError(f"{index.file} is no index of {data.paths[0]}")
    check_members(
        count,
        index.fingerprint,
        fields=sorted(index.fields),
        splits=index.splits,
        classes=index.classes,
        class_order=index.class_order,
    )
    check_columns(arrays, files)
    sizes = np.maximum(data.sizes(index.stamps), 0).astype(np.uint64)
    for n, dtype in enumerate(index.dtypes):
        _check_places(index, n, sizes, np.dtype(dtype).itemsize if dtype else None)


def _check_places(index: ForeignIndex, n: int, sizes: NDArray[np.uint64], exact: int | None) -> None:
    file, offset, length = (index.arrays[f"{part}.{n}"] for part in PARTS)
    crc = index.arrays.get(f"crc.{n}")
    there = file != ABSENT
    end = sizes[np.where(there, file, 0)]
    wrong = there & ((offset > end) | (length > end - np.minimum(offset, end)))
    if exact is not None:
        wrong |= ~there | (length != exact)
    if wrong.any() or (crc is not None and len(crc) != len(file)):
        raise ContainerError(f"{index.file}: field {index.fields[n]} lies beyond its file")
