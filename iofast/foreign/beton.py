"""FFCV's `.beton` as a Reader, where images are stored as JPEGs (`write_mode='jpg'`).

Header (24 bytes): version u16, fields u16, page size u32, samples u64, place of the allocation table u64. Then each
field: type u8, name 16 bytes, 1024 bytes of arguments. Then a row per sample, aligned as C would; pages of data; and
the allocation table (sample, place, size: u64 each) to the end of the file. All little-endian.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers.file_bytes import FileBytes
from iofast.containers.manifest import MAX_FIELDS
from iofast.errors import ContainerError, UnfinishedError
from iofast.foreign.cached_index import MAX_RECORDS, ForeignIndex, Format
from iofast.foreign.columns import TableColumn, fetch_from, index_of
from iofast.foreign.options import ForeignOptions

VERSION = 2

_HEADER = struct.Struct("<HHIQQ")
_FIELD = struct.Struct("<B16s1024s")
_ALLOCATION = np.dtype([("sample", "<u8"), ("place", "<u8"), ("size", "<u8")])
_PLACED = np.dtype([("place", "<u8"), ("size", "<u8")])
_IMAGE = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")])
_FLOAT, _INT, _RGB, _BYTES, _ARRAY, _JSON, _TENSOR = range(7)
_TYPES = {
    _FLOAT: np.dtype("<f8"),
    _INT: np.dtype("<i8"),
    _RGB: _IMAGE,
    _BYTES: _PLACED,
    _ARRAY: np.dtype("<u8"),
    _JSON: _PLACED,
    _TENSOR: np.dtype("<u8"),
}
_JPEG = 0  # of `mode`; 1 is raw pixels


class BetonFile(Format):
    """One beton file."""

    name = "beton"
    names_are_fixed = True

    def __init__(self, path: Path) -> None:
        super().__init__([os.fspath(path)], ForeignOptions())

    def scan(self, stamped: NDArray[np.int64]) -> ForeignIndex:
        """Read the rows of all samples.

        Raises `ContainerError` for bytes that contradict the format, images stored as raw pixels, or unknown field
        types; `UnfinishedError` for a file that was never completed.
        """
        columns, left_out = _columns(self.paths[0])
        fetch = fetch_from(self.files(stamped))
        return index_of(columns, np.zeros(1, np.int64), fetch, left_out=left_out)


def _columns(path: str) -> tuple[list[TableColumn], list[str]]:
    """The readable columns, and a sentence for each other one."""
    data = FileBytes(path)
    if len(data) < _HEADER.size:
        raise ContainerError(f"{path} has {len(data)} bytes, fewer than the header of a beton file")
    version, number, _, count, table = _HEADER.unpack(data[: _HEADER.size])
    if version != VERSION:
        raise ContainerError(f"{path} is no beton file of version {VERSION}: it begins with version {version}")
    if table == 0:
        raise UnfinishedError(f"{path} was never finished: it has no allocation table")
    if not 1 <= number <= MAX_FIELDS or count > MAX_RECORDS:
        raise ContainerError(f"{path}: {number} fields and {count} samples are impossible")
    fields = _fields(data, path, number)
    rows = np.dtype([("", dtype) for _, _, dtype in fields], align=True)
    start = _HEADER.size + number * _FIELD.size
    end = start + count * rows.itemsize
    if not end <= table <= len(data) or (len(data) - table) % _ALLOCATION.itemsize:
        words = f"samples end at offset {end}, allocations begin at {table}, the file ends at {len(data)}"
        raise ContainerError(f"{path} is cut off, or damaged: {words}")
    samples = np.frombuffer(data[start:end], rows)
    allocations = np.sort(np.frombuffer(data[table:], _ALLOCATION), order=("place", "size"))
    columns, left_out = [], []
    for place, (kind, name, _) in enumerate(fields):
        if kind in (_ARRAY, _TENSOR):
            left_out.append(f"field {name!r} is left out: arrays are not read")
            continue
        at = start + rows.fields[f"f{place}"][1]  # type: ignore[index]
        columns.append(_column(name, kind, samples[f"f{place}"], allocations, (path, at, rows.itemsize, table)))
    if not columns:
        raise ContainerError(f"{path} has no field that can be read: {'; '.join(left_out)}")
    return columns, left_out


def _fields(data: FileBytes, path: str, number: int) -> list[tuple[int, str, np.dtype[Any]]]:
    text = data[_HEADER.size : _HEADER.size + number * _FIELD.size]
    if len(text) < number * _FIELD.size:
        raise ContainerError(f"{path} is cut off: it ends within the descriptions of its {number} fields")
    found = []
    for kind, name, _ in _FIELD.iter_unpack(text):
        shown = name.split(b"\0", 1)[0].decode("ascii", "backslashreplace")
        if kind not in _TYPES:
            raise ContainerError(f"{path}: field {shown!r} is of type {kind}, whose size is unknown")
        found.append((kind, shown, _TYPES[kind]))
    return found


def _column(
    name: str, kind: int, values: NDArray[Any], allocations: NDArray[Any], where: tuple[str, int, int, int]
) -> TableColumn:
    """The places of one field. `where`: path, offset of the first row's value, size of a row, end of the data."""
    path, at, step, end = where
    count = len(values)
    file = np.zeros(count, np.uint32)
    if kind in (_FLOAT, _INT):
        offset, length = (at + step * np.arange(count)).astype(np.uint64), np.full(count, 8, np.uint64)
        return TableColumn(name, "number", file, offset, length, "<f8" if kind == _FLOAT else "<i8")
    if kind == _RGB:
        raw = np.flatnonzero(values["mode"] != _JPEG)
        if len(raw):
            what = f"{len(raw):,} of {count:,} images of field {name!r} are raw pixels"
            raise ContainerError(f"{path}: {what}: only beton files written with write_mode='jpg' can be read")
        place = values["place"].astype(np.uint64)
        # Of several allocations at one place take the largest: FFCV gives an empty value the place of the next one.
        found = np.searchsorted(allocations["place"], place, side="right") - 1
        known = allocations["place"][found] == place if len(allocations) else np.zeros(count, np.bool_)
        if not known.all():
            sample = int(np.argmin(known))
            raise ContainerError(f"{path}: the image of sample {sample} at offset {place[sample]} was never allocated")
        size = allocations["size"][found].astype(np.uint64)
    else:
        place, size = values["place"].astype(np.uint64), values["size"].astype(np.uint64)
    limit = np.uint64(end)
    wrong = (place > limit) | (size > limit - np.minimum(place, limit))
    if kind == _JSON:
        wrong |= size == 0
    if wrong.any():
        row = int(np.argmax(wrong))
        words = f"{size[row]} bytes at offset {place[row]}"
        raise ContainerError(f"{path}: field {name!r} of sample {row} lies outside the data: {words}")
    if kind == _JSON:
        return TableColumn(name, "json", file, place, size - np.uint64(1))  # without the NUL at its end
    return TableColumn(name, "image" if kind == _RGB else "bytes", file, place, size)
