"""The manifest: everything about a container as a whole. docs/format.md section 2 is its specification."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, TypeVar

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from iofast.errors import ContainerError
from iofast.option import CLASS_ORDERS
from iofast.record import KEY_WIDTH, check_field

VERSION = 4
MAX_COUNT = 1 << 40  # also the most samples of an order
MAX_FIELDS = 1024
MAX_CLASSES = 1 << 20
MAX_CLASS_NAME = 4096
MAX_BYTES = 64 << 20
WHOLE = "all"  # the only split of a set without splits; in other sets, the union of all splits

T = TypeVar("T")
Ranges = tuple[tuple[int, int], ...]

_SPLIT = re.compile(r"[0-9A-Za-z_-]{1,64}", re.ASCII)
# of a shard: a file name, which contains no half of a surrogate pair
_FILE_NAME = re.compile(r"(?!\.{1,2}\Z)[^/\0\ud800-\udc7f\udd00-\udfff]*")
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_MARK = b'"crc32c":"'
_BLANK = "00000000"
_SUM = re.compile(r"[0-9a-f]{8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a container. `name` is relative to the manifest's folder; "" is the file that has the manifest."""

    name: str
    count: int
    size: int  # bytes of the file


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about a container that does not grow with its records and does not depend on the run that made it.

    `splits` maps a split's name to its `[start, stop)` ranges of dense indices; together they cover 0 … count once. A
    set without splits has the one split "all". `index`: the CRC32C of each column of the index, as eight hex digits;
    `transaction`: LMDB's number of the transaction that wrote the manifest. Raises `ContainerError` if a value
    contradicts docs/format.md.
    """

    count: int
    fields: tuple[str, ...]
    splits: Mapping[str, Ranges]
    fingerprint: str
    shards: tuple[Shard, ...]
    classes: tuple[str, ...] | None = None
    class_order: str = "lexicographic"
    recipe: Mapping[str, object] = field(default_factory=dict)
    seed: int | None = None
    key_width: int = KEY_WIDTH
    index: Mapping[str, str] = field(default_factory=dict)
    transaction: int | None = None
    version: int = VERSION

    def __post_init__(self) -> None:
        _check_version(self.version)
        _integer("count", self.count, 0, MAX_COUNT)
        _integer("key_width", self.key_width, 1, 20)
        _check_fields(self.fields)
        _check_classes(self.classes, self.class_order)
        check_splits(self.splits, self.count)
        for name in ("seed", "transaction"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, (1 << 64) - 1)
        _check_shards(self.shards, self.count)
        for name, own in self.index.items():
            if not _SUM.fullmatch(_typed(f"checksum of {name!r:.80}", own, str)):
                raise ContainerError(f"the column {name!r:.80} of the index cannot have the checksum {own!r:.80}")
        if not _FINGERPRINT.fullmatch(_typed("fingerprint", self.fingerprint, str)):
            raise ContainerError(f"fingerprint is not sha256:<64 hex digits>, found {self.fingerprint!r}")

    def to_json(self) -> bytes:
        """The canonical text, which contains its own CRC32C. Raises `ContainerError` if the recipe is not JSON."""
        members = {each.name: getattr(self, each.name) for each in fields(self)}
        shards = [{"count": shard.count, "name": shard.name, "size": shard.size} for shard in self.shards]
        return seal({**members, "format": "iofast", "shards": shards})

    @staticmethod
    def from_json(data: bytes, where: str) -> Manifest:
        """The manifest in `data`. Raises `ContainerError`, naming `where`, unless all of it is valid."""
        try:
            return _parse(data)
        except ContainerError as error:
            raise ContainerError(f"{where}: {error}") from None

    def ranges(self) -> list[tuple[str, int, int]]:
        """Split, start and stop of each range that has records, in the order of the records."""
        each = [(name, start, stop) for name, own in self.splits.items() for start, stop in own if stop > start]
        return sorted(each, key=lambda item: item[1])

    def indices(self, split: str = WHOLE) -> NDArray[np.int64]:
        """The dense indices of a split, range after range: (n,). Of "all": every index, whatever the splits."""
        spans = ((0, self.count),) if split == WHOLE else self.splits[split]
        return np.concatenate([np.arange(*span, dtype=np.int64) for span in spans])


@dataclass(frozen=True, slots=True)
class Description:
    """The part of the manifest that a writer cannot find out itself."""

    classes: tuple[str, ...] | None = None
    class_order: str = "lexicographic"  # lexicographic | natural | file
    recipe: Mapping[str, object] | None = None  # every option that shaped the pixels, and library versions
    seed: int | None = None  # of the packing permutation


def check_split_name(name: str) -> str:
    """Return `name` if it is a legal name of a split ("all" included), else raise `ContainerError`."""
    if not _SPLIT.fullmatch(name):
        raise ContainerError(f"split name {name!r} is not 1 to 64 of the characters 0-9 A-Z a-z _ -")
    return name


def check_splits(splits: Mapping[str, Ranges], count: int) -> None:
    """Raise `ContainerError` unless the ranges of all splits cover 0 … count exactly once."""
    if not splits or (WHOLE in splits and len(splits) > 1):
        raise ContainerError(f"splits are empty, or {WHOLE!r} is one of several: {sorted(splits)}")
    ranges: list[tuple[int, int]] = []
    for name, own in splits.items():
        check_split_name(name)
        for start, stop in own:
            _integer(f"split {name} start", start, 0, count)
            _integer(f"split {name} stop", stop, start if count == 0 else start + 1, count)
        if not own or list(own) != sorted(own):
            raise ContainerError(f"the ranges of split {name} are missing or do not rise: {list(own)}")
        ranges += own
    place = 0
    for start, stop in sorted(ranges):
        if start != place:
            raise ContainerError(f"the ranges of the splits overlap or leave a gap at record {min(start, place)}")
        place = stop
    if place != count:
        raise ContainerError(f"the splits end at record {place}, but there are {count} records")


def _integer(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ContainerError(f"{name} must be an integer from {low} to {high}, found {value!r:.80}")
    return value


def _check_version(version: object) -> None:
    if version != VERSION or isinstance(version, bool):
        earlier = isinstance(version, int) and 0 < version < VERSION
        advice = ", of an earlier iofast: remove it and pack again" if earlier else ""
        raise ContainerError(f"manifest version must be {VERSION}, found {version!r:.40}{advice}")


def _check_fields(fields: tuple[str, ...]) -> None:
    if len(fields) > MAX_FIELDS:
        raise ContainerError(f"{len(fields)} fields are more than {MAX_FIELDS}")
    for name in fields:
        check_field(name)
    if list(fields) != sorted(set(fields)):
        raise ContainerError(f"fields are not sorted, or one occurs twice: {', '.join(fields):.200}")


def _check_classes(classes: tuple[str, ...] | None, order: str) -> None:
    if order not in CLASS_ORDERS:
        raise ContainerError(f"class_order must be one of {', '.join(CLASS_ORDERS)}, found {order!r:.80}")
    if classes is None:
        return
    if len(classes) > MAX_CLASSES:
        raise ContainerError(f"{len(classes)} classes are more than {MAX_CLASSES}")
    if any(len(name) > MAX_CLASS_NAME for name in classes) or len(set(classes)) != len(classes):
        raise ContainerError(f"a class name occurs twice or is longer than {MAX_CLASS_NAME} characters")


def _check_shards(shards: tuple[Shard, ...], count: int) -> None:
    for shard in shards:  # there may be 100,000: messages are made only for errors
        if not _FILE_NAME.fullmatch(shard.name):
            raise ContainerError(f"shard name {shard.name!r} is not a plain file name")
        if not (
            type(shard.count) is type(shard.size) is int and 0 <= shard.count <= count and 0 <= shard.size < 1 << 63
        ):
            _integer(f"shard {shard.name!r} count", shard.count, 0, count)
            _integer(f"shard {shard.name!r} size", shard.size, 0, (1 << 63) - 1)
    if sum(shard.count for shard in shards) != count or len({shard.name for shard in shards}) != len(shards):
        raise ContainerError(f"the counts of the shards do not sum to {count}, or a shard occurs twice")


def _parse(data: bytes) -> Manifest:
    members = unseal(data)
    if members.get("format") != "iofast":
        raise ContainerError('the manifest has no "format": "iofast"')
    _check_version(members.get("version"))  # first: another version may have other members
    _check_seal(data)
    known = {each.name for each in fields(Manifest)}
    if strange := set(members) ^ (known | {"format", "crc32c"}):
        raise ContainerError(f"members missing or unknown in the manifest: {', '.join(sorted(strange)):.200}")
    splits = _typed("splits", members["splits"], dict)
    ranges = {name: tuple(_range(name, each) for each in _typed(name, own, list)) for name, own in splits.items()}
    manifest = Manifest(
        **{name: members[name] for name in known}
        | {
            "fields": _strings("fields", members["fields"]),
            "classes": None if members["classes"] is None else _strings("classes", members["classes"]),
            "splits": dict(sorted(ranges.items(), key=lambda item: item[1])),  # in the order of the records
            "shards": tuple(map(_shard, _typed("shards", members["shards"], list))),
            "index": _typed("index", members["index"], dict),
            "recipe": _typed("recipe", members["recipe"], dict),
        }
    )
    if manifest.count and not manifest.fields:
        raise ContainerError(f"there are {manifest.count} records, but no fields")
    return manifest


def seal(members: Mapping[str, object]) -> bytes:
    """Canonical JSON of `members` and of `crc32c`. Raises `ContainerError` for values that JSON does not have."""
    blank = {**members, "crc32c": _BLANK}
    try:
        text = json.dumps(blank, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ContainerError(f"the manifest cannot be written as JSON: {error}") from None
    if len(text) > MAX_BYTES:
        raise ContainerError(f"the manifest has {len(text)} bytes, more than {MAX_BYTES}")
    place = text.index(_MARK) + len(_MARK)
    return text[:place] + b"%08x" % google_crc32c.value(text) + text[place + 8 :]


def unseal(data: bytes) -> dict[str, Any]:
    """The object in sealed text; `crc32c` is not checked yet, and spaces may follow. Raises `ContainerError`."""
    if len(data) > MAX_BYTES + 64:
        raise ContainerError(f"the manifest has {len(data)} bytes, more than {MAX_BYTES}")
    try:
        text = data.decode()
        parsed = json.loads(text, object_pairs_hook=_no_twins, parse_constant=_no_constant, parse_float=_finite)
    except ContainerError:
        raise
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"the manifest is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ContainerError("the manifest is not a JSON object")
    return parsed


def _check_seal(data: bytes) -> None:
    """Raise `ContainerError` unless the text has the CRC32C of its own member `crc32c`."""
    text = data.rstrip(b" ")
    place = text.find(_MARK) + len(_MARK)
    found = text[place : place + 8]
    expected = b"%08x" % google_crc32c.value(text[:place] + _BLANK.encode() + text[place + 8 :])
    if found != expected:
        raise ContainerError(f"the manifest is damaged: expected CRC32C {expected.decode()}, found {found!r}")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ContainerError("a name occurs twice in one object of the manifest")
    return members


def _no_constant(text: str) -> NoReturn:
    raise ContainerError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_constant(text)


def _typed(name: str, value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ContainerError(f"{name} must be of JSON type {kind.__name__}, found {value!r:.80}")
    return value


def _strings(name: str, value: object) -> tuple[str, ...]:
    return tuple(_typed(name, item, str) for item in _typed(name, value, list))


def _range(split: str, value: object) -> tuple[int, int]:
    pair = [_integer(f"split {split!r:.80}", item, 0, MAX_COUNT) for item in _typed(split, value, list)]
    if len(pair) != 2:
        raise ContainerError(f"split {split!r:.80}: a range must be [start, stop], found {value!r:.80}")
    return pair[0], pair[1]


def _shard(item: Any) -> Shard:
    if _typed("shard", item, dict).keys() != {"count", "name", "size"}:
        raise ContainerError(f"a shard must have count, name and size, found {sorted(item)!r:.200}")
    return Shard(_typed("shard name", item["name"], str), item["count"], item["size"])
