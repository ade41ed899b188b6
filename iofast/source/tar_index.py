"""The index of tar shards that iofast did not write: which members make a record, from the cache or from reading them.

A record is what WebDataset makes of the same shards: consecutive members with one key, which is the name up to the
first dot behind the last slash; the rest, in lower case, is the field.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.bars import open_bar
from iofast.containers.manifest import MAX_COUNT, MAX_FIELDS
from iofast.containers.open_files import OpenFiles
from iofast.containers.tar_members import Member, TarFile, open_tar
from iofast.errors import ContainerError, DecodeError
from iofast.record import IMAGE_FIELDS, JSON_FIELD, LABEL_FIELD, MAX_PAYLOAD, RAW_FIELDS, check_field, image_field
from iofast.source.cache import (
    Arrays,
    cache_file,
    cached,
    check_columns,
    check_members,
    check_strings,
    is_settled,
    load,
)
from iofast.source.foreign import MAX_NAMES, ForeignOptions
from iofast.source.index import THREADS
from iofast.source.tar_names import TarNames, is_meta, key_and_name
from iofast.strips import raw_length

NOWHERE = (1 << 64) - 1  # the offset of a field that a record does not have

_MAX_JSON, _MAX_LABEL = 1 << 20, 32
_COLUMNS = {"shard": "i", "label": "i", "width": "i", "height": "i", "orientation": "B"}
_TYPES = {"shard": "<i4", "label": "<i4", "width": "<i4", "height": "<i4", "orientation": "|u1"}

Stamps = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TarIndex:
    """Columns of one row per record: `arrays` has those of `_TYPES`, the keys, and offset and length of each field."""

    paths: tuple[str, ...]
    fields: tuple[str, ...]
    fingerprint: str
    left_out: int  # members whose names make no field, or no key
    replaced: int  # members whose place the options give to another
    names: tuple[str, ...]  # what members are called behind their keys, the first `MAX_NAMES`
    stamps: Stamps  # (2, shards): sizes and times of change of the shards
    scanned: tuple[int, int]  # ns since 1970: when the scan began and ended
    arrays: Arrays
    file: Path | None = None  # the index file that this is a map of
    files: OpenFiles = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", OpenFiles(self.paths, partial(_check_same, self.paths, self.stamps)))

    def __len__(self) -> int:
        return len(self.arrays["label"])

    def key(self, index: int) -> str:
        """The key of a record. Raises `ContainerError` for an index whose bounds are wrong."""
        bounds, blob = self.arrays["keys.bounds"], self.arrays["keys.blob"]
        start, stop = int(bounds[index]), int(bounds[index + 1])
        if not 0 <= start <= stop <= len(blob):
            raise ContainerError(f"{self.file}: the key of record {index} at {start} … {stop} lies outside")
        return blob[start:stop].tobytes().decode("utf-8", "replace")


def open_tar_index(paths: Sequence[str], options: ForeignOptions) -> TarIndex:
    """The index of these shards: the cached one if none of them has changed since, else a new one.

    Any number of processes may call this at the same moment: one builds, the others wait for it. A cache that cannot
    be used costs time, never an error. Raises `ContainerError`.
    """
    asked = time.time_ns()
    return cached(
        _file(paths, options),
        lambda file: _valid(file, paths, asked),
        lambda: build_tar_index(paths, TarNames.of(options)),
        _parts,
        lambda file: _loaded(file, paths),
    )


def reopen_tar_index(paths: Sequence[str], options: ForeignOptions, fingerprint: str) -> TarIndex:
    """The index as another process of this run has opened it, or as the shards are now where that one is gone."""
    file = _file(paths, options)
    found = None if file is None else _loaded(file, paths)
    return found if found is not None and found.fingerprint == fingerprint else open_tar_index(paths, options)


def build_tar_index(paths: Sequence[str], names: TarNames) -> TarIndex:
    """Read the headers of all shards, several at a time; with a progress bar if that takes over a second."""
    began = time.time_ns()
    pool = ThreadPoolExecutor(THREADS, "iofast-tar")
    try:
        tasks = [pool.submit(_scan, path, number, names) for number, path in enumerate(paths)]
        with open_bar(len(tasks), " shards", "indexing", delay=1) as bar:
            for task in as_completed(tasks):
                task.result()  # the first error ends it all
                bar.update()
    finally:
        pool.shutdown(cancel_futures=True)
    scans = [task.result() for task in tasks]
    stamps = np.array([scan.stamp for scan in scans], np.int64).reshape(-1, 2).T
    fields = tuple(sorted({name for scan in scans for name in scan.slots}))
    count, members = sum(len(scan.columns["label"]) for scan in scans), sum(len(scan.record) for scan in scans)
    if count > MAX_COUNT or len(fields) > MAX_FIELDS or count * len(fields) > max(16 * members, 1 << 24):
        raise ContainerError(f"{paths[0]} …: {count} records with {len(fields)} different fields are too many")
    arrays = _arrays(scans, fields, count)
    left_out = sum(scan.left_out for scan in scans)
    replaced = sum(scan.replaced for scan in scans)
    called = tuple(sorted(set[str]().union(*(scan.called for scan in scans)))[:MAX_NAMES])
    identity = hashlib.sha256(json.dumps(fields).encode())
    for name in sorted(arrays):
        identity.update(np.ascontiguousarray(arrays[name]).data)
    scanned = (began, time.time_ns())
    facts = f"sha256:{identity.hexdigest()}", left_out, replaced, called
    return TarIndex(tuple(paths), fields, *facts, stamps, scanned, arrays)


class _Scan:
    """What one shard holds. Members are rows of their own: record, slot of the field, offset, length."""

    def __init__(self, path: str, number: int, names: TarNames) -> None:
        self.path, self.number, self.names, self.left_out, self.replaced = path, number, names, 0, 0
        self.stamp = (0, 0)
        self.columns = {name: array(code) for name, code in _COLUMNS.items()}
        self.keys, self.bounds = bytearray(), array("Q")
        self.slots: dict[str, int] = {}
        self.called: set[str] = set()
        self.record, self.slot, self.offset, self.length = array("Q"), array("H"), array("Q"), array("Q")
        self._key, self._own = "", dict[str, Member]()
        self._label: Member | None = None  # of this record, where the options name one

    def take(self, member: Member, tar: TarFile) -> None:
        """One more member, in the order of the file."""
        found = None if is_meta(member.name) else key_and_name(member.name)
        if found is None:
            self.left_out += not is_meta(member.name)
            return
        key, own = found
        if key != self._key:
            self.end(tar)
            self._key = key
        if own not in self.called and len(self.called) < MAX_NAMES:
            self.called.add(own)
        if own == self.names.label:
            self._label = member
        name = self.names.field(own, self._own)
        if name is None:
            self.replaced += own != self.names.label  # which is read, but lies in no field
            return
        if name in self._own:
            where = f"at offsets {self._own[name].offset} and {member.offset}"
            raise ContainerError(f"{self.path}: {key} has the field {name} twice, {where}")
        try:
            check_field(name)
        except ContainerError:
            self.left_out += 1
            return
        if member.size > MAX_PAYLOAD:
            raise ContainerError(f"{self.path}: {member.name} has {member.size} bytes, more than {MAX_PAYLOAD}")
        if len(self.slots) >= MAX_FIELDS and name not in self.slots:
            raise ContainerError(f"{self.path}: more than {MAX_FIELDS} different fields, at offset {member.offset}")
        self._own[name] = member

    def end(self, tar: TarFile) -> None:
        """The record is complete."""
        own, self._own = self._own, {}
        label, self._label = self._label, None
        if not own:
            return
        try:
            row = (self.number, *_describe(own, label or own.get(LABEL_FIELD), self.names, tar))
        except ContainerError as error:
            raise ContainerError(f"{self.path}: {self._key}: {error}") from None
        if self.names.says_label:
            own.pop(LABEL_FIELD, None)
        record = len(self.bounds)
        for name, member in own.items():
            self.record.append(record)
            self.slot.append(self.slots.setdefault(name, len(self.slots)))
            self.offset.append(member.offset)
            self.length.append(member.size)
        for column, value in zip(self.columns.values(), row, strict=True):
            column.append(value)
        self.keys += self._key.encode("utf-8", "replace")
        self.bounds.append(len(self.keys))


def _scan(path: str, number: int, names: TarNames) -> _Scan:
    scan = _Scan(path, number, names)
    fd, status = open_tar(path)
    try:
        if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
            raise ContainerError(f"{path} is not a file, or is empty")
        scan.stamp = (status.st_size, status.st_mtime_ns)
        tar = TarFile(path, fd, status.st_size)
        for member in tar.members():
            scan.take(member, tar)
        scan.end(tar)
    finally:
        os.close(fd)
    return scan


def _describe(
    own: Mapping[str, Member], labelled: Member | None, names: TarNames, tar: TarFile
) -> tuple[int, int, int, int]:
    """Label, upright width and height, orientation: of `cls`, `json` and the image's header; -1, 0, 0, 1 = unknown."""
    said: dict[str, Any] = {}
    image = image_field(own)
    wanted = names.json is not None or labelled is None or image in RAW_FIELDS
    if JSON_FIELD in own and wanted and own[JSON_FIELD].size <= _MAX_JSON:
        try:
            parsed = json.loads(tar.read(own[JSON_FIELD].offset, own[JSON_FIELD].size))
            said = parsed if isinstance(parsed, dict) else {}
        except (ValueError, RecursionError):
            pass  # the user's own; it has no label then
    label = _integer(said.get(names.json or "label"))
    if labelled is not None and labelled.size <= _MAX_LABEL and names.json is None:
        text = tar.read(labelled.offset, labelled.size).strip()
        label = int(text) if text.isdigit() and int(text) < 1 << 31 else -1
    if 0 <= label < names.base:
        raise ContainerError(f"its label is {label}, expected {names.base} (the label base) or more")
    label -= names.base if label >= 0 else 0
    if image in RAW_FIELDS:
        width, height = _integer(said.get("width")), _integer(said.get("height"))
        if width > 0 and height > 0 and raw_length(image, width, height) == own[image].size:
            return label, width, height, 1
    if image not in IMAGE_FIELDS:
        return label, 0, 0, 1
    place = own[image]
    try:
        header = kernel.probe(lambda start, count: tar.read(place.offset + start, count), place.size)
    except DecodeError:
        return label, 0, 0, 1
    return label, header.width, header.height, header.orientation


def _integer(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else -1


def _arrays(scans: Sequence[_Scan], fields: Sequence[str], count: int) -> Arrays:
    """The columns of all shards, one after another."""
    arrays: Arrays = {
        name: np.concatenate([np.frombuffer(scan.columns[name], kind) for scan in scans] or [np.zeros(0, kind)])
        for name, kind in _TYPES.items()
    }
    places = {f"{what}.{i}": np.zeros(count, np.uint64) for what in ("offset", "length") for i in range(len(fields))}
    bounds, start, size = [np.zeros(1, np.uint64)], 0, 0
    for i in range(len(fields)):
        places[f"offset.{i}"][:] = NOWHERE
    for scan in scans:
        record = np.frombuffer(scan.record, np.uint64) + np.uint64(start)
        slot = np.frombuffer(scan.slot, np.uint16)
        for name, own in scan.slots.items():
            rows, number = np.flatnonzero(slot == own), fields.index(name)
            places[f"offset.{number}"][record[rows]] = np.frombuffer(scan.offset, np.uint64)[rows]
            places[f"length.{number}"][record[rows]] = np.frombuffer(scan.length, np.uint64)[rows]
        bounds.append(np.frombuffer(scan.bounds, np.uint64) + np.uint64(size))
        start, size = start + len(scan.bounds), size + len(scan.keys)
    blob = np.frombuffer(b"".join(bytes(scan.keys) for scan in scans), np.uint8)
    return arrays | places | {"keys.bounds": np.concatenate(bounds), "keys.blob": blob}


def _file(paths: Sequence[str], options: ForeignOptions) -> Path | None:
    names = [os.fsencode(place) for path in paths for place in (os.path.realpath(path), os.path.abspath(path))]
    return cache_file(b"tar", options.identity(), *names)


def _stamps(paths: Sequence[str]) -> Stamps:
    status = [os.stat(path) for path in paths]
    return np.array([[each.st_size for each in status], [each.st_mtime_ns for each in status]], np.int64)


def _valid(file: Path, paths: Sequence[str], asked: int) -> TarIndex | None:
    """The cached index if it is as good as one built now."""
    index = _loaded(file, paths)
    try:
        if index is None or not np.array_equal(index.stamps, _stamps(paths)):
            return None
    except OSError:
        return None
    # one that may have missed a change counts only for those who asked before it was begun
    return index if is_settled(index.stamps[1], index.scanned) or index.scanned[0] >= asked else None


def _check_same(paths: Sequence[str], stamps: Stamps, number: int, status: os.stat_result) -> None:
    size, changed = stamps[:, number].tolist()
    if (status.st_size, status.st_mtime_ns) != (size, changed):
        found = f"{status.st_size} bytes, it had {size}"
        raise ContainerError(f"{paths[number]} has changed since it was indexed ({found}): open it again")


def _parts(index: TarIndex) -> tuple[dict[str, object], Arrays]:
    names = ("fields", "fingerprint", "left_out", "replaced", "names", "scanned")
    members = {name: getattr(index, name) for name in names}
    return members, index.arrays | {"sizes": index.stamps[0], "times": index.stamps[1]}


def _loaded(file: Path, paths: Sequence[str]) -> TarIndex | None:
    try:
        members, arrays = load(file)
        fields = tuple(check_field(name) for name in members["fields"])
        stamps = np.array([arrays.pop("sizes"), arrays.pop("times")], np.int64)
        began, ended = members["scanned"]
        columns = [*_TYPES, *(f"{what}.{i}" for what in ("offset", "length") for i in range(len(fields)))]
        count = len(arrays["label"])
        if stamps.shape != (2, len(paths)) or len(arrays["keys.bounds"]) != count + 1:
            return None
        if any(len(arrays[name]) != count for name in columns) or arrays["keys.blob"].dtype != np.uint8:
            return None
        check_strings(arrays["keys.blob"], arrays["keys.bounds"], least=0)
        check_members(count, members["fingerprint"], fields=fields)
        check_columns(arrays, len(paths))
        lost = int(members["left_out"]), int(members["replaced"])
        identity = members["fingerprint"], *lost, tuple(map(str, members["names"]))
        return TarIndex(tuple(paths), fields, *identity, stamps, (int(began), int(ended)), arrays, file)
    except (OSError, ContainerError, ValueError, KeyError, TypeError, AttributeError):
        return None  # absent, or written by something else: built again
