"""The manifest: everything about a container as a whole. docs/format.md section 2 is its specification."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from iofast.containers.sealed import check_seal, seal, unseal
from iofast.errors import ContainerError
from iofast.record import KEY_WIDTH, check_field

VERSION = 3
MAX_COUNT = 1 << 40  # also the most samples of an order
MAX_FIELDS = 1024
MAX_CLASSES = 1 << 20
MAX_CLASS_NAME = 4096
CLASS_ORDERS = ("lexicographic", "natural", "file")
WHOLE = "all"  # the only split of a set without splits; in other sets, the union of all splits

T = TypeVar("T")

_SPLIT = re.compile(r"[0-9A-Za-z_-]{1,64}", re.ASCII)
# of a shard: a file name, which contains no half of a surrogate pair
_FILE_NAME = re.compile(r"(?!\.{1,2}\Z)[^/\0\ud800-\udc7f\udd00-\udfff]*")
_SHARD_MEMBERS = {"count", "name", "size"}
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_SEAL = re.compile(r"[0-9a-f]{8}", re.ASCII)


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
    set without splits has the one split "all". `index`: bytes of each piece of the index, and the CRC32C of its header;
    `transaction`: LMDB's number of the transaction that wrote the manifest. Raises `ContainerError` if a value
    contradicts docs/format.md.
    """

    count: int
    fields: tuple[str, ...]
    splits: Mapping[str, tuple[tuple[int, int], ...]]
    fingerprint: str
    shards: tuple[Shard, ...]
    classes: tuple[str, ...] | None = None
    class_order: str = "lexicographic"
    recipe: Mapping[str, object] = field(default_factory=dict)
    seed: int | None = None
    key_width: int = KEY_WIDTH
    index: tuple[tuple[int, str], ...] = ()
    transaction: int | None = None
    version: int = VERSION

    def __post_init__(self) -> None:
        _check_version(self.version)
        _integer("count", self.count, 0, MAX_COUNT)
        _integer("key_width", self.key_width, 1, 20)
        _check_fields(self.fields)
        _check_classes(self.classes, self.class_order)
        check_splits(self.splits, self.count)
        if self.seed is not None:
            _integer("seed", self.seed, 0, (1 << 64) - 1)
        _check_shards(self.shards, self.count)
        for size, own in self.index:
            if not (type(size) is int and 0 < size < 1 << 48 and _SEAL.fullmatch(own)):
                raise ContainerError(
                    f"a piece of the index cannot have {size!r:.80} bytes and the checksum {own!r:.80}"
                )
        if not _FINGERPRINT.fullmatch(self.fingerprint):
            raise ContainerError(f"fingerprint is not sha256:<64 hex digits>, found {self.fingerprint!r}")

    def to_json(self) -> bytes:
        """The canonical text, which contains its own CRC32C. Raises `ContainerError` if the recipe is not JSON."""
        members = {name: getattr(self, name) for name in _READ}
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


def check_splits(splits: Mapping[str, tuple[tuple[int, int], ...]], count: int) -> None:
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
    parsed = unseal(data)
    if parsed.get("format") != "iofast":
        raise ContainerError('the manifest has no "format": "iofast"')
    _check_version(parsed.get("version"))  # first: another version may have other members
    check_seal(data)
    if strange := set(parsed) ^ (set(_READ) | {"format", "crc32c"}):
        raise ContainerError(f"members missing or unknown in the manifest: {', '.join(sorted(strange)):.200}")
    manifest = Manifest(**{name: read(name, parsed[name]) for name, read in _READ.items()})
    if manifest.count and not manifest.fields:
        raise ContainerError(f"there are {manifest.count} records, but no fields")
    return manifest


def _typed(name: str, value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ContainerError(f"{name} must be of JSON type {kind.__name__}, found {value!r:.80}")
    return value


def _strings(name: str, value: object) -> tuple[str, ...]:
    return tuple(_typed(name, item, str) for item in _typed(name, value, list))


def _any_integer(name: str, value: object) -> int:
    return _integer(name, value, 0, (1 << 64) - 1)


def _pair(name: str, value: object) -> tuple[int, int]:
    pair = [_any_integer(name, item) for item in _typed(name, value, list)]
    if len(pair) != 2:
        raise ContainerError(f"split {name!r:.80}: a range must be [start, stop], found {value!r:.80}")
    return pair[0], pair[1]


def _splits(name: str, value: object) -> dict[str, tuple[tuple[int, int], ...]]:
    members = _typed(name, value, dict).items()
    splits = {split: tuple(_pair(split, pair) for pair in _typed(name, own, list)) for split, own in members}
    return dict(sorted(splits.items(), key=lambda item: item[1]))  # in the order of the records


def _shards(name: str, value: object) -> tuple[Shard, ...]:
    return tuple(_shard(_typed(name, item, dict)) for item in _typed(name, value, list))


def _shard(item: Mapping[str, Any]) -> Shard:
    if item.keys() != _SHARD_MEMBERS:
        raise ContainerError(f"a shard must have count, name and size, found {sorted(item)!r:.200}")
    return Shard(_typed("shard name", item["name"], str), item["count"], item["size"])


def _pieces(name: str, value: object) -> tuple[tuple[int, str], ...]:
    pieces = [_typed(name, item, list) for item in _typed(name, value, list)]
    if any(len(piece) != 2 for piece in pieces):
        raise ContainerError(f"{name}: a piece must be [bytes, checksum]")
    return tuple((_any_integer(name, size), _typed(name, own, str)) for size, own in pieces)


def _or_none(read: Callable[[str, object], Any]) -> Callable[[str, object], Any]:
    return lambda name, value: None if value is None else read(name, value)


_READ: Mapping[str, Callable[[str, object], Any]] = {
    "class_order": lambda name, value: _typed(name, value, str),
    "classes": _or_none(_strings),
    "count": _any_integer,
    "fields": _strings,
    "fingerprint": lambda name, value: _typed(name, value, str),
    "index": _pieces,
    "key_width": _any_integer,
    "recipe": lambda name, value: _typed(name, value, dict),
    "seed": _or_none(_any_integer),
    "shards": _shards,
    "splits": _splits,
    "transaction": _or_none(_any_integer),
    "version": _any_integer,
}
