"""LMDB files that iofast did not write, as a Reader: a key and an image each, or Caffe's Datums."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import UNREADABLE, Located, Payloads, dense
from iofast.containers.index import ABSENT
from iofast.containers.lmdb_pages import META_END, read_meta
from iofast.containers.manifest import WHOLE, Manifest, Shard
from iofast.containers.open_files import OpenFiles
from iofast.errors import ContainerError, SourceError
from iofast.record import JSON_FIELD, LABEL_FIELD, RAW_FIELDS, Record
from iofast.source.foreign import ForeignOptions, ForeignReader
from iofast.source.listing import printable
from iofast.source.lmdb_index import LmdbIndex, open_lmdb_index, reopen_lmdb_index
from iofast.source.lmdb_values import COLOUR, ENCODED, GREY, NOTHING
from iofast.source.tfrecord_scan import FORMATS

IMAGE_FIELD, RAW_FIELD = "jpg", "rgb"  # image files, whatever their format; the planes of a Datum, interleaved


class ForeignLmdbReader(ForeignReader):
    """Random access to the images of an LMDB file, or of an LMDB folder's `data.mdb`, in the order of its keys.

    A value is an image file, or a Caffe Datum with an image file or 8-bit planes in it; what is neither is left out
    (`left_out` says so), and a file of nothing else is refused, pickles above all. Planes are turned into the field
    `rgb` when they are read: three are taken for B, G, R unless `options.channels` says "rgb", one is a grey image.
    Labels are a Datum's, or those of a list (`options.labels`, or beside the file). Keys are the file's.

    The first opening walks the tree and reads the head of every value; the result is kept in the cache folder
    (`$XDG_CACHE_HOME/iofast`) until the file or the list changes. There are no checksums, so a file that is written to
    while it is in use is an error. Raises `SourceError` where a file is missing, `ContainerError` where the bytes are
    no LMDB's, or hold no images.
    """

    def __init__(self, path: str | os.PathLike[str], options: ForeignOptions | None = None) -> None:
        given = os.path.abspath(os.fspath(path))
        self.path = os.path.join(given, "data.mdb") if os.path.isdir(given) else given
        self.options = options or ForeignOptions()
        self.options.refuse("an LMDB", "names")
        if not os.path.isfile(self.path):
            raise SourceError(f"{self.path} is not a file, so no LMDB can be read")
        self._index: LmdbIndex | None = open_lmdb_index(self.path, self.options)
        self._opened: OpenFiles | None = None
        self._seen: tuple[bytes, ...] = ()  # the meta pages, when they were found to be those that were indexed
        self._second = int(self._index.stamp[6])  # offset of the second
        self.left_out = tuple(_left_out(self._index))
        self.manifest = _manifest(self._index)
        self._check_base(self.options.label_base)

    def __getstate__(self) -> dict[str, object]:
        index = self._index if self._index is None or self._index.file is None else None
        return {**self.__dict__, "_index": index, "_opened": None, "_seen": ()}

    def locate(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """Where the payloads lie; see `Reader.locate`. `cls` and `json` lie in no file: use `values` or `view`.

        Of planes, `length` is that of the `rgb` payload that they become.
        """
        images = [name for name in (IMAGE_FIELD, RAW_FIELD) if name in self.manifest.fields]
        if (field is None and not images) or (field is not None and field not in images):
            known = field in self.manifest.fields
            fields = ", ".join(self.manifest.fields)
            what = f"field {field!r} lies in no file" if known else f"no field {field or IMAGE_FIELD!r}, only {fields}"
            raise KeyError(f"{self.path}: {what}")
        return self._located(indices, field)

    def columns(self, indices: NDArray[np.int64]) -> Located:
        """What the index says of these records; see `Reader.columns`."""
        return self._located(indices, None)

    @contextlib.contextmanager
    def payloads(self, located: Located, start: int, stop: int) -> Iterator[Payloads]:
        """The open file and the places in it; see `Reader.payloads`. Planes are read, and interleaved in memory."""
        planes = np.flatnonzero(located.kind[start:stop])
        with self._files().payloads(located, start, stop) as places:
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

    def view(self, index: int, field: str | None = None) -> memoryview:
        """The payload of one field; see `Reader.view`."""
        value = self.values(np.array([index]), field)[0]
        if value is None:
            raise KeyError(f"{self.name(index)} has no {'image' if field is None else f'field {field!r}'}")
        return memoryview(value)

    def keys(self, located: Located) -> list[str]:
        """The keys of the records in `located`, as the file has them; bytes that are no text as `\\xe9`."""
        return [self._key(row) for row in located.indices.tolist()]

    def record(self, index: int) -> Record:
        """One record whole, an image file under the name of its real format."""
        fields = dict(super().record(index).fields)
        if IMAGE_FIELD in fields:
            fields[FORMATS[int(self._open().arrays["format"][index]) % len(FORMATS)]] = fields.pop(IMAGE_FIELD)
        return Record(self._key(index), dict(sorted(fields.items())))

    def name(self, index: int) -> str:
        """`train_lmdb/data.mdb: 00000042_cat.jpg`."""
        return f"{self.path}: {self._key(index)}"

    def close(self) -> None:
        """Let go of the file, and of the index unless it is not in the cache and would have to be built again."""
        self._opened = None
        if self._index is not None and self._index.file is not None:
            self._index = None

    def _located(self, indices: NDArray[np.int64], field: str | None) -> Located:
        index = self._open()
        self._check_unwritten(index)
        arrays, indices = index.arrays, dense(indices, len(self), self.path)
        kind, offset, length = (arrays[name][indices] for name in ("kind", "offset", "length"))
        size = np.uint64(index.stamp[0])
        width, height = arrays["width"][indices], arrays["height"][indices]
        wrong = (kind > NOTHING) | (offset > size) | (length > size - np.minimum(offset, size))
        planes = np.where(kind == COLOUR, 3, 1).astype(np.int64) * width * height
        raw = (kind == COLOUR) | (kind == GREY)
        wrong |= raw & (planes.astype(np.uint64) != length)
        if wrong.any():
            raise ContainerError(f"{index.file}: the index is damaged in row {indices[np.argmax(wrong)]}: delete it")
        there = raw if field == RAW_FIELD else kind == ENCODED if field == IMAGE_FIELD else kind != NOTHING
        raw &= there
        length = np.where(raw, 3 * width.astype(np.uint64) * height.astype(np.uint64), length)
        return Located(
            indices=indices,
            position=indices.astype(np.uint64),
            label=arrays["label"][indices],
            width=width,
            height=height,
            orientation=arrays["orientation"][indices],
            file=np.where(there, 0, ABSENT).astype(np.uint32),
            offset=np.where(there, offset, 0).astype(np.uint64),
            length=np.where(there, length, 0).astype(np.uint64),
            kind=np.where(raw, 1 + RAW_FIELDS.index(RAW_FIELD), 0).astype(np.uint8),
            crc=None,
            strips=None,
        )

    def _interleaved(self, located: Located, row: int) -> NDArray[np.uint8]:
        """The `rgb` payload of a row of planes: (height, width, 3)."""
        kind = int(self._open().arrays["kind"][located.indices[row]])
        channels, height, width = 3 if kind == COLOUR else 1, int(located.height[row]), int(located.width[row])
        data = self._read(0, int(located.offset[row]), channels * height * width)
        planes = np.frombuffer(data, np.uint8).reshape(channels, height, width)
        if channels == 3 and self.options.channels == "bgr":
            planes = planes[::-1]
        pixels = np.empty((height, width, 3), np.uint8)
        for channel in range(3):  # 78 us of 256 x 256 pixels; one copy of a transposed view takes 267
            pixels[:, :, channel] = planes[channel % channels]
        return pixels

    def _check_unwritten(self, index: LmdbIndex) -> None:
        """Refuse a file that somebody wrote to since it was indexed: its pages may hold anything now."""
        data = self._files().get(0)
        if data is None:  # one file never needs more descriptors than there are
            raise ContainerError(f"{self.path} cannot be opened")
        data.check_size()
        metas = tuple(data[at : at + META_END] for at in (0, self._second))
        if metas != self._seen:  # as bytes: to understand the pages takes four times as long
            meta = read_meta(data, self.path)
            if (meta.txnid, meta.last_page) != tuple(index.stamp[2:4].tolist()):
                raise ContainerError(f"{self.path} was written to since it was indexed: open it again")
            self._seen = metas

    def _said(self, index: int) -> dict[str, bytes]:
        arrays = self._open().arrays
        label, kind = int(arrays["label"][index]), int(arrays["kind"][index])
        said = {LABEL_FIELD: b"%d" % label} if label >= 0 else {}
        if kind in (COLOUR, GREY):
            said[JSON_FIELD] = b'{"width":%d,"height":%d}' % (arrays["width"][index], arrays["height"][index])
        return said

    def _there(self, index: int) -> list[str]:
        kind = int(self._open().arrays["kind"][index])
        image = {ENCODED: [IMAGE_FIELD], COLOUR: [RAW_FIELD], GREY: [RAW_FIELD]}.get(kind, [])
        return sorted([*image, *self._said(index)])

    def _key(self, index: int) -> str:
        return printable(self._open().keys[index])

    def _files(self) -> OpenFiles:
        opened = self._opened
        if opened is None:
            path, (size, changed) = self.path, self._open().stamp[:2].tolist()

            def check(_: int, status: os.stat_result) -> None:
                if (status.st_size, status.st_mtime_ns) != (size, changed):
                    raise ContainerError(f"{path} was changed since it was indexed: open it again")

            opened = self._opened = OpenFiles([path], check)
        return opened

    def _open(self) -> LmdbIndex:
        index = self._index
        if index is None:
            index = reopen_lmdb_index(self.path, self.options, self.manifest.fingerprint)
            if index.fingerprint != self.manifest.fingerprint:
                raise ContainerError(f"{self.path} has changed since it was opened")
            self._index = index
        return index


def _left_out(index: LmdbIndex) -> Iterator[str]:
    if index.left_out:
        yield f"entries that are no images: {index.left_out:,} left out"
    if index.surplus is not None:
        if unlabelled := int((index.arrays["label"] < 0).sum()):
            yield f"images without a line in the list of labels: {unlabelled:,} of {len(index):,}"
        if index.surplus:
            yield f"lines in the list of labels that are of no image: {index.surplus:,}"


def _manifest(index: LmdbIndex) -> Manifest:
    kinds = set(np.unique(index.arrays["kind"]).tolist())
    fields = {IMAGE_FIELD} if ENCODED in kinds else set()
    fields |= {RAW_FIELD, JSON_FIELD} if kinds & {COLOUR, GREY} else set()
    fields |= {LABEL_FIELD} if (index.arrays["label"] >= 0).any() else set()
    return Manifest(
        count=len(index),
        fields=tuple(sorted(fields)),
        splits={WHOLE: ((0, len(index)),)},
        fingerprint=index.fingerprint,
        shards=(Shard("", len(index), int(index.stamp[0])),),
        classes=index.classes,
    )
