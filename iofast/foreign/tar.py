"""Tar shards of other programs, mainly WebDataset's.

A record is all members of a shard with the same key, adjacent or not, in the place of the first. The key is the name up
to the first dot after the last slash; the rest, in lower case, is the field. The label is the decimal number in `cls`,
else the integer `label` in `json`, else none, unless the options name another member. `jpeg` becomes the field `jpg`.
There are no classes, splits or checksums.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers.columns import RowsBuilder
from iofast.containers.manifest import MAX_FIELDS
from iofast.containers.tar import Member, TarFile
from iofast.errors import ContainerError, OptionError
from iofast.foreign.cached_index import MAX_NAMES, ForeignIndex, Format, described, few_names, joined, opened
from iofast.foreign.options import ForeignOptions
from iofast.record import (
    IMAGE_FIELDS,
    JSON_FIELD,
    LABEL_FIELD,
    MAX_PAYLOAD,
    RAW_FIELDS,
    ImageInfo,
    check_field,
    image_field,
    json_members,
    raw_length,
)
from iofast.source.arrays import Strings, StringsWriter
from iofast.source.in_threads import in_threads
from iofast.source.labels import unused
from iofast.source.walk import IGNORED_FOLDERS

_MAX_JSON, _MAX_LABEL = 1 << 20, 32
_IMAGES = tuple(f".{name}" for name in ("jpeg", *IMAGE_FIELDS))  # ends of fields whose key was cut at an earlier dot
_META = re.compile(r"__[^/]*__($|/)")  # members that WebDataset ignores
_SAME = {"jpeg": "jpg"}  # names of members whose field has another name
_JSON_MEMBER = "json/"


class TarShards(Format):
    """The shards of one set, in the given order."""

    name = "webdataset"
    renames = False

    def __init__(self, paths: Sequence[str], options: ForeignOptions) -> None:
        super().__init__(paths, options)
        self.names = TarNames(options)

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
        return ForeignIndex(
            arrays=arrays,
            fields=fields,
            keys=Strings.join(scan.keys.finish() for scan in scans),
            label_from_index=self.names.label_from_index,
            left_out=tuple(self._left_out(scans, labelled=bool((arrays["label"] >= 0).any()))),
            names_seen=few_names(scan.names_seen for scan in scans),
        )

    def _left_out(self, scans: Sequence[_ShardScan], *, labelled: bool) -> Iterator[str]:
        if lost := sum(scan.left_out for scan in scans):
            yield f"members in folders of a system, or whose names make no key and field: {lost:,} left out"
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
        self.rows, self.members, self.keys = RowsBuilder(), 0, StringsWriter()
        self.fields: set[str] = set()
        self.names_seen: set[str] = set()
        self._legal: set[str] = set()  # names of fields
        self._key, self._own, self._hashes = "", dict[str, Member](), array("q")
        self._label: Member | None = None  # of the current record, if the options name a label member

    def run(self) -> None:
        """Read all members of the shard. Raises `ContainerError`."""
        tar = TarFile(opened(self.path))
        self._read(tar.members(), tar)
        if len(np.unique(self._hashes)) < len(self._hashes):  # a key comes again: bring its members together
            first: dict[str, int] = {}
            members = sorted(tar.members(), key=lambda member: first.setdefault(_key(member), len(first)))
            self._begin()
            self._read(members, tar)

    def _read(self, members: Iterable[Member], tar: TarFile) -> None:
        for member in members:
            if not is_meta(member.name):
                parts = None if _of_a_system(member.name) else key_and_name(member.name)
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
        self.keys.add(self._key.encode("utf-8", "replace"))


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
    wanted = names.json != "" or labelled is None or image in RAW_FIELDS
    if JSON_FIELD in own and wanted and own[JSON_FIELD].size <= _MAX_JSON:
        members = json_members(tar.read(own[JSON_FIELD].offset, own[JSON_FIELD].size))
    label = _integer(members.get(names.json or "label"))
    if labelled is not None and labelled.size <= _MAX_LABEL and not names.json:
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
    return described(lambda start, count: tar.read(place.offset + start, count), place.size, label)


def _integer(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else -1


class TarNames:
    """The names of `ForeignOptions`, by the names in the files. Raises `OptionError` for those that do not apply.

    `renamed` maps a member without its key to its field, `hidden` are fields that only a renamed member can become.
    `label` is the member with the label, or `json` the key of the label in the JSON member, if the options name one.
    """

    def __init__(self, options: ForeignOptions) -> None:
        names = {ours: theirs.lower() for ours, theirs in options.names.items()}
        if "path" in names:
            raise OptionError("names: the path of a sample in tar shards is its key; leave path= out")
        image, self.label = names.pop("image", None), names.pop("label", None)
        self.json, self.base = "", options.label_base
        self.renamed, self.hidden = {theirs: ours for ours, theirs in names.items()}, set(names)
        if image is not None:
            suffix = image.rpartition(".")[2]
            suffix = _SAME.get(suffix, suffix)
            self.renamed[image] = suffix if suffix in IMAGE_FIELDS else "jpg"
            self.hidden |= {*IMAGE_FIELDS, *RAW_FIELDS}
        if self.label is not None and self.label.startswith(_JSON_MEMBER):
            self.label, self.json = None, options.names["label"][len(_JSON_MEMBER) :]

    @property
    def label_from_index(self) -> bool:
        """Whether `cls` is made from the label, instead of being a member."""
        return self.label is not None or self.json != "" or self.base > 0

    def field(self, member: str, taken: Container[str]) -> str | None:
        """The field of a member, or None to leave it out. `taken`: fields that the record has already."""
        if member in self.renamed:
            return self.renamed[member]
        name = _SAME[member] if member in _SAME and _SAME[member] not in taken else member
        return None if name in self.hidden or (name == LABEL_FIELD and self.label is not None) else name


def key_and_name(path: str) -> tuple[str, str] | None:
    """Split a path into key and field (in lower case); None if it has no key.

    The result is that of WebDataset's `((?:.*/|)[^.]+)[.]([^/]*)`, which takes minutes for a hundred thousand slashes.
    """
    last = path.rfind("/")
    dot = path.find(".", last + 1)
    if dot < 0:
        return None
    if dot == last + 1 and (last < 0 or "." in path[path.rfind("/", 0, last) + 1 : last]):
        return None  # nothing before the dot
    return path[:dot], path[dot + 1 :].lower()


def _of_a_system(path: str) -> bool:
    """Whether a folder has thumbnails, resource forks or deleted files, which a folder's listing leaves out too."""
    return "/" in path and not IGNORED_FOLDERS.isdisjoint(path.lower().split("/")[:-1])


def is_meta(path: str) -> bool:
    """Whether WebDataset ignores this member."""
    return path.startswith("__") and _META.match(path) is not None
