"""Make fields of records from the columns of a table: names, labels, image sizes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.containers.columns import ABSENT
from iofast.containers.columns_file import Arrays
from iofast.containers.open_files import OpenFiles
from iofast.errors import ContainerError, DecodeError
from iofast.foreign.cached_index import PARTS, ForeignIndex, number_of
from iofast.record import IMAGE_FIELDS, LABEL_FIELD, MAX_FIELD_NAME, image_field
from iofast.source.in_threads import in_threads
from iofast.source.labels import LABEL_COLUMNS

LABEL_NAMES = (*LABEL_COLUMNS, "y", "cls", "labels", "fine_label")

_FIELD_OF = {"jpeg": "jpg", "png": "png", "webp": "webp"}
_ILLEGAL = re.compile(r"[^0-9a-z_-]+", re.ASCII)

_CHUNK = 1024  # rows per task: neighbours share pages of the disk


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a table of N samples: the places of its values.

    `kind`: `image`, `text`, `bytes` (the value is the payload) or `number` (one number of type `dtype`).
    """

    name: str
    kind: Literal["image", "text", "bytes", "number"]
    file: NDArray[np.uint32]
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    dtype: str = "|u1"


Fetch = Callable[[int, int, int], bytes]  # file, offset, length


def index_of(
    columns: Sequence[TableColumn],
    starts: NDArray[np.int64],
    fetch: Fetch,
    splits: Sequence[tuple[str, int, int]] = (),
    left_out: Sequence[str] = (),
    labels: NDArray[np.int32] | None = None,
) -> ForeignIndex:
    """Return the index of a table; `starts`: the number of samples before each file."""
    count = len(columns[0].file)
    arrays: Arrays = {"label": np.full(count, -1, np.int32) if labels is None else labels, "starts": starts}
    names: list[str] = []
    dtypes: list[str] = []
    for column in columns:
        dtype = column.dtype if column.kind == "number" else ""
        name = _field_name(column, names, fetch)
        number = len(names)
        names.append(name)
        dtypes.append(dtype)
        arrays |= {f"{part}.{number}": getattr(column, part).astype(kind) for part, kind in PARTS.items()}
    arrays |= _sizes(names, arrays, count, fetch)
    return ForeignIndex(
        arrays=arrays, fields=tuple(names), dtypes=tuple(dtypes), splits=tuple(splits), left_out=tuple(left_out)
    )


def _places(column: TableColumn, most: int | None = None) -> list[tuple[int, int, int]]:
    """File, offset and length of the first `most` values that are there."""
    there = np.flatnonzero(column.file != ABSENT)[:most]
    parts = (part[there].tolist() for part in (column.file, column.offset, column.length))
    return list(zip(*parts, strict=True))


def _field_name(column: TableColumn, taken: Sequence[str], fetch: Fetch) -> str:
    """Name a field: the image by its format, any other column by its name and an extension."""
    stem = _ILLEGAL.sub("_", column.name.lower())[: MAX_FIELD_NAME - 16].strip("_") or "field"
    extension = {"text": "txt", "number": "json", "bytes": "bin", "image": "jpg"}[column.kind]
    image = None
    for place in _places(column, 1) if column.kind in ("image", "bytes") else ():
        with contextlib.suppress(DecodeError):
            image = _FIELD_OF.get(_header(fetch, *place).format)
    if column.kind == "image" and image is None:
        image = "jpg"  # the first image is damaged, or there is none
    if image is not None and not set(taken) & set(IMAGE_FIELDS):
        return image
    name = stem if stem == extension else f"{stem}.{image or extension}"
    number = 2
    while name in taken or name in (LABEL_FIELD, *IMAGE_FIELDS):
        name, number = f"{stem}{number}.{image or extension}", number + 1
    return name


def _sizes(names: list[str], arrays: Arrays, count: int, fetch: Fetch) -> Arrays:
    """Width, height (0 if unreadable), orientation and format of all images, from their headers.

    If their formats differ, or are not that of the field's name, the field is renamed to `jpg`.
    """
    width, height = np.zeros(count, np.int32), np.zeros(count, np.int32)
    orientation, formats = np.ones(count, np.uint8), np.zeros(count, np.uint8)
    image = image_field(tuple(names))
    if image is not None:
        number = names.index(image)
        formats[:] = number_of(image)
        places = [arrays[f"{part}.{number}"] for part in PARTS]

        def read(start: int, stop: int) -> None:
            rows = zip(*(part[start:stop].tolist() for part in places), strict=True)
            for row, (file, offset, length) in enumerate(rows, start):
                if file == ABSENT:
                    continue
                try:
                    header = _header(fetch, file, offset, length)
                except DecodeError:
                    continue
                width[row], height[row], orientation[row] = header.width, header.height, header.orientation
                formats[row] = number_of(header.format)

        in_threads(read, count, " images", "reading headers", chunk=_CHUNK)
        if (formats == number_of(image)).all():
            formats[:] = 0
        else:
            names[number] = IMAGE_FIELDS[0]
    return {"width": width, "height": height, "orientation": orientation, "format": formats}


def _header(fetch: Fetch, file: int, offset: int, length: int) -> kernel.Header:
    return kernel.probe(lambda start, count: fetch(file, offset + start, count), length)


def fetch_from(files: OpenFiles) -> Fetch:
    """Return a function that reads exactly `length` bytes, or raises `ContainerError`."""

    def fetch(file: int, offset: int, length: int) -> bytes:
        data = files.read(file, offset, length)
        if len(data) < length:
            raise ContainerError(f"{files.paths[file]} was cut off: {len(data)} of {length} bytes at offset {offset}")
        return data

    return fetch
