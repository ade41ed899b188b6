"""The index of an LMDB file that iofast did not write: which values are images, from the cache or from a walk."""

from __future__ import annotations

import hashlib
import os
import time
from array import array
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.bars import open_bar
from iofast.containers.file_bytes import FileBytes
from iofast.containers.lmdb_pages import Tree, read_meta
from iofast.containers.lmdb_writer import RESERVED
from iofast.containers.manifest import MAX_COUNT
from iofast.errors import ContainerError, SourceError
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
from iofast.source.foreign import ForeignOptions
from iofast.source.index import CHUNK, THREADS
from iofast.source.label_list import LabelList, read_label_list
from iofast.source.listing import Strings, printable
from iofast.source.lmdb_values import OTHER, classify, what_else
from iofast.source.tfrecord_scan import FORMATS

_COLUMNS = {"label": "<i4", "width": "<i4", "height": "<i4"} | dict.fromkeys(("orientation", "kind", "format"), "|u1")
_TYPES = _COLUMNS | {"offset": "<u8", "length": "<u8"}
_NUMBERED = 0x02 | 0x08  # keys in reverse order, or integers: no matter to one who reads them all


@dataclass(frozen=True, slots=True)
class LmdbIndex:
    """Columns of one row per record, in the order of the keys: those of `_TYPES`, and the keys.

    `offset` and `length` are of the image file or the planes. `stamp` is size and time of change of the file, its last
    transaction and page, size and time of the list of labels, and the size of a page.
    """

    arrays: Arrays
    keys: Strings
    classes: tuple[str, ...] | None
    fingerprint: str
    left_out: int  # entries that are no records
    surplus: int | None  # keys of the list of labels that no record has; None where there is no list
    stamp: NDArray[np.int64]
    scanned: tuple[int, int]  # ns since 1970: when the walk began and ended
    file: Path | None = None  # the index file that this is a map of

    def __len__(self) -> int:
        return len(self.arrays["label"])


def open_lmdb_index(path: str, options: ForeignOptions) -> LmdbIndex:
    """The index of this file: the cached one if neither it nor the list of labels has changed since, else a new one.

    Any number of processes may call this at the same moment: one builds, the others wait for it. A cache that cannot
    be used costs time, never an error. Raises `ContainerError`, and `SourceError` for the list of labels.
    """
    asked = time.time_ns()
    labels = label_file(path, options)
    return cached(
        _file(path, options),
        lambda file: _valid(file, path, labels, asked),
        lambda: build_lmdb_index(path, labels, options.label_base),
        _parts,
        _loaded,
    )


def reopen_lmdb_index(path: str, options: ForeignOptions, fingerprint: str) -> LmdbIndex:
    """The index as another process of this run has opened it, or as the file is now where that one is gone."""
    file = _file(path, options)
    found = None if file is None else _loaded(file)
    return found if found is not None and found.fingerprint == fingerprint else open_lmdb_index(path, options)


def label_file(path: str, options: ForeignOptions) -> str | None:
    """The list of labels: the one that was named, else `labels.txt` in an LMDB's folder or `<path>.labels.txt`."""
    if options.labels is not None:
        return os.path.abspath(options.labels)
    folder, name = os.path.split(path)
    places = [f"{path}.labels.txt"]
    if name == "data.mdb":
        places = [os.path.join(folder, "labels.txt"), f"{folder}.labels.txt"]
    return next((place for place in places if os.path.isfile(place)), None)


def build_lmdb_index(path: str, labels: str | None, base: int) -> LmdbIndex:
    """Walk the tree and read the head of every value, several at a time; with a progress bar if that takes long."""
    began = time.time_ns()
    listed = None if labels is None else read_label_list(labels, base)
    data = FileBytes(path)
    stamp = _stamp(path, labels)
    keys, places = _entries(data, path)
    rows = _read_heads(data, places)
    kept = np.flatnonzero(rows["kind"] != OTHER)
    if not len(kept):
        raise ContainerError(f"{path} holds no images: {_first(data, keys, places)}")
    arrays: Arrays = {name: column[kept] for name, column in rows.items()}
    names = Strings.gather(keys[row] for row in kept.tolist())
    classes = surplus = None
    if listed is None:
        _rebase(arrays["label"], base, path)
    else:
        arrays["label"], classes = _labelled(names, listed, f"{labels}", path)
        surplus = len(listed.labels) - int((arrays["label"] >= 0).sum())  # keys of an LMDB are there once
    identity = hashlib.sha256(repr(classes).encode())
    for name in sorted(arrays):
        identity.update(np.ascontiguousarray(arrays[name]).data)
    identity.update(names.blob)
    fingerprint = f"sha256:{identity.hexdigest()}"
    if not np.array_equal(stamp, _stamp(path, labels)):
        raise SourceError(f"{path} was written to while it was indexed: wait until that has ended")
    left_out = len(keys) - len(kept)
    return LmdbIndex(arrays, names, classes, fingerprint, left_out, surplus, stamp, (began, time.time_ns()))


def _entries(data: FileBytes, path: str) -> tuple[Strings, NDArray[np.int64]]:
    """All keys, and (N, 2): offset and length of their values."""
    meta = read_meta(data, path)
    if meta.flags & ~_NUMBERED:
        raise ContainerError(f"{path} keeps several values for one key (flags {meta.flags:#x}), which is not supported")
    if meta.file_size > len(data):
        raise ContainerError(f"{path} is truncated: {len(data)} bytes, expected {meta.file_size}")
    blob, ends, places = bytearray(), array("Q", [0]), array("q")
    for key, offset, length in Tree(data, meta, path).walk():
        if len(ends) > MAX_COUNT:
            raise ContainerError(f"{path} has more than {MAX_COUNT} entries")
        if key.startswith(RESERVED):  # or damage would turn a container of ours into one without checksums
            found = f"the entry {key!r:.40} at offset {offset}, but its tree does not lead to its manifest"
            raise ContainerError(f"{path} was written by iofast and is damaged: it has {found}")
        blob += key + b"\0"
        ends.append(len(blob))
        places.extend((offset, length))
    if len(ends) == 1:
        raise ContainerError(f"{path} is an LMDB file without entries")
    return Strings(bytes(blob), np.frombuffer(ends, np.uint64)), np.frombuffer(places, np.int64).reshape(-1, 2)


def _read_heads(data: FileBytes, places: NDArray[np.int64]) -> Arrays:
    """The columns of `_TYPES` for every entry."""
    count = len(places)
    rows: Arrays = {name: np.zeros(count, kind) for name, kind in _TYPES.items()}

    def read(start: int) -> int:
        stop = min(start + CHUNK, count)
        for row, (offset, length) in enumerate(places[start:stop].tolist(), start):
            found = classify(data, offset, length)
            for name, value in zip(_COLUMNS, found, strict=False):
                rows[name][row] = value
            rows["offset"][row], rows["length"][row] = offset + found.start, found.length
        return stop - start

    pool = ThreadPoolExecutor(THREADS, "iofast-lmdb")
    try:
        tasks = [pool.submit(read, start) for start in range(0, count, CHUNK)]
        with open_bar(count, " entries", "indexing", delay=1) as bar:
            for task in as_completed(tasks):
                bar.update(task.result())
    finally:
        pool.shutdown(cancel_futures=True)
    return rows


def _first(data: FileBytes, keys: Strings, places: NDArray[np.int64]) -> str:
    """The first value that is not about the set as a whole, and why it is no image."""
    row = next((row for row, key in enumerate(keys) if not key.startswith(b"__")), 0)
    offset, length = places[row].tolist()
    return f"the value of {printable(keys[row])!r:.80} at offset {offset} {what_else(data, offset, length)}"


def _rebase(labels: NDArray[Any], base: int, path: str) -> None:
    there = labels >= 0
    if base and (labels[there] < base).any():
        raise ContainerError(f"{path} has the label 0, expected {base} (the label base) or more")
    labels[there] -= base


def _labelled(
    keys: Strings, listed: LabelList, where: str, path: str
) -> tuple[NDArray[np.int32], tuple[str, ...] | None]:
    labels = np.array([listed.labels.get(key, -1) for key in keys], np.int32)
    if not (labels >= 0).any():
        raise SourceError(f"{where} has a label for none of the {len(keys)} keys of {path}, the first {keys[0]!r:.80}")
    return labels, listed.classes


def _stamp(path: str, labels: str | None) -> NDArray[np.int64]:
    meta = read_meta(FileBytes(path), path)
    own, listed = os.stat(path), None if labels is None else os.stat(labels)
    there = (0, 0) if listed is None else (listed.st_size, listed.st_mtime_ns)
    return np.array([own.st_size, own.st_mtime_ns, meta.txnid, meta.last_page, *there, meta.page_size], np.int64)


def _file(path: str, options: ForeignOptions) -> Path | None:
    places = [os.fsencode(place) for place in (os.path.realpath(path), label_file(path, options) or "")]
    return cache_file(b"lmdb", b"%d" % options.label_base, *places)


def _valid(file: Path, path: str, labels: str | None, asked: int) -> LmdbIndex | None:
    """The cached index if it is as good as one built now."""
    index = _loaded(file)
    try:
        if index is None or not np.array_equal(index.stamp, _stamp(path, labels)):
            return None
    except (OSError, ContainerError):
        return None
    return index if is_settled(index.stamp[[1, 5]], index.scanned) or index.scanned[0] >= asked else None


def _parts(index: LmdbIndex) -> tuple[dict[str, object], Arrays]:
    keys: Arrays = {"keys.blob": np.frombuffer(index.keys.blob, np.uint8), "keys.bounds": index.keys.bounds}
    members = {name: getattr(index, name) for name in ("classes", "fingerprint", "left_out", "surplus", "scanned")}
    return members, index.arrays | keys | {"stamp": index.stamp}


def _loaded(file: Path) -> LmdbIndex | None:
    try:
        members, arrays = load(file)
        keys = Strings(arrays.pop("keys.blob").data, arrays.pop("keys.bounds"))
        stamp, count = arrays.pop("stamp"), len(arrays["label"])
        if len(stamp) != 7 or len(keys) != count or any(len(arrays[name]) != count for name in _TYPES):
            return None
        classes = None if members["classes"] is None else tuple(map(str, members["classes"]))
        check_members(count, members["fingerprint"], classes=classes)
        check_strings(np.frombuffer(keys.blob, np.uint8), keys.bounds)
        check_columns(arrays, 1)
        if (arrays["format"] >= len(FORMATS)).any() or (arrays["kind"] > OTHER).any():
            return None
        began, ended = members["scanned"]
        surplus = None if members["surplus"] is None else int(members["surplus"])
        known = (members["fingerprint"], int(members["left_out"]), surplus, stamp, (int(began), int(ended)))
        return LmdbIndex(arrays, keys, classes, *known, file)
    except (OSError, ContainerError, ValueError, KeyError, TypeError, AttributeError):
        return None  # absent, or written by something else: built again
