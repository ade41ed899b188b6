"""The index of foreign TFRecord files: what reading them once has found, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers.index import ABSENT
from iofast.containers.manifest import MAX_CLASS_NAME, MAX_COUNT, Manifest, Shard
from iofast.errors import ContainerError, SourceError
from iofast.kernel import crc32c
from iofast.record import JSON_FIELD, LABEL_FIELD, format_key
from iofast.source.cache import (
    Arrays,
    cache_file,
    cached,
    check_columns,
    check_strings,
    is_settled,
    load,
    stamps,
)
from iofast.source.foreign import MAX_NAMES
from iofast.source.listing import Strings
from iofast.source.tfrecord_records import TfrecordOptions
from iofast.source.tfrecord_scan import COLUMNS, FORMATS, Rows, read_files

IMAGE_FIELD = "jpg"  # what the manifest and `locate` call the image, whatever its real format

_STEP = 65_536  # rows whose columns are turned into Python's numbers at once


@dataclass(frozen=True, slots=True)
class TfrecordIndex:
    """Columns of N records in the order of the files.

    label, width, height, orientation, format (see `FORMATS`), then `file.0`, `offset.0`, `length.0`, `crc.0` of the
    image and with 1 … of the options' fields. `starts` is the number of records before each file.
    """

    manifest: Manifest
    columns: Arrays
    json: Strings  # the payload, empty where a record has none
    starts: NDArray[np.int64]
    stamps: NDArray[np.int64]  # (files, 2) as `stamps` gives them
    scanned: tuple[int, int]  # ns since 1970: when reading the files began and ended
    features: tuple[str, ...]  # names of those that records have, the first `MAX_NAMES`
    file: Path | None = None  # the cache file that this is a map of

    def __len__(self) -> int:
        return self.manifest.count


def open_index(paths: Sequence[str], options: TfrecordOptions) -> TfrecordIndex:
    """The index of these files: the cached one if none was changed since, else a new one.

    Any number of processes may call this at the same moment: one builds, the others wait. A cache that cannot be used
    costs time, never an error. Raises `SourceError`, and `ContainerError` where a file is damaged or no TFRecord file.
    """
    asked = time.time_ns()
    return cached(
        _file(paths, options),
        lambda file: _valid(file, paths, options, asked),
        lambda: _build(paths, options),
        _parts,
        lambda file: _loaded(file, paths, options),
    )


def reopen_index(paths: Sequence[str], options: TfrecordOptions, fingerprint: str) -> TfrecordIndex:
    """The index as another process of this run has opened it, or as the files are now where that one is gone."""
    file = _file(paths, options)
    found = None if file is None else _loaded(file, paths, options)
    return found if found is not None and found.manifest.fingerprint == fingerprint else open_index(paths, options)


def _file(paths: Sequence[str], options: TfrecordOptions) -> Path | None:
    words = [os.fsencode(os.path.realpath(path)) for path in paths]
    return cache_file(b"tfrecord", repr(astuple(options)).encode(), *words)


def _valid(file: Path, paths: Sequence[str], options: TfrecordOptions, asked: int) -> TfrecordIndex | None:
    """The cached index if it is as good as one built now."""
    index = _loaded(file, paths, options)
    if index is None or not np.array_equal(index.stamps, stamps(paths)):
        return None
    return index if is_settled(index.stamps[:, 1], index.scanned) or index.scanned[0] >= asked else None


def _loaded(file: Path, paths: Sequence[str], options: TfrecordOptions) -> TfrecordIndex | None:
    try:
        members, arrays = load(file)
        seen = arrays.pop("stamps").reshape(-1, 2)
        starts = arrays.pop("starts")
        json = Strings(arrays.pop("json.blob").data, arrays.pop("json.bounds"))
        manifest = _manifest(members)
        began, ended = map(int, members["scanned"])
        features = tuple(map(str, members["features"]))
        check_strings(np.frombuffer(json.blob, np.uint8), json.bounds)
        check_columns(arrays, len(paths))
        if list(manifest.fields) != _fields(arrays, json, options) or (arrays["format"] >= len(FORMATS)).any():
            return None
        if any(len(arrays[name]) != manifest.count for name in _names(options)) or len(json) != manifest.count:
            return None
        if len(seen) != len(paths) or len(starts) != len(paths) or (np.diff(starts) < 0).any() or starts[0] != 0:
            return None
    except (OSError, ContainerError, ValueError, KeyError, TypeError, AttributeError):
        return None  # absent, or written by something else: built again
    return TfrecordIndex(manifest, arrays, json, starts, seen, (began, ended), features, file)


def _parts(index: TfrecordIndex) -> tuple[dict[str, object], Arrays]:
    manifest = index.manifest
    members: dict[str, object] = {
        "count": manifest.count,
        "fields": manifest.fields,
        "classes": manifest.classes,
        "size": manifest.shards[0].size,
        "fingerprint": manifest.fingerprint,
        "scanned": index.scanned,
        "features": index.features,
    }
    blob: Arrays = {"json.blob": np.frombuffer(index.json.blob, np.uint8), "json.bounds": index.json.bounds}
    return members, index.columns | blob | {"starts": index.starts, "stamps": index.stamps.reshape(-1)}


def _names(options: TfrecordOptions) -> list[str]:
    places = [f"{name}.{n}" for n in range(1 + len(options.fields)) for name in ("file", "offset", "length", "crc")]
    return [*COLUMNS, *places]


def _build(paths: Sequence[str], options: TfrecordOptions) -> TfrecordIndex:
    began, before = time.time_ns(), stamps(paths)
    files = read_files(paths, options, int(before[:, 0].sum()))
    if (stamps(paths) != before).any():
        raise SourceError(f"{paths[0]} … was written to while it was indexed: wait until that has ended")
    counts = np.array([rows.count for rows in files], np.int64)
    count = int(counts.sum())
    if count > MAX_COUNT:
        raise ContainerError(f"{paths[0]} … have {count} records, at most {MAX_COUNT} can be indexed")
    arrays: Arrays = {
        name: np.concatenate([np.array(rows.columns[name], dtype) for rows in files]) for name, dtype in COLUMNS.items()
    }
    numbers = np.repeat(np.arange(len(files), dtype=np.uint32), counts)
    for n in range(1 + len(options.fields)):
        place = np.concatenate([np.array(rows.places[n], np.int64) for rows in files]).reshape(-1, 3)
        there = place[:, 0] >= 0
        arrays[f"file.{n}"] = np.where(there, numbers, np.uint32(ABSENT)).astype(np.uint32)
        place[~there] = 0
        arrays[f"offset.{n}"], arrays[f"length.{n}"] = place[:, 0].astype(np.uint64), place[:, 1].astype(np.uint64)
        arrays[f"crc.{n}"] = place[:, 2].astype(np.uint32)
    json = _joined(files)
    members = {
        "count": count,
        "fields": _fields(arrays, json, options),
        "classes": _classes(files, arrays["label"]),
        "size": int(before[:, 0].sum()),
        "fingerprint": _fingerprint(arrays, json, options),
    }
    features = sorted(set[str]().union(*(rows.features for rows in files)))[:MAX_NAMES]
    starts, scanned = np.cumsum(counts) - counts, (began, time.time_ns())
    return TfrecordIndex(_manifest(members), arrays, json, starts, before, scanned, tuple(features))


def _manifest(members: Any) -> Manifest:
    count = members["count"]
    return Manifest(
        count=count,
        fields=tuple(members["fields"]),
        splits={"all": ((0, count),)},
        fingerprint=members["fingerprint"],
        shards=(Shard("", count, members["size"]),),
        classes=None if members["classes"] is None else tuple(members["classes"]),
        class_order="file",
    )


def _joined(files: Sequence[Rows]) -> Strings:
    """The payloads of `json` of all files."""
    sizes = np.cumsum([0, *(len(rows.json) for rows in files)])
    ends = [np.array(rows.ends, np.int64) + start for rows, start in zip(files, sizes.tolist(), strict=False)]
    return Strings(b"".join(rows.json for rows in files), np.concatenate([[0], *ends]).astype(np.uint64))


def _fields(arrays: Arrays, json: Strings, options: TfrecordOptions) -> list[str]:
    fields = [name for n, (name, _) in enumerate(options.fields, 1) if (arrays[f"file.{n}"] != ABSENT).any()]
    fields += [IMAGE_FIELD] if (arrays["file.0"] != ABSENT).any() else []
    fields += [LABEL_FIELD] if (arrays["label"] >= 0).any() else []
    fields += [JSON_FIELD] if len(json.blob) > len(json) else []  # more than the byte behind each
    return sorted(fields)


def _classes(files: Sequence[Rows], labels: NDArray[Any]) -> list[str] | None:
    """The classes' names, if every class up to the greatest has one, and each its own."""
    top = int(labels.max(initial=-1))
    texts: dict[int, str | None] = {}
    for rows in files:
        for label, text in rows.texts.items():
            texts[label] = text if texts.get(label, text) == text else None
    names = [texts.get(label) for label in range(top + 1)] if top + 1 == len(texts) else []
    whole = [name for name in names if name is not None and len(name) <= MAX_CLASS_NAME]
    return whole if whole and len(set(whole)) == top + 1 else None


def _fingerprint(arrays: Arrays, json: Strings, options: TfrecordOptions) -> str:
    """As docs/format.md 2.2 has it, so a container that these records are converted to has the same."""
    digest = hashlib.sha256()
    names = [name for name, _ in options.fields]
    for start in range(0, len(json), _STEP):
        own = {name: column[start : start + _STEP].tolist() for name, column in arrays.items()}
        for row, label in enumerate(own["label"]):
            payloads = {} if label < 0 else {LABEL_FIELD: _identity(b"%d" % label)}
            if text := json[start + row]:
                payloads[JSON_FIELD] = _identity(text)
            for n, name in enumerate((FORMATS[own["format"][row]], *names)):
                if own[f"file.{n}"][row] != ABSENT:
                    payloads[name] = (own[f"length.{n}"][row], own[f"crc.{n}"][row])
            key = format_key(start + row).encode()
            head = b"%c%s" % (len(key), key)
            for name in sorted(payloads):
                digest.update(b"%s%c%s" % (head, len(name), name.encode()) + struct.pack("<II", *payloads[name]))
    return f"sha256:{digest.hexdigest()}"


def _identity(payload: bytes) -> tuple[int, int]:
    return len(payload), crc32c(payload)
