"""Several containers and folders read as one: their records one after another."""

import contextlib
import hashlib
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from iofast.containers.any_bytes import StoredPlaces
from iofast.containers.base import Failures, Located, Reader, dense
from iofast.containers.manifest import WHOLE, Manifest, Shard
from iofast.errors import ContainerError, OptionError
from iofast.kernel import Payloads
from iofast.record import LABEL_FIELD, Record

Columns = TypeVar("Columns", Located, Payloads)
Rows = NDArray[np.int64] | slice

_CHECKSUMS = ("crc", "crcs")
_Group = tuple[int, Rows, NDArray[np.int64]]  # a part, the rows of a request that belong to it, dense indices in it


class JoinedReader(Reader):
    """The records of several readers, called parts, as one reader: dense indices continue from part to part.

    All parts must have the same classes, or none. With `unite`, classes are united by name instead: the first part
    keeps its numbers, and labels (but no payloads) of the others get new ones, which `left_out` describes. The fields
    are the union of all parts' fields. Splits of the same name become one; without `splits` the result has none. A key
    is the part's number, a slash and the record's own key. `names` (one per part) are for messages. Raises
    `OptionError`, naming the difference, if classes or splits differ.
    """

    container = "joined"

    def __init__(
        self, parts: Sequence[Reader], names: Sequence[str], *, splits: bool = True, unite: bool = False
    ) -> None:
        self.parts, self.names = tuple(parts), tuple(names)
        manifests = [
            part.manifest if splits else replace(part.manifest, splits={WHOLE: ((0, len(part)),)}) for part in parts
        ]
        self._numbers: list[NDArray[np.int32] | None] = [None] * len(parts)
        if unite:
            classes, self._numbers = _united(manifests, names)
            order = manifests[0].class_order if classes == manifests[0].classes else "file"
            manifests = [replace(each, classes=classes, class_order=order) for each in manifests]
        self.is_ours, self.has_paths = all(each.is_ours for each in parts), all(each.has_paths for each in parts)
        self.left_out = [line for each in parts for line in each.left_out]
        self.left_out += _changes(parts, names, self._numbers)
        self.manifest = _join(manifests, names)
        self._ends = np.cumsum([len(part) for part in parts])
        self._starts = self._ends - [len(part) for part in parts]

    def locate(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """Where the payloads lie; see `Reader.locate`. `file` is the part's own number."""
        self._check(field)
        return self._gather(indices, lambda part, own: _locate(part, own, field))

    def columns(self, indices: NDArray[np.int64]) -> Located:
        return self._gather(indices, lambda part, own: part.columns(own))

    def labels(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        indices = dense(indices, len(self), "joined")
        labels = np.empty(len(indices), np.int32)
        for part, rows, own in self._groups(indices):
            labels[rows] = self._relabelled(part, self.parts[part].labels(own))
        return labels

    @contextlib.contextmanager
    def payloads(self, located: Located, start: int, stop: int) -> Iterator[Payloads]:
        asked = located.rows(slice(start, stop))
        with contextlib.ExitStack() as stack:
            pieces = []
            for part, rows, own in self._groups(asked.indices):
                columns = asked.rows(rows)._replace(indices=own)
                pieces.append((rows, stack.enter_context(self.parts[part].payloads(columns, 0, len(own)))))
            yield _merged(pieces)

    def stored_places(self, located: Located) -> list[StoredPlaces]:
        return [
            places.spread(rows, len(located.indices))
            for part, rows, own in self._groups(located.indices)
            for places in self.parts[part].stored_places(located.rows(rows)._replace(indices=own))
        ]

    def _values(
        self, indices: NDArray[np.int64], field: str | None, check: bool, wrong: Failures
    ) -> list[bytes | None]:
        self._check(field)
        indices = dense(indices, len(self), "joined")
        values = np.full(len(indices), None, object)
        for part, rows, own in self._groups(indices):
            if field is None or field in self.parts[part].manifest.fields:
                errors: Failures = {}
                values[rows] = self.parts[part].values(own, field, check=check, failed=errors)
                wrong.update((int(np.arange(len(indices))[rows][row]), error) for row, error in errors.items())
        listed: list[bytes | None] = values.tolist()
        return listed

    def keys(self, located: Located) -> list[str]:
        """Keys, each behind the number of its part: `1/00000042`."""
        keys = np.empty(len(located.indices), object)
        for part, rows, own in self._groups(located.indices):
            columns = located.rows(rows)._replace(indices=own)
            keys[rows] = [f"{part}/{key}" for key in self.parts[part].keys(columns)]
        listed: list[str] = keys.tolist()
        return listed

    def record(self, index: int) -> Record:
        """One record whole, under its key in this reader."""
        part, own = self._place(index)
        record = self.parts[part].record(own)
        return Record(f"{part}/{record.key}", record.fields)

    def name(self, index: int) -> str:
        part, own = self._place(index)
        return self.parts[part].name(own)

    @property
    def changed(self) -> int:
        return sum(part.changed for part in self.parts)

    @property
    def is_stored(self) -> bool:
        return any(part.is_stored for part in self.parts)

    @property
    def index_is_stale(self) -> bool:
        return any(part.index_is_stale for part in self.parts)

    def opening(self) -> object:
        return tuple(part.opening() for part in self.parts)

    def note_changed(self, index: int, now: str) -> None:
        part, own = self._place(index)
        self.parts[part].note_changed(own, now)

    def close(self) -> None:
        """Close every part."""
        for part in self.parts:
            part.close()

    def _check(self, field: str | None) -> None:
        if field is not None and field not in self.manifest.fields:
            raise KeyError(f"no part has a field {field!r}, only {', '.join(self.manifest.fields)}")

    def _place(self, index: int) -> tuple[int, int]:
        """The part of one record, and its index there."""
        ((part, _, own),) = self._groups(dense(np.array([index]), len(self), "joined"))
        return part, int(own[0])

    def _groups(self, indices: NDArray[np.int64]) -> list[_Group]:
        """Group `indices` by part; without indices, one empty group of the first part."""
        numbers = np.searchsorted(self._ends, indices, side="right")
        found = np.flatnonzero(np.bincount(numbers)).tolist() or [0]
        if len(found) == 1:
            return [(found[0], slice(None), indices - self._starts[found[0]])]
        groups = [(number, np.flatnonzero(numbers == number)) for number in found]
        return [(number, rows, indices[rows] - self._starts[number]) for number, rows in groups]

    def _gather(self, indices: NDArray[np.int64], ask: Callable[[Reader, NDArray[np.int64]], Located]) -> Located:
        """The columns that `ask` returns for the records of each part, as one."""
        indices = dense(indices, len(self), "joined")
        pieces = []
        for part, rows, own in self._groups(indices):
            columns = ask(self.parts[part], own)
            pieces.append((rows, columns._replace(label=self._relabelled(part, columns.label))))
        return _merged(pieces)._replace(indices=indices)

    def _relabelled(self, part: int, labels: NDArray[np.int32]) -> NDArray[np.int32]:
        """The labels of a part with their numbers in this reader."""
        numbers = self._numbers[part]
        if numbers is None:
            return labels
        if len(labels) and labels.max() >= len(numbers):
            raise ContainerError(f"{self.names[part]} has label {labels.max()}, but {len(numbers)} classes")
        return np.where(labels < 0, labels, numbers[labels])


def containers_of(reader: Reader, source: str = "") -> list[tuple[Reader, str]]:
    """The containers that a reader joins, or its only one, each with its path."""
    if isinstance(reader, JoinedReader):
        return list(zip(reader.parts, reader.names, strict=True))
    return [(reader, source)]


def _locate(part: Reader, indices: NDArray[np.int64], field: str | None) -> Located:
    if field is None or field in part.manifest.fields:
        return part.locate(indices, field)
    return part.columns(indices).nowhere()


def _merged(pieces: Sequence[tuple[Rows, Columns]]) -> Columns:
    """Merge the columns of the parts. A row of a part without a column gets 0, or -1 as its checksum."""
    first = pieces[0][1]
    if len(pieces) == 1:
        return first
    rows = [np.asarray(own) for own, _ in pieces]
    order = np.argsort(np.concatenate(rows))
    merged: list[NDArray[Any] | None] = []
    for name, *columns in zip(first._fields, *(piece for _, piece in pieces), strict=True):
        known: list[NDArray[Any]] = [column for column in columns if column is not None]
        if known and len(known) < len(pieces):
            value, dtype = (-1, np.dtype(np.int64)) if name in _CHECKSUMS else (0, known[0].dtype)
            blank = [np.full((len(own), *known[0].shape[1:]), value, dtype) for own in rows]
            known = [own if column is None else column for own, column in zip(blank, columns, strict=True)]
        merged.append(np.concatenate(known)[order] if known else None)
    return type(first)._make(merged)


def _join(manifests: Sequence[Manifest], names: Sequence[str]) -> Manifest:
    """One manifest of all parts."""
    if not manifests:
        raise OptionError("there is nothing to join: no path was given")
    for manifest, name in zip(manifests, names, strict=True):
        _check_classes(names[0], manifests[0].classes, name, manifest.classes)
        if (WHOLE in manifest.splits) != (WHOLE in manifests[0].splits):
            these, those = (
                "no splits" if WHOLE in each.splits else f"the splits {', '.join(each.splits)}"
                for each in (manifests[0], manifest)
            )
            raise OptionError(f"{names[0]} and {name} cannot be joined: the first has {these}, the second {those}")
    splits: dict[str, tuple[tuple[int, int], ...]] = {}
    start = 0
    for manifest in manifests:
        for split, ranges in manifest.splits.items():
            moved = tuple((first + start, last + start) for first, last in ranges if last > first)
            splits[split] = splits.get(split, ()) + moved
        start += manifest.count
    digest = hashlib.sha256(" ".join(manifest.fingerprint for manifest in manifests).encode())
    return Manifest(
        count=start,
        fields=tuple(sorted({field for manifest in manifests for field in manifest.fields})),
        splits={split: ranges for split, ranges in splits.items() if ranges} or {WHOLE: ((0, 0),)},
        fingerprint=f"sha256:{digest.hexdigest()}",
        shards=tuple(
            Shard(str(number), manifest.count, sum(shard.size for shard in manifest.shards))
            for number, manifest in enumerate(manifests)
        ),
        classes=manifests[0].classes,
        class_order=manifests[0].class_order,
        key_width=max(manifest.key_width for manifest in manifests),
    )


def _united(
    manifests: Sequence[Manifest], names: Sequence[str]
) -> tuple[tuple[str, ...] | None, list[NDArray[np.int32] | None]]:
    """All class names, and for each manifest the new numbers of its classes (None = unchanged)."""
    if all(manifest.classes is None for manifest in manifests):
        return None, [None] * len(manifests)
    united: dict[str, int] = {}
    alike: dict[str, tuple[str, str]] = {}
    numbers: list[NDArray[np.int32] | None] = []
    for manifest, where in zip(manifests, names, strict=True):
        if manifest.classes is None and LABEL_FIELD in manifest.fields:
            raise OptionError(
                f"{where} has labels without class names, so they cannot be matched with the classes of the others"
            )
        for name in manifest.classes or ():
            composed = unicodedata.normalize("NFC", name)
            plain = " ".join(composed.casefold().replace("_", " ").replace("-", " ").split())
            known, place = alike.setdefault(plain, (name, where))
            if known != name and place != where:
                raise OptionError(f"class {name!a} of {where} and {known!a} of {place}: the same, or two? rename one")
            united.setdefault(name, len(united))
        mapped = np.array([united[name] for name in manifest.classes or ()], np.int32)
        numbers.append(None if (mapped == np.arange(len(mapped))).all() else mapped)
    return tuple(united), numbers


def _changes(
    parts: Sequence[Reader], names: Sequence[str], numbers: Sequence[NDArray[np.int32] | None]
) -> Iterator[str]:
    """A line for each part whose classes have new numbers."""
    for part, where, mapped in zip(parts, names, numbers, strict=True):
        pairs = [] if mapped is None else enumerate(zip(part.manifest.classes or (), mapped.tolist(), strict=True))
        changed = [f"{name} {old} -> {new}" for old, (name, new) in pairs if old != new]
        if changed:
            more = f" and {len(changed) - 5:,} more" if len(changed) > 5 else ""
            yield f"classes of {where} have new numbers: {', '.join(changed[:5])}{more}"


def _check_classes(a: str, mine: tuple[str, ...] | None, b: str, yours: tuple[str, ...] | None) -> None:
    if (mine or None) == (yours or None):
        return
    counts = ["no classes" if not own else f"{len(own)} classes" for own in (mine, yours)]
    found = f"the first has {counts[0]}, the second {counts[1]}"
    if mine and yours:
        pairs = enumerate(zip(mine, yours, strict=False))
        found += "".join([f"; class {i} is {x!a} and {y!a}" for i, (x, y) in pairs if x != y][:1])
    raise OptionError(f"{a} and {b} cannot be joined: {found}")
