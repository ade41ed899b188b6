"""What all writers do: check records, note where they lie, write the index. A subclass stores records in its format.

A container is written in sections of consecutive positions: a shard, or one transaction of an LMDB file. A finished
section is durable, and a file of columns `rows-NNNNNN` beside it says what it has. So a later run goes on after the
finished sections, and whoever has all of them can write index and manifest.
"""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from iofast.containers.columns import FACTS, Arrays, RowsBuilder, fields_in, load, store
from iofast.containers.index import Fingerprint, IndexWriter, Layout
from iofast.containers.manifest import MAX_COUNT, MAX_FIELDS, WHOLE, Description, Manifest, Shard, check_split_name
from iofast.errors import ContainerError, IofastError, TargetError, because
from iofast.kernel import crc32c
from iofast.record import KEY_WIDTH, LABEL_FIELD, LONGEST_SIDE, MAX_PAYLOAD, ImageInfo, check_field, format_key

INDEX_SUFFIX = ".index"
TRANSACTION_BYTES = 64 << 20  # of payloads in a section of LMDB, about: LMDB keeps them in memory until the commit


class Section(NamedTuple):
    """Consecutive positions [start, stop) of one split that become durable together."""

    number: int
    split: str
    start: int
    stop: int

    @property
    def rows(self) -> str:
        """The name of the file with the columns of its records."""
        return f"rows-{self.number:06d}"


@dataclass(frozen=True, slots=True)
class Finished:
    """A durable section: `rows` is the file with the columns of its `count` records; a shard has `size` bytes.

    `notes` are the caller's.
    """

    section: Section
    rows: Path
    count: int
    size: int
    fields: Sequence[str]
    notes: Mapping[str, Any] = field(default_factory=dict)

    def columns(self) -> Arrays:
        """The columns of its records."""
        return load(self.rows)[1]


class Writer(ABC):
    """Writes records, section by section, into a container that stays invisible until it is published.

    `folder` is the `.partial` of the container `name`. Equal records give equal bytes. Errors: `ContainerError` for an
    invalid record, of which nothing is written; `TargetError` if the disk is full or cannot be written to, after which
    only `abort` may be called.
    """

    def __init__(
        self, folder: str | os.PathLike[str], name: str, description: Description, key_width: int = KEY_WIDTH
    ) -> None:
        self.folder, self.name, self.description, self.key_width = Path(folder), name, description, key_width
        self.finished: dict[int, Finished] = {}
        self._section: Section | None = None
        self._rows = RowsBuilder()
        self._fields: set[str] = set()  # legal names that occurred
        self._last = -1
        self._bytes = 0  # of payloads in the open section

    def resume(self, sections: Iterable[Section]) -> list[Section]:
        """Find those of the sections that an earlier run finished, remove the rest of its work on them.

        Returns those that are left.
        """
        left = []
        with self._errors():
            for section in sections:
                found = self._find(section)
                if found is None:
                    left.append(section)
                else:
                    self.finished[section.number] = found
            for section in left:
                self._remove(section)
        return left

    def begin(self, section: Section) -> None:
        """Begin a section. Sections of one writer come in the order of their positions."""
        if self._section is not None:
            raise ContainerError(f"{self.name}: section {self._section.number} is not finished yet")
        check_split_name(section.split)
        self._section, self._rows, self._last, self._bytes = section, RowsBuilder(), section.start - 1, 0
        with self._errors():
            self._begin(section)

    def write(
        self, position: int, fields: Mapping[str, bytes], info: ImageInfo, crcs: Mapping[str, int] | None = None
    ) -> None:
        """Append the record of `position`, greater than any before. `crcs`: CRC32C of each payload, if known."""
        if self._section is None:
            raise ContainerError(f"{self.name}: the writer is closed, or no section was begun")
        key = format_key(position, self.key_width)
        try:
            if position <= self._last:
                raise ContainerError(f"its position does not follow {self._last}, the one before")
            self._check_fields(fields)
            self._check_payloads(fields, info)
        except ContainerError as error:
            raise ContainerError(f"record {key}: {error}") from None
        if crcs is None:
            crcs = {name: crc32c(payload) for name, payload in fields.items()}
        with self._errors():
            offsets = self._append(key, fields, info)
        self._fields.update(fields)
        self._last = position
        self._bytes += sum(map(len, fields.values()))
        self._rows.add(
            position, info, [(name, offsets.get(name, 0), len(fields[name]), crcs[name]) for name in sorted(fields)]
        )

    def commit(self, notes: Mapping[str, object] | None = None) -> Finished:
        """Finish the section: its records are durable when this returns."""
        section = self._section
        if section is None:
            raise ContainerError(f"{self.name}: no section was begun")
        with self._errors():
            size, about = self._end(section)
            members = {"section": list(section), "size": size, "shape": self._shape(), "notes": notes or {}}
            rows, columns = self.folder / section.rows, self._rows.arrays()
            store(rows, {**members, **about, "count": len(self._rows)}, columns)
            self._commit(section)
        done = Finished(section, rows, len(self._rows), size, fields_in(columns), notes or {})
        self.finished[section.number] = done
        self._section, self._rows = None, RowsBuilder()
        return done

    def finish(self) -> Manifest:
        """Write index and manifest of all finished sections, make everything durable, and close."""
        if self._section is not None:
            self.commit()
        with self._errors():
            manifest = self._finish([self.finished[number] for number in sorted(self.finished)])
        self.abort()
        return manifest

    def abort(self) -> None:  # noqa: B027 - a folder has nothing open
        """Close all files. Finished sections stay for a later `resume`."""

    @property
    def files(self) -> dict[str, str]:
        """Staged names → final names, in the order of publishing: the argument of `Target.publish`."""
        return {self.name: self.name}

    def size_with(self, position: int, fields: Mapping[str, bytes], info: ImageInfo) -> int:  # noqa: ARG002
        """Bytes of the payloads in the open section if it had this record, too; of a shard, those of its file."""
        return self._bytes + sum(map(len, fields.values()))

    @abstractmethod
    def _begin(self, section: Section) -> None:
        """Begin to write a section."""

    @abstractmethod
    def _append(self, key: str, fields: Mapping[str, bytes], info: ImageInfo) -> Mapping[str, int]:
        """Write one record; the offset of each payload in the section's file, if that is known yet."""

    def _end(self, section: Section) -> tuple[int, dict[str, object]]:  # noqa: ARG002
        """End a section before its rows are stored: bytes of its file, and what a resumed run compares."""
        return 0, {}

    def _commit(self, section: Section) -> None:  # noqa: B027 - shards are valid before
        """Make a section valid after its rows are stored."""

    @abstractmethod
    def _finish(self, done: Sequence[Finished]) -> Manifest:
        """Write index and manifest."""

    def _remove(self, section: Section) -> None:
        """Remove what an unfinished run left of a section."""
        (self.folder / section.rows).unlink(missing_ok=True)

    def _is_valid(self, section: Section, members: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Whether the files of a section are those that its rows describe."""
        return True

    def _shape(self) -> list[object]:
        """Everything, except the records, that determines the bytes of a section; JSON's types."""
        return [self.key_width]

    def _find(self, section: Section) -> Finished | None:
        rows = self.folder / section.rows
        with contextlib.suppress(OSError, ContainerError, LookupError, TypeError, ValueError):
            members, columns = load(rows)
            known = members["section"] == list(section) and members["shape"] == self._shape()
            if known and all(name in columns for name in FACTS) and self._is_valid(section, members):
                fields, notes = fields_in(columns), dict(members["notes"])
                self._fields.update(fields)
                return Finished(section, rows, int(members["count"]), int(members["size"]), fields, notes)
        return None

    def _check_fields(self, fields: Mapping[str, bytes]) -> None:
        if not fields:
            raise ContainerError("it has no field")
        new = fields.keys() - self._fields
        for name in new:
            check_field(name)
        if len(self._fields) + len(new) > MAX_FIELDS:
            raise ContainerError(f"a container has at most {MAX_FIELDS} fields")

    def _check_payloads(self, fields: Mapping[str, bytes], info: ImageInfo) -> None:
        for name, payload in fields.items():
            if not isinstance(payload, bytes) or len(payload) > MAX_PAYLOAD:
                raise ContainerError(f"field {name} must be up to {MAX_PAYLOAD} bytes, found {type(payload).__name__}")
        if not (0 <= info.width <= LONGEST_SIDE and 0 <= info.height <= LONGEST_SIDE and 1 <= info.orientation <= 8):
            raise ContainerError(f"{info.width}×{info.height}, orientation {info.orientation} cannot be indexed")
        classes = self.description.classes
        if classes is not None and info.label >= len(classes):
            raise ContainerError(f"it has label {info.label}, but there are {len(classes)} classes")
        if not -1 <= info.label < 1 << 31:
            raise ContainerError(f"label {info.label} is not −1 … 2³¹−1")
        text = fields.get(LABEL_FIELD)
        if (b"" if text is None else text) != (b"" if info.label == -1 else b"%d" % info.label):
            raise ContainerError(f"its label is {info.label} but its field {LABEL_FIELD} is {text!r:.40}")

    def _manifest(self, done: Sequence[Finished], shards: tuple[Shard, ...]) -> Manifest:
        """The manifest of these sections, with zeros in place of the fingerprint and the checksums of the index."""
        description, count = self.description, sum(each.count for each in done)
        if count > MAX_COUNT:
            raise ContainerError(f"a container holds at most {MAX_COUNT} records")
        fields = tuple(sorted({name for each in done for name in each.fields}))
        return Manifest(
            count=count,
            fields=fields,
            splits=_ranges(done) or {WHOLE: ((0, 0),)},
            fingerprint=f"sha256:{'0' * 64}",
            shards=shards,
            classes=description.classes,
            class_order=description.class_order,
            recipe=dict(description.recipe or {}),
            seed=description.seed,
            key_width=self.key_width,
            index=dict.fromkeys(Layout(count, fields).starts, "0" * 8),
        )

    def _indexed(
        self, manifest: Manifest, columns: Iterable[Arrays], write: Callable[[int, memoryview], object]
    ) -> Manifest:
        """Write the index of all records, whose `columns` come in their order; return the completed manifest."""
        index = IndexWriter(Layout(manifest.count, manifest.fields), write)
        fingerprint, last = Fingerprint(self.key_width), -1
        for part in columns:
            position = part["position"]
            if not len(position):
                continue
            if int(position[0]) <= last or (position[1:] <= position[:-1]).any():
                raise ContainerError(f"positions do not rise after {last}")
            last = int(position[-1])
            fingerprint.add(part)
            index.add(part)
        return replace(manifest, fingerprint=str(fingerprint), index=index.sums())

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the system into `TargetError`."""
        try:
            yield
        except IofastError:
            raise
        except OSError as error:
            raise TargetError(f"{self.folder / self.name} cannot be written: {because(error)}") from None


def _ranges(done: Sequence[Finished]) -> dict[str, tuple[tuple[int, int], ...]]:
    """The ranges of dense indices of each split."""
    ranges: dict[str, tuple[tuple[int, int], ...]] = {}
    first, last = 0, ""
    for each in done:
        split, stop = each.section.split, first + each.count
        if stop > first:
            own = ranges.get(split, ())
            ranges[split] = (*own[:-1], (own[-1][0], stop)) if split == last else (*own, (first, stop))
            first, last = stop, split
    return ranges
