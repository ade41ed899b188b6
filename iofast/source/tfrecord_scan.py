"""All records of foreign TFRecord files, read once: columns of what an index keeps of them.

A record whose data contradicts its checksum keeps its place, with that checksum: it fails when it is read, and only it.
"""

from __future__ import annotations

import array
import os
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from iofast.bars import open_bar
from iofast.containers.file_bytes import FileBytes
from iofast.containers.tfrecord_framing import FOOT, HEAD, Frame, frames, read_data, unmask
from iofast.errors import ContainerError, DecodeError, SourceError
from iofast.kernel import Header, crc32c, read_header
from iofast.source.foreign import MAX_NAMES
from iofast.source.tfrecord_records import TfrecordOptions, Understood, understand

FORMATS = ("jpg", "png", "webp", "gif", "bmp", "tif")  # what `record` calls an image; the column has the number in here
COLUMNS = {"label": "<i4", "width": "<i4", "height": "<i4", "orientation": "|u1", "format": "|u1"}
THREADS = 4  # files at a time: reading and checksums let go of the GIL, the rest is Python

_NUMBER = {"jpeg": 0, "tiff": 5} | {name: number for number, name in enumerate(FORMATS)}
_U32 = struct.Struct("<I")


class Rows:
    """What one file has, column by column, in arrays: lists of numbers would take half a gigabyte for ImageNet."""

    def __init__(self, places: int) -> None:
        self.count = 0
        self.columns = {name: array.array("i") for name in COLUMNS}
        self.places = [array.array("q") for _ in range(places)]  # offset (−1 = none), length, CRC32C of each record
        self.json, self.ends = bytearray(), array.array("q")  # as in `Strings`
        self.texts: dict[int, str | None] = {}  # label → class name, None where records disagree
        self.features: set[str] = set()  # their names, `MAX_NAMES` and those of one record at most


def read_files(paths: Sequence[str], options: TfrecordOptions, size: int) -> list[Rows]:
    """Every record of all files; with a progress bar if that takes over a second."""
    pool = ThreadPoolExecutor(THREADS, "iofast-tfrecord")
    stop = threading.Event()
    try:
        with open_bar(size, "B", "indexing", unit_scale=True, delay=1) as bar:
            tasks = [pool.submit(_read_file, path, options, bar.update, stop) for path in paths]
            return [task.result() for task in tasks]
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _read_file(path: str, options: TfrecordOptions, progress: Callable[[int], object], stop: threading.Event) -> Rows:
    rows = Rows(1 + len(options.fields))
    try:
        if os.stat(path).st_size == 0:  # as writers of many shards leave some
            return rows
        data = FileBytes(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    for frame in frames(data):
        if stop.is_set():  # another file is no TFRecord file, or Ctrl-C
            break
        _add(rows, data, frame, options)
        progress(HEAD + frame.length + FOOT)
    return rows


def _add(rows: Rows, data: FileBytes, frame: Frame, options: TfrecordOptions) -> None:
    try:
        content = read_data(data, frame)
    except ContainerError:  # its data is damaged: whoever reads it as its image will be told so
        stored = unmask(_U32.unpack(data[frame.end - FOOT : frame.end])[0])
        _append(rows, Understood(None, -1, None, None, [], frozenset()), (frame.offset, frame.length, stored), None)
        return
    try:
        found = understand(content, options)
    except ContainerError as error:
        where = f"{data.path}: record {rows.count} at offset {frame.offset - HEAD}"
        raise ContainerError(f"{where} is no tf.train.Example that can be read: {error}") from None
    image, header, payload = (-1, 0, 0), None, b""
    if found.image is not None:
        payload = content[found.image.start : found.image.stop]
        image = (frame.offset + found.image.start, len(payload), crc32c(payload))
        try:
            header = read_header(payload)
        except DecodeError:
            header = None
    _append(rows, found, image, header)
    for number, span in enumerate(found.fields, 1):
        if span is not None:
            payload = content[span.start : span.stop]
            place = (frame.offset + span.start, len(payload), crc32c(payload))
            rows.places[number][-3:] = array.array("q", place)


def _append(rows: Rows, found: Understood, image: tuple[int, int, int], header: Header | None) -> None:
    rows.count += 1
    shape = (0, 0, 1) if header is None else (header.width, header.height, header.orientation)
    number = 0 if header is None else _NUMBER.get(header.format.lower(), 0)
    for column, value in zip(rows.columns.values(), (found.label, *shape, number), strict=True):
        column.append(value)
    rows.json += (found.json or b"") + b"\0"
    rows.ends.append(len(rows.json))
    rows.places[0].extend(image)
    for place in rows.places[1:]:
        place.extend((-1, 0, 0))
    if not found.features <= rows.features and len(rows.features) < MAX_NAMES:
        rows.features |= found.features
    if found.label >= 0:
        known = rows.texts.setdefault(found.label, found.text)
        rows.texts[found.label] = known if known == found.text else None
