"""Map the members of a foreign tar shard to fields, and find the member with the label."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Self

from iofast.errors import OptionError
from iofast.foreign.options import ForeignOptions
from iofast.record import IMAGE_FIELDS, LABEL_FIELD, RAW_FIELDS

_META = re.compile(r"__[^/]*__($|/)")  # members that WebDataset ignores
_SAME = {"jpeg": "jpg"}  # names of members whose field has another name
_JSON_MEMBER = "json/"


@dataclass(frozen=True, slots=True)
class TarNames:
    """The names of `ForeignOptions`, indexed by the names in the files."""

    renamed: dict[str, str]  # name of a member without its key → field
    hidden: frozenset[str]  # fields that only a renamed member can become
    label: str | None  # the member with the label, if the options name one
    json: str | None  # or the key of the label in the JSON member
    base: int

    @classmethod
    def of(cls, options: ForeignOptions) -> Self:
        """Raise `OptionError` for options that do not apply to tar shards."""
        names = {ours: theirs.lower() for ours, theirs in options.names.items()}
        if "path" in names:
            raise OptionError("names: the path of a sample in tar shards is its key; leave path= out")
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
    def label_from_index(self) -> bool:
        """Whether `cls` is made from the label, instead of being a member."""
        return self.label is not None or self.json is not None or self.base > 0

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


def is_meta(path: str) -> bool:
    """Whether WebDataset ignores this member."""
    return path.startswith("__") and _META.match(path) is not None
