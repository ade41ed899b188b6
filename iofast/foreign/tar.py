"""Tar shards of other programs, mainly WebDataset's.

A record is all members of a shard with the same key, adjacent or not, in the place of the first. The key is the name up
to the first dot after the last slash; the rest, in lower case, is the field. The label is the decimal number in `cls`,
else the integer `label` in `json`, else none, unless the options name another member. `jpeg` becomes the field `jpg`.
There are no classes, splits or checksums.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.containers.any_bytes import open_bytes
from iofast.containers.columns import RowsBuilder
from iofast.containers.manifest import MAX_FIELDS
from iofast.containers.tar_members import Member, TarFile
from iofast.errors import ContainerError, DecodeError, IofastError, because
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
from iofast.foreign.tar_names import TarNames, is_meta, key_and_name
from iofast.record import (
    IMAGE_FIELDS,
    JSON_FIELD,
    LABEL_FIELD,
    MAX_PAYLOAD,
    RAW_FIELDS,
    ImageInfo,
    check_field,
    image_field,
    raw_length,
)
from iofast.source.arrays import Strings
from iofast.source.in_threads import in_threads
from iofast.source.labels import unused

_MAX_JSON, _MAX_LABEL = 1 << 20, 32
_IMAGES = tuple(f".{name}" for name in ("jpeg", *IMAGE_FIELDS))  # ends of fields whose key was cut at an earlier dot


class TarShards(Format):
    """The shards of one set, in the given order."""

    name = "webdataset"

    def __init__(self, paths: Sequence[str], options: ForeignOptions) -> None:
        super().__init__(paths, options)
        self.names = TarNames.of(options)

    def scan(self, stamped: NDArray[np.int64]) -> ForeignIndex:  # noqa: ARG002
        """Read the headers of all members, several shards at a time."""
        scans = [_ShardScan(path, self.names) for path in self.paths]
        in_threads(lambda shard, _: scans[shard].run(), len(scans), " shards", "indexing", chunk=1)
        fields = tuple(sorted({name for scan in scans for name in scan.fields}))
        count, members = sum(len(scan.rows) for scan in scans), sum(scan.members for scan in scans)
        if len(fields) > MAX_FIELDS or count * len(fields) > max(16 * members, 1 << 24):
            found = f"{count} records with {len(fields)} different fields"
            raise ContainerError(f"{self.paths[0]} …: {found} are too many")
        arrays = joined([scan.rows.arrays() for scan in scans])
        arrays["format"] = np.zeros(count, np.uint8)
        return ForeignIndex(
            arrays=arrays,
            fields=fields,
            keys=Strings.join((scan.keys, scan.ends) for scan in scans),
            label_from_index=self.names.label_from_index,
            left_out=tuple(self._left_out(scans, labelled=bool((arrays["label"] >= 0).any()))),
            names_seen=few_names(scan.names_seen for scan in scans),
        )

    def named_parts(self, index: ForeignIndex) -> Iterator[NamedPart]:
        """See `Format.named_parts`: members."""
        for ours, theirs in self.options.names.items():
            if ours == "label":
                member = "json" if theirs.lower().startswith("json/") else theirs.lower()
                yield ours, theirs, "a label in", index.labelled or may_be_there(member, index.names_seen)
            else:
                exists = image_field(index.fields) is not None if ours == "image" else ours in index.fields
                yield ours, theirs, "a member", exists

    def _left_out(self, scans: Sequence[_ShardScan], *, labelled: bool) -> Iterator[str]:
        if lost := sum(scan.left_out for scan in scans):
            yield f"members whose names make no key and field: {lost:,} left out"
        if replaced := sum(scan.replaced for scan in scans):
            yield f"members that names replace by others: {replaced:,} left out"
        if dotted := next((scan.dotted for scan in scans if scan.dotted), ""):
            yield f"records have an image under another name than jpg, png or webp: {_division(dotted)}"
        if "label" in self.options.names and not labelled:
            yield f"no record has a class number in {self.options.names['label']!r}: none has a label"
        elif not labelled:
            yield from unused(few_names(scan.names_seen for scan in scans), "--names label=MEMBER")


class _ShardScan:
    """The records of one shard, and their fields."""

    def __init__(self, path: str, names: TarNames) -> None:
        self.path, self.names = path, names
        self._begin()

    def _begin(self) -> None:
        self.left_out, self.replaced, self.dotted = 0, 0, ""
        self.rows, self.members, self.keys, self.ends = RowsBuilder(), 0, bytearray(), array("Q")
        self.fields: set[str] = set()
        self.names_seen: set[str] = set()
        self._legal: set[str] = set()  # names of fields
        self._key, self._own, self._hashes = "", dict[str, Member](), array("q")
        self._label: Member | None = None  # of the current record, if the options name a label member

    def run(self) -> None:
        """Read all members of the shard. Raises `ContainerError`."""
        try:
            tar = TarFile(open_bytes(self.path))
        except IofastError:
            raise
        except OSError as error:
            raise ContainerError(f"{self.path} cannot be read: {because(error)}") from None
        self._read(tar.members(), tar)
        if len(np.unique(self._hashes)) < len(self._hashes):  # a key comes again: bring its members together
            first: dict[str, int] = {}
            members = sorted(tar.members(), key=lambda member: first.setdefault(_key(member), len(first)))
            self._begin()
            self._read(members, tar)

    def _read(self, members: Iterable[Member], tar: TarFile) -> None:
        for member in members:
            if not is_meta(member.name):
                parts = key_and_name(member.name)
                if parts is None:
                    self.left_out += 1
                    continue
                if parts[0] != self._key:
                    self._end_record(tar)
                    self._key = parts[0]
                self._add(member, parts[1])
        self._end_record(tar)

    def _add(self, member: Member, own: str) -> None:
        """Add a member of the current record."""
        if own not in self.names_seen and len(self.names_seen) < MAX_NAMES:
            self.names_seen.add(own)
        if own == self.names.label:
            self._label = member
        name = self.names.field(own, self._own)
        if name is None:
            self.replaced += own != self.names.label  # the label member is read, but becomes no field
            return
        if name in self._own:
            where = f"at offsets {self._own[name].offset} and {member.offset}"
            raise ContainerError(f"{self.path}: {self._key} has the field {name} twice, {where}")
        if name not in self._legal:
            try:
                check_field(name)
            except ContainerError:
                self.left_out += 1
                return
            if len(self._legal) >= MAX_FIELDS:
                found = f"more than {MAX_FIELDS} different fields, at offset {member.offset}"
                raise ContainerError(f"{self.path}: {found}; {_division(member.name)}")
            self._legal.add(name)
        if member.size > MAX_PAYLOAD:
            raise ContainerError(f"{self.path}: {member.name} has {member.size} bytes, more than {MAX_PAYLOAD}")
        self._own[name] = member

    def _end_record(self, tar: TarFile) -> None:
        own, self._own = self._own, {}
        label, self._label = self._label, None
        if own or label:
            self._hashes.append(hash(self._key))
        if not own:
            return
        if not self.dotted and image_field(own) is None:
            self.dotted = next((own[name].name for name in own if name.endswith(_IMAGES)), "")
        try:
            info = _describe(own, label or own.get(LABEL_FIELD), self.names, tar)
        except ContainerError as error:
            raise ContainerError(f"{self.path}: {self._key}: {error}") from None
        if self.names.label_from_index:
            own.pop(LABEL_FIELD, None)
        self.fields.update(own)
        self.members += len(own)
        self.rows.add(len(self.rows), info, [(name, member.offset, member.size, 0) for name, member in own.items()])
        self.keys += self._key.encode("utf-8", "replace") + b"\0"
        self.ends.append(len(self.keys))


def _key(member: Member) -> str:
    return (key_and_name(member.name) or ("",))[0]


def _division(name: str) -> str:
    """How a member's name is divided, in words."""
    key, own = key_and_name(name) or (name, "")
    return f"a key ends at the first dot, so {name!r} is the field {own!r} of {key!r}"


def _describe(own: Mapping[str, Member], labelled: Member | None, names: TarNames, tar: TarFile) -> ImageInfo:
    """Label, upright width and height, orientation; unknown ones as -1, 0, 0, 1."""
    members: dict[str, Any] = {}
    image = image_field(own)
    wanted = names.json is not None or labelled is None or image in RAW_FIELDS
    if JSON_FIELD in own and wanted and own[JSON_FIELD].size <= _MAX_JSON:
        try:
            parsed = json.loads(tar.read(own[JSON_FIELD].offset, own[JSON_FIELD].size))
            members = parsed if isinstance(parsed, dict) else {}
        except (ValueError, RecursionError):
            pass  # not JSON: the record has no label
    label = _integer(members.get(names.json or "label"))
    if labelled is not None and labelled.size <= _MAX_LABEL and names.json is None:
        text = tar.read(labelled.offset, labelled.size).strip()
        label = int(text) if text.isdigit() and int(text) < 1 << 31 else -1
    if 0 <= label < names.base:
        raise ContainerError(f"its label is {label}, expected {names.base} (the label base) or more")
    label -= names.base if label >= 0 else 0
    if image in RAW_FIELDS:
        width, height = _integer(members.get("width")), _integer(members.get("height"))
        if width > 0 and height > 0 and raw_length(width, height) == own[image].size:
            return ImageInfo(label, width, height)
    if image not in IMAGE_FIELDS:
        return ImageInfo(label)
    place = own[image]
    try:
        header = kernel.probe(lambda start, count: tar.read(place.offset + start, count), place.size)
    except DecodeError:
        return ImageInfo(label)
    return ImageInfo(label, header.width, header.height, header.orientation)


def _integer(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else -1
