"""What the members of a foreign tar shard are called in a record, and which of them says the label."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Self

from iofast.foreign.options import ForeignOptions
from iofast.record import IMAGE_FIELDS, LABEL_FIELD, RAW_FIELDS

_META = re.compile(r"__[^/]*__($|/)")  # what WebDataset leaves out
_SAME = {"jpeg": "jpg"}  # names of a format that readers here know by another
_JSON_MEMBER = "json/"


@dataclass(frozen=True, slots=True)
class TarNames:
    """The names of `ForeignOptions`, looked up from the files' side."""

    renamed: dict[str, str]  # what a member is called behind its key → the field
    hidden: frozenset[str]  # fields that only a renamed member may have
    label: str | None  # the member that holds the label, where it was named
    json: str | None  # or the member of the JSON object
    base: int

    @classmethod
    def of(cls, options: ForeignOptions) -> Self:
        """Raises `OptionError` for what tar shards have no use for."""
        options.refuse("tar shards", "labels", "channels")
        names = {ours: theirs.lower() for ours, theirs in options.names.items()}
        options.refuse("tar shards", *(["names"] if "path" in names else []))
        image, label = names.pop("image", None), names.pop("label", None)
        renamed = {theirs: ours for ours, theirs in names.items()}
        hidden = set(names)
        if image is not None:
            suffix = image.rpartition(".")[2]
            suffix = _SAME.get(suffix, suffix)
            renamed[image] = suffix if suffix in IMAGE_FIELDS else "jpg"
            hidden |= {*IMAGE_FIELDS, *RAW_FIELDS}
        json = None
        if label is not None and label.startswith(_JSON_MEMBER):
            json, label = options.names["label"][len(_JSON_MEMBER) :], None
        return cls(renamed, frozenset(hidden), label, json, options.label_base)

    @property
    def says_label(self) -> bool:
        """Whether `cls` is what these options make of the files, and no member."""
        return self.label is not None or self.json is not None or self.base > 0

    def field(self, member: str, taken: Container[str]) -> str | None:
        """The field of a member called this behind its key; None = it is left out. `taken` are the record's so far."""
        if member in self.renamed:
            return self.renamed[member]
        name = _SAME[member] if member in _SAME and _SAME[member] not in taken else member
        return None if name in self.hidden or (name == LABEL_FIELD and self.label is not None) else name


def key_and_name(path: str) -> tuple[str, str] | None:
    """Key of the record and, in lower case, what follows it; None where the path makes no key.

    As WebDataset's `((?:.*/|)[^.]+)[.]([^/]*)` has it, which takes minutes for a name of a hundred thousand slashes.
    """
    last = path.rfind("/")
    dot = path.find(".", last + 1)
    if dot < 0:
        return None
    if dot == last + 1 and (last < 0 or "." in path[path.rfind("/", 0, last) + 1 : last]):
        return None  # nothing stands before the dot; a folder without one counts as the name
    return path[:dot], path[dot + 1 :].lower()


def is_meta(path: str) -> bool:
    """Whether WebDataset leaves this member out."""
    return _META.match(path) is not None
