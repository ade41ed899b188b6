"""Find images that are equal byte by byte once packed: by length and CRC32C, then by comparing the bytes.

The result is a function of the records in their order, so it depends neither on workers nor on interruptions.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Reader, Writer
from iofast.containers.entries import WrittenRecord, image_key
from iofast.kernel import crc32c
from iofast.packing.failures import beside, read_lines, write_lines
from iofast.record import JSON_FIELD, LABEL_FIELD, RAW_FIELDS, Record, format_key, image_field

DUPLICATES = ".duplicates.jsonl"  # the suffix of the list, beside the container

_STEP = 65_536  # records whose checksums are read together
_RECENT = 1 << 15  # marks that are not sorted yet
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
        keys = np.repeat(np.array([*self._recent], np.uint64), [len(marks) for marks in self._recent.values()])
        marks = np.array([mark for marks in self._recent.values() for mark in marks], np.int64)
        self._recent, self._count = {}, 0
        while self._sorted and len(self._sorted[-1][0]) <= 2 * len(keys):
            older = self._sorted.pop()
            keys, marks = np.concatenate((older[0], keys)), np.concatenate((older[1], marks))
        order = np.argsort(keys, kind="stable")  # stable: of equal keys the first comes first
        self._sorted.append((keys[order], marks[order]))


class Duplicates:
    """The duplicates of one run, `found` by position and listed beside the container at `path`.

    `first` is the position of the run's first image: lines for earlier images stay.
    """

    def __init__(self, path: Path, first: int = 0) -> None:
        self._path, self._first = path, first
        self.file = beside(path, DUPLICATES)
        self.found: dict[int, Duplicate] = {}
        self._marks = _Marks()

    def note(self, records: Iterable[WrittenRecord]) -> None:
        """Remember records of the writer, for comparison with later ones."""
        for record in records:
            if record.image is not None:
                self._marks.add(record.image, record.mark)

    def is_duplicate(self, writer: Writer, position: int, fields: Mapping[str, bytes]) -> bool:
        """Whether an earlier record has the same image as `fields`, the record at `position`; if so, list it."""
        image = image_field(fields)
        if image is None:
            return False
        key = image_key(len(fields[image]), crc32c(fields[image]))
        for mark in self._marks.find(key):
            record = writer.recall(mark)
            if int(record.key) < position and _same(record, fields, image):
                same_label = record.fields.get(LABEL_FIELD) == fields.get(LABEL_FIELD)
                self.found[position] = Duplicate(position, int(record.key), same_label)
                return True
        return False

    def is_repeated(self, writer: Writer, record: WrittenRecord) -> bool:
        """The same for a record that `writer` has, compared with those noted before it."""
        if record.image is None or not self._marks.find(record.image):
            return False
        return self.is_duplicate(writer, record.position, writer.recall(record.mark).fields)

    def across(
        self, writer: Writer, part: Reader, listed: Iterable[Duplicate], label: Callable[[int], bytes | None]
    ) -> set[int]:
        """Positions of records in `part` whose image an earlier part has. List them and `listed`, those within `part`.

        A duplicate within the part equals a record that may itself be left out: its first image is then the earlier
        one. `label` returns the label of an image at a position, as a record has it.
        """
        rows: dict[int, int] = {}
        for start in range(0, len(part), _STEP):
            located = part.columns(np.arange(start, min(start + _STEP, len(part)), dtype=np.int64))
            keys = (located.length << np.uint64(32)) | np.asarray(located.crc, np.uint64)
            for index, (key, position) in enumerate(
                zip(keys.tolist(), part.positions(located.indices).tolist(), strict=True), start
            ):
                if self._marks.find(key) and self.is_duplicate(writer, position, part.record(index).fields):
                    rows[position] = index
        for each in listed:
            self.found[each.position] = each
            if each.first in rows:
                fields, own = dict(part.record(rows[each.first]).fields), label(each.position)
                fields.pop(LABEL_FIELD, None)
                self.is_duplicate(writer, each.position, fields if own is None else {**fields, LABEL_FIELD: own})
        return set(rows)

    @property
    def other_label(self) -> int:
        """The number of duplicates whose label differs from that of their first image."""
        return sum(not each.same_label for each in self.found.values())

    def save(self, path: Callable[[int], str | None]) -> None:
        """Write one JSON object for each, or remove an old file; `path` returns the path of a position."""
        lines = (
            {
                "key": format_key(each.position),
                "path": path(each.position),
                "first": format_key(each.first),
                "first_path": path(each.first),
                "same_label": each.same_label,
            }
            for _, each in sorted(self.found.items())
        )
        write_lines(self._path, DUPLICATES, self._first, lines)

    def load(self) -> None:
        """Load the list that a finished run has saved."""
        for value in read_lines(self.file):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                each = Duplicate(value["key"], int(value["first"]), bool(value["same_label"]))
                if each.position >= self._first:
                    self.found[each.position] = each


def _same(record: Record, fields: Mapping[str, bytes], image: str) -> bool:
    if record.fields.get(image) != fields[image] or image_field(record.fields) != image:
        return False
    return image not in RAW_FIELDS or _size(record.fields) == _size(fields)


def _size(fields: Mapping[str, bytes]) -> tuple[int, int]:
    members = json.loads(fields[JSON_FIELD])
    return members["width"], members["height"]
