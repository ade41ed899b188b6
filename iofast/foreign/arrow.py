"""Tables with images as a Reader: Arrow files, as `datasets` saves them, and Parquet files, as on the Hugging Face Hub.

Images are a column of structs with the member `bytes`, or a binary column. Values of an uncompressed Arrow file are
read where they are, compressed ones are refused; of a Parquet file a copy is made, see `plain_copies`. Columns without
places for single values (numbers, lists, times) are members of the field `json`.
"""

import contextlib
import datetime
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.containers.columns import NOWHERE, Arrays, columns_of
from iofast.containers.open_files import OpenFiles
from iofast.errors import ContainerError, DecodeError, OptionError
from iofast.foreign.arrow_schema import Leaf, meaning
from iofast.foreign.cached_index import MAX_RECORDS, ForeignIndex, Format, check_unchanged
from iofast.foreign.options import ForeignOptions
from iofast.foreign.plain_copies import is_plain, plain_copies, plain_table, read_instead
from iofast.foreign.table_files import TableFile, in_order
from iofast.option import CLASS_ORDERS
from iofast.record import IMAGE_FIELDS, LABEL_FIELD, MAX_FIELD_NAME, MAX_PAYLOAD, field_of, image_field
from iofast.source.arrays import StringsWriter
from iofast.source.in_threads import in_threads
from iofast.source.labels import Labels, are_numbers, class_names, read_labels, unused
from iofast.source.listing import ranges
from iofast.source.table import ColumnValues

_ILLEGAL = re.compile(r"[^0-9a-z_-]+", re.ASCII)
_FIELD_OF = {"jpeg": "jpg", "png": "png", "webp": "webp"}
_EXTENSIONS = {"text": "txt", "bytes": "bin", "image": "jpg"}
_CHUNK = 1024  # rows per task: neighbours share pages of the disk

_Header = Callable[[int, int, int], kernel.Header]  # of the image of a row at an offset with a length
_Places = tuple[NDArray[np.uint64], NDArray[np.uint32]]  # offset (`NOWHERE`: none) and length of each value


class ArrowTables(Format):
    """The rows of Arrow or Parquet files with one schema, in the order of the files."""

    name = "arrow"

    def __init__(self, files: Sequence[str | TableFile], options: ForeignOptions) -> None:
        if (others := sorted(set(options.names) - {"label"})) or options != ForeignOptions(dict(options.names)):
            found = f"names {others[0]}" if others else "others"
            raise OptionError(f"options of Arrow and Parquet: expected names label=COLUMN, found {found}")
        tables = [file for file in files if isinstance(file, TableFile)]
        tables = tables or in_order([file for file in files if isinstance(file, str)])
        self.file_splits = [table.split for table in tables]
        super().__init__([table.path for table in tables], options)

    def words(self) -> list[bytes]:
        return [*super().words(), *map(os.fsencode, self.file_splits)]

    def is_readable(self, stamped: NDArray[np.int64]) -> bool:
        """Whether no copy is gone."""
        return all(map(os.path.exists, read_instead(self.paths, stamped)))

    def files(self, stamped: NDArray[np.int64]) -> OpenFiles:
        """The files that are read: these, or their copies."""
        return OpenFiles(read_instead(self.paths, stamped), partial(_check_original, self.paths, stamped))

    def scan(self, stamped: NDArray[np.int64]) -> ForeignIndex:
        """Copy what must be, and note the place of every value."""
        read, rows, counts = plain_copies(self.paths, stamped), None, []
        for number, path in enumerate(self.paths):
            with plain_table(read[number], path) as (schema, address, batches):
                rows = rows or _TableScan(schema, path, self.options.names.get("label"))
                if not schema.equals(rows.schema):
                    raise ContainerError(f"{path} has other columns than {self.paths[0]}: open them as two data sets")
                before, size = rows.count, os.path.getsize(read[number])
                for batch in batches:
                    rows.add(batch, address, size, path)
                counts.append(rows.count - before)
        assert rows is not None  # there is a file
        places, table = rows.places(), rows.table
        labels, classes, warnings = rows.labels()
        arrays: Arrays = {"label": labels, "starts": np.cumsum(counts, dtype=np.int64) - np.array(counts, np.int64)}
        files, file = self.files(stamped), np.repeat(np.arange(len(counts)), counts)

        def header(row: int, offset: int, length: int) -> kernel.Header:
            def fetch(start: int, count: int) -> bytes:
                data = files.read(int(file[row]), offset + start, count)
                if len(data) < count:
                    raise ContainerError(f"{files.paths[file[row]]} was cut off at offset {offset + start + len(data)}")
                return data

            return kernel.probe(fetch, length)

        fields = _field_names(table.leaves, places, header)
        arrays |= _sizes(fields, places, len(labels), header)
        for name, own in zip(fields, places, strict=True):
            arrays |= zip(columns_of(name), (*own, np.zeros(len(labels), np.uint32)), strict=True)
        return ForeignIndex(
            arrays=arrays,
            fields=tuple(fields),
            json=rows.json.finish() if table.others else None,
            classes=classes,
            class_order=CLASS_ORDERS[0 if table.is_text else -1],
            splits=ranges(  # the files of a split follow each other
                (name, sum(count for own, count in zip(self.file_splits, counts, strict=True) if own == name))
                for name in dict.fromkeys(self.file_splits)
            ),
            left_out=(*table.left_out, *warnings),
        )


def _check_original(paths: Sequence[str], stamped: NDArray[np.int64], number: int, status: os.stat_result) -> None:
    """Compare an opened file with its stamp, unless it is a copy: its name has the stamp of its original."""
    if is_plain(paths[number]):
        check_unchanged(paths, stamped, number, status)


class _TableScan:
    """What the files have: places by leaf, labels, and the field `json` of each row."""

    def __init__(self, schema: Any, shown: str, label: str | None) -> None:
        self.schema, self.table, self.shown = schema, meaning(schema, shown, label), shown
        self.count, self.json = 0, StringsWriter()
        self._places: list[list[_Places]] = [[] for _ in self.table.leaves]
        self._labels, self._names = ColumnValues(), ColumnValues()

    def add(self, batch: Any, address: int, size: int, shown: str) -> None:
        """Add a batch of a file of `size` bytes, whose first byte has this address."""
        batch.validate(full=True)  # offsets that rise within their buffers, text that is UTF-8
        for leaf, found in zip(self.table.leaves, self._places, strict=True):
            offset, length = _places(batch, leaf, address)
            there = length >= 0
            if (there & ((offset < 0) | (offset + length > size))).any():
                raise ContainerError(f"{shown}: column {leaf.column!r} is compressed: save it without compression")
            if (length > MAX_PAYLOAD).any():
                raise ContainerError(f"{shown}: column {leaf.column!r} has values of more than {MAX_PAYLOAD} bytes")
            place = np.where(there, offset.astype(np.uint64), np.uint64(NOWHERE))
            found.append((place, np.where(there, length, 0).astype(np.uint32)))
        for column, cells in ((self.table.label, self._labels), (self.table.names, self._names)):
            for value in batch.column(column).to_pylist() if column is not None else ():
                cells.add(value)
        if self.table.others:
            for text in _as_json(batch, self.table.others, shown, self.count):
                self.json.add(text)
        self.count += batch.num_rows
        if self.count > MAX_RECORDS:
            raise ContainerError(f"{self.shown} …: more than {MAX_RECORDS} rows")

    def places(self) -> list[_Places]:
        """The places of all rows by leaf. Raises `ContainerError` for a column of images without bytes."""
        places = []
        for leaf, found in zip(self.table.leaves, self._places, strict=True):
            offset = np.concatenate([np.empty(0, np.uint64), *(each for each, _ in found)])
            if leaf.kind == "image" and self.count and (offset == np.uint64(NOWHERE)).all():
                raise ContainerError(
                    f"{self.shown}: column {leaf.name!r} has no bytes of images, only paths: `push_to_hub` and "
                    "`save_to_disk` of `datasets` store the bytes"
                )
            places.append((offset, np.concatenate([np.empty(0, np.uint32), *(each for _, each in found)])))
        return places

    def labels(self) -> Labels:
        """Labels of all rows, names of classes, and warnings. Raises `SourceError`, `ContainerError`."""
        table, nothing = self.table, (np.full(self.count, -1, np.int32), None)
        if table.label is None:
            return *nothing, []
        self._labels.finish()
        if table.names is not None and not are_numbers(self._labels):  # nobody has said that these are labels
            return *nothing, unused([table.label], "--names label=COLUMN")

        def fail(row: int, message: str) -> NoReturn:
            raise ContainerError(f"{self.shown} …: row {row} of column {table.label!r}: {message}")

        labels, classes, warnings = read_labels(self._labels, CLASS_ORDERS[0], Path(self.shown), fail, table.classes)
        if table.names is not None:
            self._names.finish()
            classes, warnings = class_names(labels, self._names, table.names)
        return labels, classes, warnings


def _places(batch: Any, leaf: Leaf, address: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offset in the file and length of each value of a leaf, int64 (rows,) each; length -1 where there is none."""
    import pyarrow

    values = batch.column(leaf.column)
    there = values.is_valid().to_numpy(zero_copy_only=False)
    if leaf.member:
        values = values.field(values.type.get_field_index(leaf.member))
        there = there & values.is_valid().to_numpy(zero_copy_only=False)
    buffers, rows = values.buffers(), np.arange(len(values) + 1, dtype=np.int64) + values.offset
    is_large = pyarrow.types.is_large_binary(values.type) or pyarrow.types.is_large_string(values.type)
    bounds = np.frombuffer(buffers[1], np.int64 if is_large else np.int32)[rows].astype(np.int64)
    starts, length = bounds[:-1] + (buffers[2].address - address if buffers[2] else 0), np.diff(bounds)
    length = np.where(there, length, -1)
    return np.where(length > 0, starts, 0), length


def _as_json(batch: Any, columns: Sequence[str], shown: str, before: int) -> Iterator[bytes]:
    """The field `json` of each row: its columns that are no text and no bytes."""
    try:
        rows = batch.select(list(columns)).to_pylist()
    except (ValueError, ArithmeticError) as error:  # values without a Python type
        raise ContainerError(f"{shown}: rows from {before} on have a value that cannot be read: {error}") from None
    for row in rows:
        yield json.dumps(_plain(row), ensure_ascii=False, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """A value as JSON has it: NaN and infinity become null, times and decimals text."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int) else str(value)


def _field_names(leaves: Sequence[Leaf], places: Sequence[_Places], header: _Header) -> list[str]:
    """A name for each field: the image by its format, any other column by its name and an extension."""
    names = list[str]()
    for leaf, (offset, length) in zip(leaves, places, strict=True):
        image = "jpg" if leaf.kind == "image" else None  # where the first image is damaged, or there is none
        for row in np.flatnonzero(offset != np.uint64(NOWHERE))[:1].tolist() if leaf.kind != "text" else ():
            with contextlib.suppress(DecodeError):
                image = _FIELD_OF.get(header(row, int(offset[row]), int(length[row])).format, image)
        stem = _ILLEGAL.sub("_", leaf.name.lower())[: MAX_FIELD_NAME - 16].strip("_") or "field"
        usual = _EXTENSIONS[leaf.kind]
        name, again = stem if stem == usual else f"{stem}.{image or usual}", 2
        if image is not None and not set(names) & set(IMAGE_FIELDS):
            name = image
        else:
            while name in (*names, LABEL_FIELD, *IMAGE_FIELDS):
                name, again = f"{stem}{again}.{image or usual}", again + 1
        names.append(name)
    return names


def _sizes(names: list[str], places: Sequence[_Places], count: int, header: _Header) -> Arrays:
    """Width, height (0 if unreadable) and orientation of all images, from their headers.

    If their formats differ, or are not that of the field's name, the field is renamed to `jpg`.
    """
    width, height = np.zeros(count, np.int32), np.zeros(count, np.int32)
    orientation, is_named = np.ones(count, np.uint8), np.ones(count, np.bool_)
    image = image_field(tuple(names))
    if image is not None:
        offset, length = places[names.index(image)]

        def read(start: int, stop: int) -> None:
            for row in (start + np.flatnonzero(offset[start:stop] != np.uint64(NOWHERE))).tolist():
                with contextlib.suppress(DecodeError):
                    found = header(row, int(offset[row]), int(length[row]))
                    width[row], height[row], orientation[row] = found.width, found.height, found.orientation
                    is_named[row] = field_of(found.format) == image

        in_threads(read, count, " images", "reading headers", chunk=_CHUNK)
        if not is_named.all():
            names[names.index(image)] = IMAGE_FIELDS[0]
    return {"width": width, "height": height, "orientation": orientation}
