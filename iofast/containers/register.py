"""`Register`: the checks, fingerprint and counts of records that every Writer needs."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np

from iofast.containers.entries import EntryColumns, RecordEntry
from iofast.containers.fingerprint import Fingerprint
from iofast.containers.manifest import (
    MAX_COUNT,
    MAX_FIELDS,
    WHOLE,
    Description,
    Manifest,
    Shard,
    check_split_name,
)
from iofast.errors import ContainerError
from iofast.kernel import crc32c
from iofast.record import KEY_WIDTH, LABEL_FIELD, LONGEST_SIDE, MAX_PAYLOAD, ImageInfo, check_field, format_key

_TOGETHER = 1024  # records that are hashed together: one by one they take five times as long


class Register:
    """Checks, fingerprint and counts of the records of one container, in writing order. Uses constant memory."""

    def __init__(self, key_width: int = KEY_WIDTH) -> None:
        self.count = 0
        self.key_width = key_width
        self.position = -1  # of the last record
        self._fingerprint = Fingerprint(key_width)
        self._recent: list[RecordEntry] = []  # not in the fingerprint yet
        self._fields: set[str] = set()
        self._runs: list[tuple[str, int]] = []  # split name and first dense index of each range
        self._top = -1  # the greatest label
        self._split = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field so far, sorted."""
        return tuple(sorted(self._fields))

    def add(self, position: int, fields: Mapping[str, bytes], info: ImageInfo, split: str) -> RecordEntry:
        """Register one record and return its entry, with offsets 0.

        Raises `ContainerError` for an invalid record and leaves the register unchanged.
        """
        key = format_key(position, self.key_width)
        try:
            self._check(position, fields.keys(), split, self.position)
            _check_payloads(fields, info)
        except ContainerError as error:
            raise ContainerError(f"record {key}: {error}") from None
        entries = tuple([(name, len(fields[name]), crc32c(fields[name]), 0) for name in sorted(fields)])
        entry = RecordEntry(position, info, entries)
        self._count(position, info.label, fields.keys(), split, 1)
        self._recent.append(entry)
        if len(self._recent) == _TOGETHER:
            self._hash_recent()
        return entry

    def adopt(self, records: EntryColumns, split: str) -> None:
        """Register records that are already stored. Raises `ContainerError` for an invalid one."""
        position = records.position
        format_key(int(position.max()), self.key_width)
        filled = np.any([own.there for own in records.fields.values()], axis=0) & np.ones(len(records), np.bool_)
        falling = np.append(int(position[0]) <= self.position, position[1:] <= position[:-1])
        new = [own.there for name, own in records.fields.items() if name not in self._fields]
        wrong = np.flatnonzero(falling | ~filled)
        row = int(wrong[0]) if wrong.size else int(np.argmax(np.any(new, axis=0))) if new else 0
        own = {name for name, places in records.fields.items() if not wrong.size or places.there[row]}
        try:
            self._check(int(position[row]), own, split, int(position[row - 1]) if row else self.position)
        except ContainerError as error:
            raise ContainerError(f"record {format_key(int(position[row]), self.key_width)}: {error}") from None
        self._hash_recent()
        self._fingerprint.add(records.position, records.fields)
        self._count(int(position[-1]), int(records.label.max()), own, split, len(records))

    def manifest(self, description: Description, shards: tuple[Shard, ...]) -> Manifest:
        """The manifest of all records. Raises `ContainerError` if there are fewer classes than labels."""
        if description.classes is not None and self._top >= len(description.classes):
            raise ContainerError(f"a record has label {self._top}, but there are {len(description.classes)} classes")
        self._hash_recent()
        stops = [*(start for _, start in self._runs[1:]), self.count]
        ranges = {name: ((start, stop),) for (name, start), stop in zip(self._runs, stops, strict=bool(self._runs))}
        return Manifest(
            count=self.count,
            fields=self.fields,
            splits=ranges or {WHOLE: ((0, 0),)},
            fingerprint=str(self._fingerprint),
            shards=shards,
            classes=description.classes,
            class_order=description.class_order,
            recipe=dict(description.recipe or {}),
            seed=description.seed,
            key_width=self.key_width,
        )

    def _count(self, position: int, label: int, fields: Set[str], split: str, count: int) -> None:
        """Add checked records to the counts: the last position, the greatest label, and all fields."""
        if split != self._split:
            self._runs.append((split, self.count))
        self._split, self.position, self._top = split, position, max(self._top, label)
        self._fields |= fields
        self.count += count

    def _hash_recent(self) -> None:
        if self._recent:
            records = EntryColumns.of(self._recent)
            self._fingerprint.add(records.position, records.fields)
            self._recent.clear()

    def _check(self, position: int, fields: Set[str], split: str, last: int) -> None:
        if position <= last:
            raise ContainerError(f"its position does not follow {last}, the one before")
        if self.count >= MAX_COUNT:
            raise ContainerError(f"a container holds at most {MAX_COUNT} records")
        if not fields:
            raise ContainerError("it has no field")
        for name in fields - self._fields:
            check_field(name)
        if len(self._fields) + len(fields - self._fields) > MAX_FIELDS:
            raise ContainerError(f"a container has at most {MAX_FIELDS} fields")
        if split != self._split:
            self._check_split(split)

    def _check_split(self, split: str) -> None:
        check_split_name(split)
        if any(split == own for own, _ in self._runs):
            raise ContainerError(f"split {split} was left and may not be entered again")
        if any(split != own and WHOLE in (split, own) for own, _ in self._runs):
            raise ContainerError(f"{WHOLE!r} means the union and cannot be one of several splits")


def _check_payloads(fields: Mapping[str, bytes], info: ImageInfo) -> None:
    for name, payload in fields.items():
        if not isinstance(payload, bytes) or len(payload) > MAX_PAYLOAD:
            raise ContainerError(f"field {name} must be up to {MAX_PAYLOAD} bytes, found {type(payload).__name__}")
    if not (0 <= info.width <= LONGEST_SIDE and 0 <= info.height <= LONGEST_SIDE and 1 <= info.orientation <= 8):
        raise ContainerError(f"{info.width}×{info.height}, orientation {info.orientation} cannot be indexed")
    if not -1 <= info.label < 1 << 31:
        raise ContainerError(f"label {info.label} is not −1 … 2³¹−1")
    text = fields.get(LABEL_FIELD)
    if (b"" if text is None else text) != (b"" if info.label == -1 else b"%d" % info.label):
        raise ContainerError(f"its label is {info.label} but its field {LABEL_FIELD} is {text!r:.40}")
