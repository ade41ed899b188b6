"""A plain image folder, or the files that a manifest names, as a Reader."""

import contextlib
import functools
import json
import logging
import os
from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import UNREADABLE, Failures, Located, Reader, dense
from iofast.containers.columns import ABSENT
from iofast.containers.file_bytes import bounded
from iofast.containers.manifest import Manifest, Shard
from iofast.errors import SourceError
from iofast.kernel import Payloads
from iofast.record import JSON_FIELD, LABEL_FIELD, Record, format_key
from iofast.source.classes import instead_of
from iofast.source.folder_index import FolderIndex, open_index, reopen_index
from iofast.source.image_files import IMAGE_FIELD, beginning, content, named_by_format, open_file
from iofast.source.listing import Listing, printable

_log = logging.getLogger("iofast")

# Most files open at a time in one reader, over all threads; fewer if the process may have few. Further files are read
# into memory: 35 us for a file of 110 KiB, mostly for fresh memory, where opening costs 4.
MAX_DESCRIPTORS = 64


class FolderReader(Reader):
    """Random access to the images of a folder (or of the files a .csv, .tsv, .jsonl or .parquet manifest names).

    The first opening lists the folder and reads every header in parallel; the cache folder (`$XDG_CACHE_HOME/iofast`)
    keeps the result until a file is added or removed. An image that cannot be decoded has width and height 0. The image
    field is `jpg` whatever the file's format; only `record` names it by its format. Fields beside the image are `cls`
    if there are labels, `json` (the path) and a manifest's columns. There are no checksums. Raises `SourceError` as
    `scan` does.
    """

    container = "folder"
    renames = has_paths = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(root)
        self._index: FolderIndex | None = open_index(self.root)
        for warning in self._index.source.warnings:
            _warn(f"{self.root}: {warning}")
        if len(unread := np.flatnonzero((self._index.times == 0) & (self._index.size == 0))):
            path = os.path.join(os.fsencode(self._index.source.root), self._index.source.paths[int(unread[0])])
            example = f"{printable(path)}{instead_of(path)}"
            _warn(f"{self.root}: files that cannot be read: {len(unread)}, such as {example}")
        self._permits = deque(range(bounded(MAX_DESCRIPTORS)))
        self.manifest = _manifest(self._index)

    def __getstate__(self) -> dict[str, object]:
        index = self._index if self._index is None or self._index.file is None else None
        return {"root": self.root, "manifest": self.manifest, "_index": index}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _permits=deque(range(bounded(MAX_DESCRIPTORS))))

    @property
    def source(self) -> Listing:
        """The listing: paths, labels, splits, warnings."""
        return self._open().source

    def locate(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """Places of images; see `Reader.locate`. Fields beside the image have none: use `view`."""
        index = self._open()
        if field not in (None, IMAGE_FIELD):
            known = field in self.manifest.fields
            raise KeyError(f"{self.root}: {f'field {field!r} lies in no file' if known else f'no field {field!r}'}")
        indices = dense(indices, len(self), str(self.root), "images")
        order = index.source.order
        rows = indices if order is None else order[indices]
        return Located(
            indices=indices,
            label=index.source.listed_labels[rows],
            width=index.width[rows],
            height=index.height[rows],
            orientation=index.orientation[rows],
            file=rows.astype(np.uint32),
            offset=np.zeros(len(rows), np.uint64),
            length=index.size[rows],
            crc=None,
            kind=np.zeros(len(rows), np.uint8),
        )

    @contextlib.contextmanager
    def payloads(self, located: Located, start: int, stop: int) -> Iterator[Payloads]:
        """The files of some rows, opened; see `Reader.payloads`.

        Lengths are the present ones. A file that cannot be opened fails alone, when it is read.
        """
        source = self._open().source
        base = os.fsencode(source.root)
        files = located.file[start:stop].tolist()
        paths = [os.path.join(base, source.paths[row]) if row != ABSENT else b"" for row in files]
        fds = np.full(len(paths), UNREADABLE, np.int32)
        offsets, lengths = np.zeros(len(paths), np.uint64), np.zeros(len(paths), np.uint64)
        buffers: list[NDArray[np.uint8]] = []
        permits: list[int] = []  # to open files; there is no lock, which a fork could copy locked
        with contextlib.suppress(IndexError):
            while len(permits) < len(paths):
                permits.append(self._permits.pop())
        try:
            for row, path in enumerate(paths):
                if row < len(permits):
                    fds[row], lengths[row] = open_file(path)
                    continue
                data, lengths[row] = beginning(path), 1
                if data is not None:
                    buffers.append(np.frombuffer(data, np.uint8))
                    fds[row], offsets[row], lengths[row] = -1, buffers[-1].ctypes.data, len(data)
            yield located.payloads(slice(start, stop), fds, offsets, lengths)
        finally:
            for descriptor in fds[(fds >= 0) & (fds != UNREADABLE)].tolist():
                os.close(descriptor)
            self._permits.extend(permits)

    def _values(
        self,
        indices: NDArray[np.int64],
        field: str | None,
        check: bool,  # noqa: ARG002  there are no checksums
        wrong: Failures,
    ) -> list[bytes | None]:
        if field is not None and field not in self.manifest.fields:
            raise KeyError(f"{self.root} has no field {field!r}, only {', '.join(self.manifest.fields)}")
        values: list[bytes | None] = []
        for row, index in enumerate(dense(indices, len(self), str(self.root), "images").tolist()):
            try:
                values.append(self._value(index, field))
            except SourceError as error:
                wrong[row] = error
                values.append(None)
        return values

    def record(self, index: int) -> Record:
        """The record that packing without any change would make of this file."""
        return Record(format_key(index), named_by_format(self.all_values(np.array([index]))[0]))

    def note_changed(self, index: int, now: str) -> None:
        """See `Reader.note_changed`. The next opening builds the index again."""
        super().note_changed(index, now)
        if (file := self._open().file) is not None:
            with contextlib.suppress(OSError):  # readers that have it open keep it
                file.unlink()

    def name(self, index: int) -> str:
        """The path of the file."""
        return printable(self.source.file(index))

    def close(self) -> None:
        """Free the index if the cache has it."""
        if self._index is not None and self._index.file is not None:
            self._index = None

    def _open(self) -> FolderIndex:
        index = self._index
        if index is None:
            index = reopen_index(self.root, self.manifest.fingerprint)
            if index.fingerprint != self.manifest.fingerprint:
                raise SourceError(f"images were added to {self.root} or removed from it since it was opened")
            self._index = index
        return index

    def _value(self, index: int, field: str | None) -> bytes | None:
        """The image or one other field; reads no other file."""
        if field in (None, IMAGE_FIELD):
            return content(self.source.file(index))
        path = dict(self.source.files(index)).get(str(field))
        if path is None:
            return self._listed(index).get(str(field))
        return content(os.path.join(os.fsencode(self.source.root), path))

    def _listed(self, index: int) -> dict[str, bytes]:
        """Fields with values from the listing."""
        source = self.source
        about = json.dumps({"path": printable(source.path(index))}, separators=(",", ":"))
        label = source.label(index)
        labels = {LABEL_FIELD: b"%d" % label} if label >= 0 else {}
        return {JSON_FIELD: about.encode(), **labels, **source.extra(index)}


@functools.cache
def _warn(message: str) -> None:
    """Log a warning, once in a process: a folder is often opened for each split, and by each step of packing."""
    _log.warning("%s", message)


def _manifest(index: FolderIndex) -> Manifest:
    source = index.source
    labelled = bool((source.listed_labels >= 0).any())
    fields = {IMAGE_FIELD, JSON_FIELD, *source.fields} | ({LABEL_FIELD} if labelled else set())
    return Manifest(
        count=len(source),
        fields=tuple(sorted(fields)),
        splits={name: ((start, stop),) for name, start, stop in source.splits},
        fingerprint=index.fingerprint,
        shards=(Shard("", len(source), int(index.size.sum())),),
        classes=source.classes,
        class_order=source.class_order,
    )
