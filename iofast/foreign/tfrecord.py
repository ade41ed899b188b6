"""TFRecord files of other programs: Examples with an encoded image, as written by TensorFlow's converters.

The scan reads every record. The image is the field `jpg` in any format; other fields are `cls`, `json` (path and key)
and those named in the options. A record without an image has no `jpg`. A record whose data contradicts its checksum
keeps its place and the checksum, so that reading it fails and no other record does.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from iofast.bars import open_bar
from iofast.containers.columns import RowsBuilder, fields_in
from iofast.containers.tfrecord import FOOT, HEAD, Framing, frames, read_data, unmask
from iofast.errors import ContainerError
from iofast.foreign.cached_index import MAX_NAMES, ForeignIndex, Format, described, few_names, joined, opened
from iofast.foreign.options import ForeignOptions
from iofast.foreign.tfrecord_features import Understood, known, understand
from iofast.kernel import crc32c
from iofast.option import CLASS_ORDERS
from iofast.record import ImageInfo
from iofast.source.arrays import Strings, StringsWriter
from iofast.source.image_files import IMAGE_FIELD
from iofast.source.labels import class_names, read_labels, unused
from iofast.source.listing import few
from iofast.source.table import TEXT

_THREADS = 4  # files at a time; reading and checksums release the GIL, parsing does not
_U32 = struct.Struct("<I")


class TfrecordFiles(Format):
    """The files of one set, in the given order."""

    name = "foreign-tfrecord"
    has_checksums = True

    def scan(self, stamped: NDArray[np.int64]) -> ForeignIndex:
        """Read all records of all files."""
        files = self._read(stamped[:, 0].tolist())
        arrays = joined([rows.rows.arrays() for rows in files])
        fields = fields_in(arrays)
        json = Strings.join(rows.json.finish() for rows in files)
        texts = Strings.join(rows.texts.finish() for rows in files)
        labels, given = arrays["label"], np.diff(texts.bounds) > 1  # each has one byte more
        order, warnings, cells = CLASS_ORDERS[-1], list[str](), zip(texts, itertools.repeat(TEXT))
        if given.any() and (labels < 0).all():
            order = CLASS_ORDERS[0]
            arrays["label"], classes, warnings = read_labels(cells, order, Path(self.paths[0]), self._fail)
        else:
            classes, _ = class_names(labels, cells, "")
            if ((labels < 0) & given).any():
                warnings = ["labels that are text, in records beside others with class numbers"]
        return ForeignIndex(
            arrays=arrays,
            fields=tuple(fields),
            json=json,
            classes=classes,
            class_order=order,
            left_out=(*self._left_out(files, labelled=bool((arrays["label"] >= 0).any())), *warnings),
            names_seen=few_names(rows.features for rows in files),
        )

    def _fail(self, row: int, message: str) -> NoReturn:
        raise ContainerError(f"{self.paths[0]} …: record {row}: {message}")

    def _left_out(self, files: Sequence[_FileScan], *, labelled: bool) -> Iterator[str]:
        taken = known(self.options)
        unread = [name for name in few_names(rows.features for rows in files) if name not in taken]
        if unread:
            yield f"features that no field takes: {few(unread, 8)} (--names FIELD=FEATURE takes bytes)"
        if "label" in self.options.names and not labelled:
            yield f"no record has a class number or text in {self.options.names['label']!r}: none has a label"
        elif not labelled:
            yield from unused(unread, "--names label=FEATURE")

    def _read(self, sizes: Sequence[int]) -> list[_FileScan]:
        stop = threading.Event()
        pool = ThreadPoolExecutor(_THREADS, "iofast-tfrecord")
        files = [_FileScan(self.options) for _ in self.paths]
        try:
            with open_bar(sum(sizes), "B", "indexing", unit_scale=True, delay=1) as bar:
                tasks = [
                    pool.submit(file.read, path, bar.update, stop)
                    for file, path, size in zip(files, self.paths, sizes, strict=True)
                    if size  # some writers leave empty shards
                ]
                for task in tasks:
                    task.result()
            return files
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


class _FileScan:
    """The records of one file, in arrays: lists would take half a gigabyte for ImageNet."""

    def __init__(self, options: ForeignOptions) -> None:
        self.options = options
        self.rows, self.json = RowsBuilder(), StringsWriter()
        self.texts = StringsWriter()  # names of classes, or labels that are text; empty without one
        self.features: set[str] = set()  # names; up to `MAX_NAMES` plus those of one record

    def read(self, path: str, progress: Callable[[int], object], stop: threading.Event) -> None:
        """Read all records of the file. Raises `ContainerError`, `SourceError`."""
        data = opened(path)
        for frame in frames(data):
            if stop.is_set():  # another file failed, or Ctrl-C
                break
            try:
                content = read_data(data, frame)
            except ContainerError:  # damaged data: reading the image will report it
                stored = unmask(_U32.unpack(data[frame.end - FOOT : frame.end])[0])
                image = (IMAGE_FIELD, frame.offset, frame.length, stored)
                self._add(Understood({}), [image], ImageInfo())
            else:
                self._interpret(content, frame, path)
            progress(HEAD + frame.length + FOOT)

    def _interpret(self, content: bytes, frame: Framing, path: str) -> None:
        """Add the record with these data."""
        try:
            found = understand(content, self.options)
        except ContainerError as error:
            where = f"{path}: record {len(self.rows)} at offset {frame.offset - HEAD}"
            raise ContainerError(f"{where} is no tf.train.Example that can be read: {error}") from None
        spans = {name: content[span.start : span.stop] for name, span in found.places.items()}
        places = [(name, frame.offset + found.places[name].start, len(own), crc32c(own)) for name, own in spans.items()]
        image = spans.get(IMAGE_FIELD, b"")
        info = described(lambda start, count: image[start : start + count], len(image), found.label)
        self._add(found, places, info)

    def _add(self, found: Understood, places: Sequence[tuple[str, int, int, int]], info: ImageInfo) -> None:
        """Append a record; `places` as for `RowsBuilder.add`."""
        self.rows.add(len(self.rows), info, places)
        self.json.add(found.json)
        if not found.features <= self.features and len(self.features) < MAX_NAMES:
            self.features |= found.features
        self.texts.add((found.text or "").encode())
