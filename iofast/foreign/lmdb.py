"""LMDB files of other programs: values that are image files or Caffe's Datums.

A Datum contains an image file or 8-bit planes. Other values are left out, and a file without any image (pickles, for
example) is an error. Image files are the field `jpg` in any format; planes are the field `rgb`, interleaved when they
are read. Labels come from Datums or from a list. There are no checksums, so writing to the file while it is open is an
error.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import UNREADABLE, Located
from iofast.containers.file_bytes import FileBytes
from iofast.containers.index import ABSENT
from iofast.containers.lmdb_pages import META_END, Tree, read_meta
from iofast.containers.lmdb_writer import RESERVED
from iofast.errors import ContainerError, SourceError
from iofast.foreign.cached_index import COLUMNS, MAX_RECORDS, PARTS, ForeignIndex, Format
from iofast.foreign.label_list import LabelList, read_label_list
from iofast.foreign.lmdb_values import COLOUR, ENCODED, GREY, OTHER, Value, classify, what_else
from iofast.foreign.options import ForeignOptions
from iofast.foreign.reader import ForeignReader
from iofast.kernel import Payloads
from iofast.source.arrays import Strings
from iofast.source.cache import Arrays
from iofast.source.in_threads import in_threads
from iofast.source.listing import printable

IMAGE_FIELD, RAW_FIELD = "jpg", "rgb"

_TYPES = ("<i4", "<i4", "<i4", "|u1", "|u1", "|u1", "<u8", "<u8")  # of the members of `Value`
_NUMBERED = 0x02 | 0x08  # keys in reverse order, integer keys: irrelevant to a reader of all keys


class LmdbFile(Format):
    """One LMDB file, and an optional list of labels."""

    name = "foreign-lmdb"

    def __init__(self, path: str | os.PathLike[str], options: ForeignOptions) -> None:
        options.refuse("an LMDB", "names")
        given = os.path.abspath(os.fspath(path))
        given = os.path.join(given, "data.mdb") if os.path.isdir(given) else given
        self.labels = _label_file(given, options)
        super().__init__([given], options, [self.labels] if self.labels else [])

    def state(self) -> tuple[int, ...]:
        """Last transaction, last page, page size. Writes through a map may leave the modification time unchanged."""
        meta = read_meta(FileBytes(self.paths[0]), self.paths[0])
        return meta.txnid, meta.last_page, meta.page_size

    def scan(self, stamped: NDArray[np.int64]) -> ForeignIndex:  # noqa: ARG002
        """Walk the tree and read the head of each value, in threads. `SourceError` for an invalid list of labels."""
        path, base = self.paths[0], self.options.label_base
        listed = None if self.labels is None else read_label_list(self.labels, base)
        data = FileBytes(path)
        keys, places = _entries(data, path)
        rows = _read_heads(data, places)
        kept = np.flatnonzero(rows["kind"] != OTHER)
        if not len(kept):
            raise ContainerError(f"{path} has no images: {_first(data, keys, places)}")
        rows = {name: column[kept] for name, column in rows.items()}
        kept_keys = Strings.gather(keys[row] for row in kept.tolist())
        others = len(keys) - len(kept)
        left_out = [f"entries that are no images: {others:,} left out"] if others else []
        if listed is None:
            _rebase(rows["label"], base, path)
        else:
            labels = rows["label"] = np.array([listed.labels.get(key, -1) for key in kept_keys], np.int32)
            if not (labels >= 0).any():
                where = f"none of the {len(labels)} keys of {path}, the first {kept_keys[0]!r:.80}"
                raise SourceError(f"{self.labels} has a label for {where}")
            left_out += _unmatched(labels, listed)
        fields, arrays = _fields(rows)
        arrays |= {name: rows[name] for name in COLUMNS} | {"starts": np.zeros(1, np.int64)}
        classes = None if listed is None else listed.classes
        return ForeignIndex(
            arrays, fields, keys=kept_keys, json=_sizes(rows), classes=classes, left_out=tuple(left_out)
        )


class ForeignLmdbReader(ForeignReader):
    """Records of an LMDB file. Interleaves planes, and detects writes to the file."""

    def __init__(self, path: str | os.PathLike[str], options: ForeignOptions | None = None) -> None:
        data = LmdbFile(path, options or ForeignOptions())
        self._seen: tuple[bytes, ...] = ()  # the meta pages that were last compared with the index
        super().__init__(data.paths[0], data)

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_seen": ()}

    @contextlib.contextmanager
    def payloads(self, located: Located, start: int, stop: int) -> Iterator[Payloads]:
        """See `Reader.payloads`. Planes are read and interleaved in memory."""
        planes = np.flatnonzero(located.kind[start:stop])
        with super().payloads(located, start, stop) as places:
            if not planes.size:
                yield places
                return
            fds, offsets = places.fds.copy(), places.offsets.copy()
            pixels = []
            for row in planes.tolist():
                try:
                    pixels.append(self._interleaved(located, start + row))
                    fds[row], offsets[row] = -1, pixels[-1].ctypes.data
                except ContainerError:
                    fds[row] = UNREADABLE
            yield places._replace(fds=fds, offsets=offsets)

    def _located(self, indices: NDArray[np.int64], numbers: NDArray[np.intp]) -> Located:
        """See `ForeignReader`. For planes, `length` is that of the interleaved payload."""
        self._check_unwritten()
        located = super()._located(indices, numbers)
        size = 3 * located.width.astype(np.uint64) * located.height.astype(np.uint64)
        return located._replace(length=np.where(located.kind > 0, size, located.length))

    def _interleaved(self, located: Located, row: int) -> NDArray[np.uint8]:
        """The `rgb` payload of a row of planes, uint8 (height, width, 3)."""
        index = self._open()
        height, width = int(located.height[row]), int(located.width[row])
        length = int(index.arrays[f"length.{index.fields.index(RAW_FIELD)}"][located.indices[row]])
        if length not in (height * width, 3 * height * width):
            raise ContainerError(f"{index.file}: the index is damaged in row {located.indices[row]}: delete it")
        planes = np.frombuffer(self._read(0, int(located.offset[row]), length), np.uint8).reshape(-1, height, width)
        if len(planes) == 3 and self.format.options.channels == "bgr":
            planes = planes[::-1]
        pixels = np.empty((height, width, 3), np.uint8)
        for channel in range(3):  # 78 us for 256 x 256 pixels; copying a transposed view takes 267
            pixels[:, :, channel] = planes[channel % len(planes)]
        return pixels

    def _check_unwritten(self) -> None:
        """Raise `ContainerError` if the file was written to since it was indexed."""
        state, data = self._open().state, self._files().get(0)
        if data is None:  # all descriptors are in use
            raise ContainerError(f"{self.path} cannot be opened")
        data.check_size()
        metas = tuple(data[at : at + META_END] for at in (0, state[2]))
        if metas != self._seen:  # comparing bytes is four times as fast as parsing the pages
            meta = read_meta(data, self.path)
            if (meta.txnid, meta.last_page) != state[:2]:
                raise ContainerError(f"{self.path} was written to since it was indexed: open it again")
            self._seen = metas


def _label_file(path: str, options: ForeignOptions) -> str | None:
    """The list of labels: the one in the options, else `labels.txt` in the LMDB's folder or `<path>.labels.txt`."""
    if options.labels is not None:
        return os.path.abspath(options.labels)
    folder, name = os.path.split(path)
    places = [f"{path}.labels.txt"]
    if name == "data.mdb":
        places = [os.path.join(folder, "labels.txt"), f"{folder}.labels.txt"]
    return next((place for place in places if os.path.isfile(place)), None)


def _entries(data: FileBytes, path: str) -> tuple[Strings, NDArray[np.int64]]:
    """All keys, and offset and length of their values, int64 (N, 2)."""
    meta = read_meta(data, path)
    if meta.flags & ~_NUMBERED:
        raise ContainerError(f"{path} keeps several values for one key (flags {meta.flags:#x}), which is not supported")
    if meta.file_size > len(data):
        raise ContainerError(f"{path} is truncated: {len(data)} bytes, expected {meta.file_size}")
    blob, ends, places = bytearray(), array("Q", [0]), array("q")
    for key, offset, length in Tree(data, meta, path).walk():
        if len(ends) > MAX_RECORDS:
            raise ContainerError(f"{path} has more than {MAX_RECORDS} entries")
        if key.startswith(RESERVED):  # do not read a damaged container of iofast without its checksums
            where = f"the entry {key!r:.40} at offset {offset}, but no manifest in its tree"
            raise ContainerError(f"{path} was written by iofast and is damaged: it has {where}")
        blob += key + b"\0"
        ends.append(len(blob))
        places.extend((offset, length))
    if len(ends) == 1:
        raise ContainerError(f"{path} is an LMDB file without entries")
    return Strings(bytes(blob), np.frombuffer(ends, np.uint64)), np.frombuffer(places, np.int64).reshape(-1, 2)


def _read_heads(data: FileBytes, places: NDArray[np.int64]) -> Arrays:
    """The columns of `Value` for all entries; `start` is an offset in the file."""
    count = len(places)
    rows: Arrays = {name: np.zeros(count, kind) for name, kind in zip(Value._fields, _TYPES, strict=True)}

    def read(start: int, stop: int) -> None:
        for row, (offset, length) in enumerate(places[start:stop].tolist(), start):
            value = classify(data, offset, length)
            for name, member in value._replace(start=offset + value.start)._asdict().items():
                rows[name][row] = member

    in_threads(read, count, " entries", "indexing")
    return rows


def _first(data: FileBytes, keys: Strings, places: NDArray[np.int64]) -> str:
    """Describe the first value, for an error message; keys that begin with `__` come last."""
    row = next((row for row, key in enumerate(keys) if not key.startswith(b"__")), 0)
    offset, length = places[row].tolist()
    return f"the value of {printable(keys[row])!r:.80} at offset {offset} {what_else(data, offset, length)}"


def _rebase(labels: NDArray[Any], base: int, path: str) -> None:
    there = labels >= 0
    if base and (labels[there] < base).any():
        raise ContainerError(f"{path} has the label 0, expected {base} (the label base) or more")
    labels[there] -= base


def _unmatched(labels: NDArray[np.int32], listed: LabelList) -> Iterator[str]:
    unlabelled = int((labels < 0).sum())
    if unlabelled:
        yield f"images without a line in the list of labels: {unlabelled:,} of {len(labels):,}"
    if surplus := len(listed.labels) - (len(labels) - unlabelled):  # keys of an LMDB are unique
        yield f"lines in the list of labels without an image: {surplus:,}"


def _fields(rows: Arrays) -> tuple[tuple[str, ...], Arrays]:
    """The image fields that records have, and the columns of their places."""
    fields: list[str] = []
    arrays: Arrays = {}
    for name, kinds in ((IMAGE_FIELD, (ENCODED,)), (RAW_FIELD, (COLOUR, GREY))):
        there = np.isin(rows["kind"], kinds)
        if there.any():
            place = {
                "file": np.where(there, 0, ABSENT),
                "offset": np.where(there, rows["start"], 0),
                "length": np.where(there, rows["length"], 0),
            }
            arrays |= {f"{part}.{len(fields)}": place[part].astype(kind) for part, kind in PARTS.items()}
            fields.append(name)
    return tuple(fields), arrays


def _sizes(rows: Arrays) -> Strings | None:
    """The field `json` (width, height) of records with planes."""
    planes = np.isin(rows["kind"], (COLOUR, GREY))
    if not planes.any():
        return None
    sizes = zip(planes.tolist(), rows["width"].tolist(), rows["height"].tolist(), strict=True)
    return Strings.gather(
        b'{"width":%d,"height":%d}' % (width, height) if there else b"" for there, width, height in sizes
    )
