"""TFRecord files of other programs: Examples with an encoded image, as written by TensorFlow's converters.

The scan reads every record. The image is the field `jpg` in any format; other fields are `cls`, `json` (path and key)
and those named in the options. A record without an image has no `jpg`. A record whose data contradicts its checksum
keeps its place and the checksum, so that reading it fails and no other record does.
"""

from __future__ import annotations

import array
import contextlib
import os
import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from iofast.bars import open_bar
from iofast.containers.any_bytes import open_bytes, stored_stamps
from iofast.containers.columns import RowsBuilder, fields_in
from iofast.containers.file_bytes import FileBytes
from iofast.containers.manifest import MAX_CLASS_NAME
from iofast.containers.tfrecord import FOOT, HEAD, Framing, frames, read_data, unmask
from iofast.errors import ContainerError, DecodeError, IofastError, unreadable
from iofast.foreign.cached_index import (
    MAX_NAMES,
    ForeignIndex,
    Format,
    NamedPart,
    few_names,
    joined,
    may_be_there,
)
from iofast.foreign.options import ForeignOptions
from iofast.foreign.tfrecord_features import FeatureNames, Understood, understand
from iofast.kernel import Header, crc32c, read_header
from iofast.option import CLASS_ORDERS
from iofast.record import ImageInfo
from iofast.remote.urls import is_url
from iofast.source.arrays import Strings, StringsWriter
from iofast.source.labels import read_labels, unused
from iofast.source.listing import few
from iofast.source.table import ColumnValues

IMAGE_FIELD = "jpg"

_THREADS = 4  # files at a time; reading and checksums release the GIL, parsing does not
_U32 = struct.Struct("<I")
_Place = tuple[str, int, int, int]  # field, offset, length, CRC32C


class TfrecordFiles(Format):
    """The files of one set, in the given order."""

    name = "foreign-tfrecord"
    has_checksums = True

    def __init__(self, paths: Sequence[str], options: ForeignOptions) -> None:
        super().__init__(paths, options)
        self.features = FeatureNames.of(options)

    def scan(self, stamped: NDArray[np.int64]) -> ForeignIndex:
        """Read all records of all files."""
        files = self._read(int(stamped[:, 0].sum()))
        arrays = joined([rows.rows.arrays() for rows in files])
        fields = fields_in(arrays)
        json = Strings.join(rows.json.finish() for rows in files)
        order, warnings, classes = CLASS_ORDERS[-1], list[str](), _classes(files, arrays["label"])
        if (arrays["label"] < 0).all() and any(rows.names for rows in files):
            order = CLASS_ORDERS[0]
            arrays["label"], classes, warnings = self._text_labels(files, order)
        return ForeignIndex(
            arrays=arrays,
            fields=tuple(fields),
            json=json,
            classes=classes,
            class_order=order,
            left_out=(*self._left_out(files, labelled=bool((arrays["label"] >= 0).any())), *warnings),
            names_seen=few_names(rows.features for rows in files),
        )

    def named_parts(self, index: ForeignIndex) -> Iterator[NamedPart]:
        options, json = self.features, index.json.blob if index.json is not None else b""
        if options.image is not None:
            yield "image", options.image, "bytes in", IMAGE_FIELD in index.fields
        if options.label is not None:
            yield "label", options.label, "a label in", index.labelled or may_be_there(options.label, index.names_seen)
        if options.path is not None:
            yield "path", options.path, "text in", re.search(b'"path":', json) is not None
        for ours, theirs in options.fields:
            yield ours, theirs, "bytes in", ours in index.fields

    def _text_labels(
        self, files: Sequence[_FileScan], class_order: str
    ) -> tuple[NDArray[np.int32], tuple[str, ...] | None, list[str]]:
        """See `read_labels`."""
        cells = ColumnValues()
        for rows in files:
            names = [*rows.names, None]  # the last one is number -1
            for number in rows.named:
                cells.add(names[number])
        cells.finish()

        def fail(row: int, message: str) -> NoReturn:
            raise ContainerError(f"{self.paths[0]} …: record {row}: {message}")

        return read_labels(cells, class_order, Path(self.paths[0]), fail)

    def _left_out(self, files: Sequence[_FileScan], *, labelled: bool) -> Iterator[str]:
        unread = [name for name in few_names(rows.features for rows in files) if name not in self.features.known]
        if unread:
            yield f"features that no field takes: {few(unread, 8)} (--names FIELD=FEATURE takes bytes)"
        if self.features.label is not None and not labelled:
            yield f"no record has a class number or text in {self.features.label!r}: none has a label"
        elif not labelled:
            yield from unused(unread, "--names label=FEATURE")
        elif any(rows.names for rows in files) and any(rows.texts for rows in files):
            yield "labels that are text, in records beside others with class numbers"

    def _read(self, size: int) -> list[_FileScan]:
        stop = threading.Event()
        pool = ThreadPoolExecutor(_THREADS, "iofast-tfrecord")
        try:
            with open_bar(size, "B", "indexing", unit_scale=True, delay=1) as bar:
                tasks = [pool.submit(_read_file, path, self.features, bar.update, stop) for path in self.paths]
                return [task.result() for task in tasks]
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


class _FileScan:
    """The records of one file, in arrays: lists would take half a gigabyte for ImageNet."""

    def __init__(self) -> None:
        self.rows, self.json = RowsBuilder(), StringsWriter()
        self.texts: dict[int, str | None] = {}  # label → class name; None if records disagree
        self.names: dict[str, int] = {}  # class names of records without a number, numbered as they appear
        self.named = array.array("i")  # which of them a record has, or -1
        self.features: set[str] = set()  # names; up to `MAX_NAMES` plus those of one record


def _read_file(path: str, options: FeatureNames, progress: Callable[[int], object], stop: threading.Event) -> _FileScan:
    rows = _FileScan()
    try:
        size = stored_stamps([path])[0][0] if is_url(path) else os.stat(path).st_size
        if size == 0:  # some writers leave empty shards
            return rows
        data = open_bytes(path)
    except IofastError:
        raise
    except OSError as error:
        raise unreadable(path, error) from None
    for frame in frames(data):
        if stop.is_set():  # another file failed, or Ctrl-C
            break
        _add(rows, data, frame, options)
        progress(HEAD + frame.length + FOOT)
    return rows


def _add(rows: _FileScan, data: FileBytes, frame: Framing, options: FeatureNames) -> None:
    try:
        content = read_data(data, frame)
    except ContainerError:  # damaged data: reading the image will report it
        stored = unmask(_U32.unpack(data[frame.end - FOOT : frame.end])[0])
        nothing = Understood(None, -1, None, None, [], frozenset())
        _append(rows, nothing, [(IMAGE_FIELD, frame.offset, frame.length, stored)], None)
        return
    try:
        found = understand(content, options)
    except ContainerError as error:
        where = f"{data.path}: record {len(rows.rows)} at offset {frame.offset - HEAD}"
        raise ContainerError(f"{where} is no tf.train.Example that can be read: {error}") from None
    places, header = list[_Place](), None
    names = (IMAGE_FIELD, *(name for name, _ in options.fields))
    for name, span in zip(names, (found.image, *found.fields), strict=True):
        if span is not None:
            payload = content[span.start : span.stop]
            places.append((name, frame.offset + span.start, len(payload), crc32c(payload)))
            if name == IMAGE_FIELD:
                with contextlib.suppress(DecodeError):
                    header = read_header(payload)
    _append(rows, found, places, header)


def _append(rows: _FileScan, found: Understood, places: Sequence[_Place], header: Header | None) -> None:
    shape = () if header is None else (header.width, header.height, header.orientation)
    rows.rows.add(len(rows.rows), ImageInfo(found.label, *shape), places)
    rows.json.add(found.json or b"")
    if not found.features <= rows.features and len(rows.features) < MAX_NAMES:
        rows.features |= found.features
    has_name = found.label < 0 and found.text is not None
    rows.named.append(rows.names.setdefault(found.text or "", len(rows.names)) if has_name else -1)
    if found.label >= 0:
        known = rows.texts.setdefault(found.label, found.text)
        rows.texts[found.label] = known if known == found.text else None


def _classes(files: Sequence[_FileScan], labels: NDArray[Any]) -> tuple[str, ...] | None:
    """The names of classes, if each class up to the greatest label has a name of its own."""
    top = int(labels.max(initial=-1))
    texts: dict[int, str | None] = {}
    for rows in files:
        for label, text in rows.texts.items():
            texts[label] = text if texts.get(label, text) == text else None
    names = [texts.get(label) for label in range(top + 1)] if top + 1 == len(texts) else []
    whole = [name for name in names if name is not None and len(name) <= MAX_CLASS_NAME]
    return tuple(whole) if whole and len(set(whole)) == top + 1 else None
