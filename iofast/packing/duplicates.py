"""Images that are equal byte by byte once packed: found while records are written, by length and CRC32C, then compared.

What is found is a function of the records in their order, so it depends neither on workers nor on interruptions.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Writer
from iofast.kernel import crc32c
from iofast.packing.failures import json_line, read_lines, write_lines
from iofast.record import JSON_FIELD, LABEL_FIELD, RAW_FIELDS, Record, format_key, image_field

_RECENT = 1 << 15  # images that are not sorted in yet
_BITS = 25  # of a key, the index of its bit in a filter of 4 MiB; with a million images 97 % need no search


class Duplicate(NamedTuple):
    """An image that equals an earlier one: their positions, and whether both have the same label."""

    position: int
    first: int
    same_label: bool


class _Marks:
    """Marks by u64 key, 16 bytes each: sorted arrays of increasing sizes, merged when they become similar."""

    def __init__(self) -> None:
        self._filter = bytearray(1 << (_BITS - 3))
        self._recent: dict[int, list[int]] = {}
        self._count = 0
        self._sorted: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []

    def add(self, key: int, mark: int) -> None:
        at = key & ((1 << _BITS) - 1)
        self._filter[at >> 3] |= 1 << (at & 7)
        self._recent.setdefault(key, []).append(mark)
        self._count += 1
        if self._count == _RECENT:
            self._sort_in()

    def find(self, key: int) -> list[int]:
        at = key & ((1 << _BITS) - 1)
        if not self._filter[at >> 3] >> (at & 7) & 1:
            return []
        found: list[int] = []
        for keys, marks in self._sorted:
            start, stop = np.searchsorted(keys, np.uint64(key), "left"), np.searchsorted(keys, np.uint64(key), "right")
            found += marks[start:stop].tolist()
        return found + self._recent.get(key, [])

    def _sort_in(self) -> None:
        pairs = [(key, mark) for key, marks in self._recent.items() for mark in marks]
        keys = np.array([key for key, _ in pairs], np.uint64)
        marks = np.array([mark for _, mark in pairs], np.int64)
        self._recent, self._count = {}, 0
        while self._sorted and len(self._sorted[-1][0]) <= 2 * len(keys):
            older = self._sorted.pop()
            keys, marks = np.concatenate((older[0], keys)), np.concatenate((older[1], marks))
        order = np.argsort(keys, kind="stable")  # stable: of equal keys the first comes first
        self._sorted.append((keys[order], marks[order]))


class Duplicates:
    """The duplicates among the records of `writer`. `file` is where they are listed.

    `first` is the position of the run's first image: what `file` says of images before it stays.
    """

    def __init__(self, file: Path, first: int = 0) -> None:
        self.file, self._first = file, first
        self.found: dict[int, Duplicate] = {}
        self._marks = _Marks()

    def note(self, writer: Writer) -> None:
        """Note the last record, for comparison with later ones."""
        key = _key_of_last(writer)
        if key is not None:
            self._marks.add(key, writer.mark)

    def find(self, writer: Writer, position: int, fields: Mapping[str, bytes]) -> Duplicate | None:
        """Find the first record with the same image as this one, which is not written yet."""
        image = image_field(fields)
        if image is None:
            return None
        key = len(fields[image]) << 32 | crc32c(fields[image])
        for mark in self._marks.find(key):
            record = writer.recall(mark)
            if int(record.key) < position and _same(record, fields, image):
                label = record.fields.get(LABEL_FIELD) == fields.get(LABEL_FIELD)
                return Duplicate(position, int(record.key), label)
        return None

    def written(self, writer: Writer, position: int) -> Duplicate | None:
        """The same for the last record, which is compared with those noted before it."""
        key = _key_of_last(writer)
        if key is None or not self._marks.find(key):
            return None
        return self.find(writer, position, writer.recall(writer.mark).fields)

    @property
    def other_label(self) -> int:
        """The number of duplicates with another label than their first image."""
        return sum(not each.same_label for each in self.found.values())

    def save(self, path: Callable[[int], str | None]) -> None:
        """Write one JSON object for each, or remove an old file; `path` returns the path of a position."""
        found = (self.found[position] for position in sorted(self.found))
        lines = (_line(each, path(each.position), path(each.first)) for each in found)
        write_lines(self.file, "list of duplicates", self._first, lines)

    def load(self) -> None:
        """Load what a finished run has saved."""
        for value in read_lines(self.file):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                each = Duplicate(value["key"], int(value["first"]), bool(value["same_label"]))
                if each.position >= self._first:
                    self.found[each.position] = each


def _key_of_last(writer: Writer) -> int | None:
    """The key of the last record's image; None if it has no image."""
    keys = {name: length << 32 | crc for name, length, crc in writer.last}
    image = image_field(keys)
    return None if image is None else keys[image]


def _same(record: Record, fields: Mapping[str, bytes], image: str) -> bool:
    if record.fields.get(image) != fields[image] or image_field(record.fields) != image:
        return False
    return image not in RAW_FIELDS or _size(record.fields) == _size(fields)


def _size(fields: Mapping[str, bytes]) -> tuple[int, int]:
    members = json.loads(fields[JSON_FIELD])
    return members["width"], members["height"]


def _line(each: Duplicate, path: str | None, first: str | None) -> str:
    images = {"key": format_key(each.position), "path": path, "first": format_key(each.first), "first_path": first}
    return json_line({**images, "same_label": each.same_label})
