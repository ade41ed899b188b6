"""What readers of other programs' binary formats have in common: columns of places, built once and cached.

A format (mds, beton) finds its files and says where each column's bytes lie; here they become fields, labels and image
sizes, and a Reader.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.containers.base import Failures, Located, dense
from iofast.containers.index import ABSENT
from iofast.containers.manifest import MAX_COUNT, MAX_FIELDS, WHOLE, Manifest, Shard
from iofast.containers.open_files import FilesReader, OpenFiles
from iofast.errors import ContainerError, DecodeError
from iofast.record import IMAGE_FIELDS, LABEL_FIELD, MAX_FIELD_NAME, image_field
from iofast.source.cache import Arrays, cache_file, cached, check_columns, check_members, load, stamps

NUMBERS = ("|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8")
LABEL_NAMES = ("label", "y", "cls", "class", "target", "labels", "fine_label")

THREADS = 8
CHUNK = 1024  # images per task

_FIELD_OF = {"jpeg": "jpg", "png": "png", "webp": "webp"}
_ILLEGAL = re.compile(r"[^0-9a-z_-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table of N samples: where each value lies. `kind` is what the format says that it is.

    `image`, `text`, `json`, `bytes`: the bytes as they are; `number`: one number of type `dtype`.
    """

    name: str
    kind: Literal["image", "text", "json", "bytes", "number"]
    file: NDArray[np.uint32]
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    dtype: str = "|u1"


@dataclass(frozen=True, slots=True)
class Table:
    """What a format found. Splits are (name, start, stop); `left_out` says what is not read and why."""

    paths: tuple[str, ...]
    columns: tuple[Column, ...]
    count: int
    splits: tuple[tuple[str, int, int], ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableIndex:
    """The cached form. `arrays`: label, width, height, orientation; `file.n`, `offset.n`, `length.n` of field n."""

    paths: tuple[str, ...]
    fields: tuple[str, ...]
    dtypes: tuple[str, ...]  # of each field; "" where its bytes are the payload
    splits: tuple[tuple[str, int, int], ...]
    left_out: tuple[str, ...]
    arrays: Arrays = field(repr=False)
    stamps: NDArray[np.int64] = field(repr=False)  # (files, 2): size and time of change

    @property
    def count(self) -> int:
        """How many samples."""
        return len(self.arrays["label"])


Fetch = Callable[[int, int, int], bytes]  # file, offset, length


def open_table(words: Sequence[bytes], paths: Sequence[str], scan: Callable[[], Table], fetch: Fetch) -> TableIndex:
    """The cached index of these files if none has changed since, else a new one from what `scan` finds.

    `words` tell this data set from others, `paths` are all files that `scan` reads.
    """
    before = stamps(paths)
    file = cache_file(*words)

    def loaded(file: Path) -> TableIndex | None:
        found = _loaded(file)
        return found if found is not None and np.array_equal(found.stamps, before) else None

    return cached(file, loaded, lambda: _build(scan(), fetch, before), _parts, loaded)


def _build(table: Table, fetch: Fetch, before: NDArray[np.int64]) -> TableIndex:
    if table.count > MAX_COUNT or len(table.columns) > MAX_FIELDS:
        raise ContainerError(f"{table.paths[0]} …: {table.count} samples of {len(table.columns)} columns are too many")
    arrays: Arrays = {"label": np.full(table.count, -1, np.int32)}
    names: list[str] = []
    dtypes: list[str] = []
    for column in table.columns:
        dtype = column.dtype if column.kind == "number" else ""
        if dtype and LABEL_FIELD not in names and column.name.lower() in LABEL_NAMES:
            labels = _labels(column, fetch)
            if labels is not None:
                arrays["label"] = labels
                continue
        name = _field_name(column, names, fetch)
        number = len(names)
        names.append(name)
        dtypes.append(dtype)
        arrays[f"file.{number}"] = column.file.astype(np.uint32)
        arrays[f"offset.{number}"] = column.offset.astype(np.uint64)
        arrays[f"length.{number}"] = column.length.astype(np.uint64)
    arrays |= _sizes(names, arrays, table.count, fetch)
    return TableIndex(table.paths, tuple(names), tuple(dtypes), table.splits, table.left_out, arrays, before)


def _labels(column: Column, fetch: Fetch) -> NDArray[np.int32] | None:
    """A column of whole numbers as class indices, −1 = none; None where its numbers cannot be."""
    dtype = np.dtype(column.dtype)
    if dtype.kind not in "iu":
        return None
    data = b"".join(fetch(*place) for place in _places(column))
    numbers = np.frombuffer(data, dtype)
    if len(numbers) and (numbers.min() < -1 or numbers.max() >= 1 << 31):
        return None
    return numbers.astype(np.int32)


def _places(column: Column) -> list[tuple[int, int, int]]:
    return list(zip(column.file.tolist(), column.offset.tolist(), column.length.tolist(), strict=True))


def _field_name(column: Column, taken: Sequence[str], fetch: Fetch) -> str:
    """What the field is called: the image by its format, everything else by its column's name and an extension."""
    stem = _ILLEGAL.sub("_", column.name.lower())[: MAX_FIELD_NAME - 16].strip("_") or "field"
    extension = {"text": "txt", "json": "json", "number": "json", "bytes": "bin", "image": "jpg"}[column.kind]
    image = None
    if column.kind in ("image", "bytes") and len(column.file):
        try:
            file, offset, length = int(column.file[0]), int(column.offset[0]), int(column.length[0])
            image = _FIELD_OF.get(_header(fetch, file, offset, length).format)
        except DecodeError:
            image = None
        if column.kind == "image" and image is None:
            image = "jpg"  # whatever is wrong with the first one
    if image is not None and not set(taken) & set(IMAGE_FIELDS):
        return image
    name = stem if stem == extension else f"{stem}.{image or extension}"
    number = 2
    while name in taken or name in (LABEL_FIELD, *IMAGE_FIELDS):
        name, number = f"{stem}{number}.{image or extension}", number + 1
    return name


def _sizes(names: Sequence[str], arrays: Arrays, count: int, fetch: Fetch) -> Arrays:
    """Width, height and orientation of all images, from their headers; zeros where one cannot be read."""
    width, height = np.zeros(count, np.int32), np.zeros(count, np.int32)
    orientation = np.ones(count, np.uint8)
    image = image_field(tuple(names))
    if image is not None:
        number = names.index(image)
        places = [arrays[f"{part}.{number}"] for part in ("file", "offset", "length")]

        def read(start: int) -> None:
            stop = min(start + CHUNK, count)
            rows = zip(*(part[start:stop].tolist() for part in places), strict=True)
            for row, (file, offset, length) in enumerate(rows, start):
                try:
                    header = _header(fetch, file, offset, length)
                except DecodeError:
                    continue
                width[row], height[row], orientation[row] = header.width, header.height, header.orientation

        with ThreadPoolExecutor(THREADS, "iofast-headers") as pool:
            for _ in pool.map(read, range(0, count, CHUNK)):
                pass
    return {"width": width, "height": height, "orientation": orientation}


def _header(fetch: Fetch, file: int, offset: int, length: int) -> kernel.Header:
    return kernel.probe(lambda start, count: fetch(file, offset + start, count), length)


def _parts(index: TableIndex) -> tuple[dict[str, object], Arrays]:
    members: dict[str, object] = {
        name: getattr(index, name) for name in ("paths", "fields", "dtypes", "splits", "left_out")
    }
    return members, index.arrays | {"stamps": index.stamps.reshape(-1)}


def _loaded(file: Path) -> TableIndex | None:
    try:
        members, arrays = load(file)
        seen = arrays.pop("stamps").reshape(-1, 2)
        splits = tuple((str(name), int(start), int(stop)) for name, start, stop in members["splits"])
        texts = {name: tuple(map(str, members[name])) for name in ("paths", "fields", "dtypes", "left_out")}
        index = TableIndex(splits=splits, arrays=arrays, stamps=seen, **texts)
        wanted = [f"{part}.{n}" for n in range(len(index.fields)) for part in ("file", "offset", "length")]
        lengths = {len(arrays[name]) for name in (*wanted, "label", "width", "height", "orientation")}
        check_members(index.count, f"sha256:{0:064}", fields=sorted(index.fields), splits=splits)
        check_columns(arrays, len(index.paths))
        for number, dtype in enumerate(index.dtypes):
            if (arrays[f"file.{number}"] == ABSENT).any():
                return None
            if dtype and (arrays[f"length.{number}"] != np.dtype(dtype).itemsize).any():
                return None
        known = len(index.fields) == len(index.dtypes) and set(index.dtypes) <= {"", *NUMBERS}
        known &= not any(d and n in IMAGE_FIELDS for n, d in zip(index.fields, index.dtypes, strict=False))
        return index if known and lengths == {index.count} else None
    except (OSError, ContainerError, ValueError, KeyError, TypeError, AttributeError):
        return None  # absent, or written by something else: built again


class IndexedReader(FilesReader):
    """Random access to the samples of another program's binary format; `name` is what messages call it.

    `files` are what `Located.file` numbers. There are no checksums and no class names. Numbers are text in their field,
    and like labels they lie in no file. Keys are the places in the order.
    """

    def __init__(self, name: str, index: TableIndex, files: OpenFiles) -> None:
        self.path, self.index, self._opened = name, index, files
        self.left_out = index.left_out
        labelled = bool((index.arrays["label"] >= 0).any())
        shards = (Shard("", index.count, int(index.stamps[:, 0].sum())),)
        self.manifest = Manifest(
            count=index.count,
            fields=tuple(sorted({*index.fields} | ({LABEL_FIELD} if labelled else set()))),
            splits=_ranges(index.splits, index.count),
            fingerprint=_fingerprint(index),
            shards=shards,
        )

    def locate(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """Where the payloads lie; see `Reader.locate`. Labels and other numbers lie in no file: use `values`."""
        name = image_field(self.index.fields) if field is None else field
        if name is None or name not in self.index.fields or self._dtype(name):
            what = f"field {name!r} lies in no file" if name in self.manifest.fields else f"no field {name!r}"
            raise KeyError(f"{self.path}: {what}, only {', '.join(self.manifest.fields)}")
        return self._located(indices, name)

    def columns(self, indices: NDArray[np.int64]) -> Located:
        """What the index says of these records; see `Reader.columns`."""
        image = image_field(self.index.fields)
        if image is not None:
            return self._located(indices, image)
        return self._located(indices, self.index.fields[0] if self.index.fields else None).nowhere()

    def values(
        self,
        indices: NDArray[np.int64],
        field: str | None = None,
        *,
        check: bool = True,
        failed: Failures | None = None,
    ) -> list[bytes | None]:
        """Payloads of one field; see `Reader.values`."""
        if field == LABEL_FIELD and field in self.manifest.fields:
            labels = self.index.arrays["label"][dense(indices, len(self), self.path)].tolist()
            return [b"%d" % label if label >= 0 else None for label in labels]
        if field is None or field not in self.index.fields or not self._dtype(field):
            return super().values(indices, field, check=check, failed=failed)
        located = self._located(indices, field)
        places = zip(located.file.tolist(), located.offset.tolist(), located.length.tolist(), strict=True)
        return [_text(self._read(*place), self._dtype(field)) for place in places]

    def view(self, index: int, field: str | None = None) -> memoryview:
        """The payload of one field; see `Reader.view`."""
        if field in self.manifest.fields and (field == LABEL_FIELD or self._dtype(field)):
            value = self.values(np.array([index], np.int64), field)[0]
            if value is None:
                raise KeyError(f"{self.name(index)} has no field {field!r}")
            return memoryview(value)
        return super().view(index, field)

    def name(self, index: int) -> str:
        """`train.beton: sample 17`."""
        return f"{self.path}: sample {index}"

    def close(self) -> None:
        """Nothing to do: descriptors go with the reader, and there are at most 128."""

    def _dtype(self, name: str) -> str:
        return self.index.dtypes[self.index.fields.index(name)]

    def _located(self, indices: NDArray[np.int64], name: str | None) -> Located:
        arrays = self.index.arrays
        indices = dense(indices, len(self), self.path)
        nothing = np.zeros(len(indices), np.uint64)
        if name is None:
            file, offset, length = nothing.astype(np.uint32), nothing, nothing
        else:
            number = self.index.fields.index(name)
            file, offset, length = (arrays[f"{part}.{number}"][indices] for part in ("file", "offset", "length"))
        return Located(
            indices=indices,
            position=indices.astype(np.uint64),
            label=arrays["label"][indices],
            width=arrays["width"][indices],
            height=arrays["height"][indices],
            orientation=np.clip(arrays["orientation"][indices], 1, 8),
            file=np.minimum(file, ABSENT).astype(np.uint32),
            offset=offset.astype(np.uint64),
            length=length.astype(np.uint64),
            kind=np.zeros(len(indices), np.uint8),
            crc=None,
            strips=None,
        )

    def _files(self) -> OpenFiles:
        return self._opened

    def _there(self, index: int) -> list[str]:
        return [name for name in self.manifest.fields if name != LABEL_FIELD or self.index.arrays["label"][index] >= 0]

    def _key(self, index: int) -> str:
        return f"{index:0{self.manifest.key_width}d}"


def _text(data: bytes, dtype: str) -> bytes:
    """A binary number as JSON writes it; a fraction that JSON cannot say is null."""
    value = np.frombuffer(data, dtype)[0].item()
    finite = not isinstance(value, float) or np.isfinite(value)
    return json.dumps(value if finite else None).encode()


def _ranges(splits: Sequence[tuple[str, int, int]], count: int) -> Mapping[str, tuple[tuple[int, int], ...]]:
    if [name for name, _, _ in splits] == [WHOLE] or not splits:
        return {WHOLE: ((0, count),)}
    return {name: ((start, stop),) for name, start, stop in splits if stop > start} or {WHOLE: ((0, count),)}


def _fingerprint(index: TableIndex) -> str:
    """Of places and files, for there are no checksums: what changes when a file does."""
    digest = hashlib.sha256(repr((index.fields, index.dtypes, index.splits)).encode())
    for _, array in sorted(index.arrays.items()):
        digest.update(np.ascontiguousarray(array).data)
    digest.update(np.ascontiguousarray(index.stamps).data)
    return f"sha256:{digest.hexdigest()}"


class Same:
    """Compares an opened file with its stamp; a class, because readers are pickled."""

    def __init__(self, paths: Sequence[str], seen: NDArray[np.int64]) -> None:
        self._paths, self._seen = paths, seen

    def __call__(self, number: int, status: os.stat_result) -> None:
        if (status.st_size, status.st_mtime_ns) != tuple(self._seen[number].tolist()):
            raise ContainerError(f"{self._paths[number]} was changed since it was opened")


def fetch_from(files: OpenFiles) -> Fetch:
    """Reads of these files, each as long as was asked for. Raises `ContainerError`."""

    def fetch(file: int, offset: int, length: int) -> bytes:
        data = files.read(file, offset, length)
        if len(data) < length:
            raise ContainerError(f"{files.paths[file]} was cut off: {len(data)} of {length} bytes at offset {offset}")
        return data

    return fetch
