"""LMDB files of other programs: values that are image files, in any format, as the field `jpg`.

The texts of OCR data sets (`label-…` beside `image-…`) are the field `label.txt`. Other values are left out, and a file
without any image (pickles, for example) is an error. There are no class numbers and no checksums, so writing to the
file while it is open is an error.
"""

import os
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Located
from iofast.containers.columns import FACTS, NOWHERE, Arrays, columns_of
from iofast.containers.file_bytes import FileBytes
from iofast.containers.lmdb_pages import Tree, read_meta
from iofast.containers.lmdb_writer import RESERVED
from iofast.errors import ContainerError
from iofast.foreign.cached_index import MAX_RECORDS, ForeignIndex, Format, described
from iofast.foreign.options import ForeignOptions
from iofast.foreign.reader import ForeignReader
from iofast.kernel.payload import HEAD
from iofast.record import ImageInfo
from iofast.source.arrays import Strings, StringsWriter
from iofast.source.in_threads import in_threads
from iofast.source.listing import printable

TEXT_FIELD = "label.txt"

_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")
_PICKLES = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_NUMBERED = 0x02 | 0x08  # keys in reverse order, integer keys: irrelevant to a reader of all keys


class LmdbFile(Format):
    """One LMDB file."""

    name = "foreign-lmdb"
    names_are_fixed = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = os.path.abspath(os.fspath(path))
        super().__init__([os.path.join(given, "data.mdb") if os.path.isdir(given) else given], ForeignOptions())

    def state(self) -> tuple[int, ...]:
        """Last transaction, last page, page size. Writes through a map may leave the modification time unchanged."""
        meta = read_meta(FileBytes(self.paths[0]), self.paths[0])
        return meta.txnid, meta.last_page, meta.page_size

    def scan(self, stamped: NDArray[np.int64]) -> ForeignIndex:  # noqa: ARG002
        """Walk the tree and read the head of each value, in threads."""
        path = self.paths[0]
        data = FileBytes(path)
        keys, places = _entries(data, path)
        rows = _read_heads(data, places)
        kept = np.flatnonzero(rows.pop("is_image"))
        if not len(kept):
            raise ContainerError(f"{path} has no images: {_first(data, keys, places)}")
        arrays: Arrays = {name: column[kept] for name, column in rows.items()}
        arrays |= {"label": np.full(len(kept), -1, np.int32), "starts": np.zeros(1, np.int64)}
        kept_keys = Strings.gather(keys[row] for row in kept.tolist())
        texts = _texts(keys, kept_keys)
        has_texts = bool((texts >= 0).any())
        fields = ("jpg", TEXT_FIELD) if has_texts else ("jpg",)
        for name, found in zip(fields, (kept, texts), strict=False):
            offset = np.where(found < 0, np.uint64(NOWHERE), places[found, 0].astype(np.uint64))
            length = np.where(found < 0, 0, places[found, 1]).astype(np.uint32)
            arrays |= zip(columns_of(name), (offset, length, np.zeros(len(kept), np.uint32)), strict=True)
        others = len(keys) - len(kept) - int((texts >= 0).sum())
        left_out = [f"entries that are no images: {others:,} left out"] if others else []
        left_out += [f"no class numbers: the texts of the keys label-… are the field {TEXT_FIELD}"] if has_texts else []
        return ForeignIndex(arrays=arrays, fields=fields, keys=kept_keys, left_out=tuple(left_out))


class ForeignLmdbReader(ForeignReader):
    """Records of an LMDB file. Detects writes to the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        data = LmdbFile(path)
        super().__init__(data.paths[0], data)

    def _located(self, fields: Sequence[str], indices: NDArray[np.int64]) -> Located:
        """Raise `ContainerError`, too, if the file was written to since it was indexed."""
        state, data = self._open().state, self._files().get(0)
        if data is None:  # all descriptors are in use
            raise ContainerError(f"{self.path} cannot be opened")
        data.check_size()
        meta = read_meta(data, self.path)
        if (meta.txnid, meta.last_page) != state[:2]:
            raise ContainerError(f"{self.path} was written to since it was indexed: open it again")
        return super()._located(fields, indices)


def _entries(data: FileBytes, path: str) -> tuple[Strings, NDArray[np.int64]]:
    """All keys, and offset and length of their values, int64 (N, 2)."""
    meta = read_meta(data, path)
    if meta.flags & ~_NUMBERED:
        raise ContainerError(f"{path} keeps several values for one key (flags {meta.flags:#x}), which is not supported")
    if meta.file_size > len(data):
        raise ContainerError(f"{path} is truncated: {len(data)} bytes, expected {meta.file_size}")
    keys, places = StringsWriter(), array("q")
    for key, offset, length in Tree(data, meta, path).walk():
        if len(places) >= 2 * MAX_RECORDS:
            raise ContainerError(f"{path} has more than {MAX_RECORDS} entries")
        if key.startswith(RESERVED):  # do not read a damaged container of iofast without its checksums
            where = f"the entry {key!r:.40} at offset {offset}, but no manifest in its tree"
            raise ContainerError(f"{path} was written by iofast and is damaged: it has {where}")
        keys.add(key)
        places.extend((offset, length))
    if not places:
        raise ContainerError(f"{path} is an LMDB file without entries")
    return keys.finish(), np.frombuffer(places, np.int64).reshape(-1, 2)


def _texts(keys: Strings, images: Strings) -> NDArray[np.int64]:
    """For each image `image-7` the row of the text `label-7`, -1 without one: the layout of OCR data sets."""
    rows = {key: row for row, key in enumerate(keys) if key.startswith(b"label-")}
    found = (rows.get(b"label-" + key[6:], -1) if rows and key.startswith(b"image-") else -1 for key in images)
    return np.fromiter(found, np.int64, len(images))


def _read_heads(data: FileBytes, places: NDArray[np.int64]) -> Arrays:
    """Of all entries whether they are images, and width, height and orientation, as columns."""
    rows: Arrays = {name: np.zeros(len(places), FACTS[name]) for name in ("width", "height", "orientation")}
    rows["is_image"] = np.zeros(len(places), np.bool_)

    def read(start: int, stop: int) -> None:
        for row, (offset, length) in enumerate(places[start:stop].tolist(), start):
            info = _read_head(data, offset, length)
            if info is not None:
                rows["is_image"][row] = True
                rows["width"][row], rows["height"][row] = info.width, info.height
                rows["orientation"][row] = info.orientation

    in_threads(read, len(places), " entries", "indexing")
    return rows


def _read_head(data: FileBytes, offset: int, length: int) -> ImageInfo | None:
    """What the head of an image file says; nothing of one with an unreadable header, whose decoding will fail."""
    head = data[offset : offset + min(length, HEAD)]
    if head.startswith(_MAGIC):
        return described(lambda start, count: data[offset + start : offset + start + count], length)
    info = described(lambda start, count: head[start : start + count], len(head))
    return info if info.width else None


def _first(data: FileBytes, keys: Strings, places: NDArray[np.int64]) -> str:
    """Describe the first value, for an error message; keys that begin with `__` come last."""
    row = next((row for row, key in enumerate(keys) if not key.startswith(b"__")), 0)
    offset, length = places[row].tolist()
    head = data[offset : offset + min(length, 16)]
    what = f"is no image file: it begins with {head!r}"
    if head.startswith(_PICKLES):
        what = "is pickled, and loading it would run code from the file: store the bytes of the image instead"
    return f"the value of {printable(keys[row])!r:.80} at offset {offset} {what}"
