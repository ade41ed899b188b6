"""`split` and `merge`: divide the records of one container into splits, or copy several containers into one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Description, Reader
from iofast.containers.identity import require_elsewhere, source_facts
from iofast.containers.manifest import WHOLE, check_split_name
from iofast.copying.convert import Begin, Copied, CopyJob, CopyOptions, FilePath, Progress, copied, place_of, run_copy
from iofast.copying.records import STEP, CopiedRecord, RecordSource
from iofast.copying.to_folder import Shape
from iofast.errors import ContainerError, OptionError
from iofast.opening import open_reader
from iofast.order.permutation import permuted
from iofast.record import LABEL_FIELD, key_width
from iofast.source.listing import few, split_rank

Part = float | Sequence[int]  # a share of the records, or dense indices


class _Piece(NamedTuple):
    """Some records of one source, for one split of the target."""

    split: str
    source: RecordSource
    indices: NDArray[np.int64]
    labels: NDArray[np.int64] | None = None  # the new number of each class; None = unchanged


class Division(NamedTuple):
    """How to divide a container. `parts` maps new splits to a share (0 to 1) or a list of dense indices.

    Shares are drawn from `seed` (None: 0), with `stratify` separately in every class. `rest` is the split of all other
    records. `of` is the split to divide, None in a set without splits; other splits stay.
    """

    parts: Mapping[str, Part]
    seed: int | None = None
    stratify: bool = False
    of: str | None = None
    rest: str = "train"


def split(
    source: FilePath,
    target: FilePath,
    division: Division,
    options: CopyOptions | None = None,
    *,
    begin: Begin | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Copy `source` to the new `target` and divide its records into splits.

    The order of splits is that of packing (`split_rank`); within a split, records keep their order. Keys are the new
    positions. Nothing else changes.
    """
    options, started = options or CopyOptions(), time.monotonic()
    place = place_of(target, options)
    with open_reader(source) as reader:
        require_elsewhere(reader, source, place)
        chosen = divide(reader, division)
        manifest = reader.manifest
        records = RecordSource(reader)
        pieces = [_Piece(name, records, chosen[name]) for name in sorted(chosen, key=split_rank) if len(chosen[name])]
        description = Description(
            manifest.classes, manifest.class_order, manifest.recipe
        )  # the seed of packing is lost
        plan: dict[str, object] = {
            "sources": [source_facts(reader, source)],
            "rest": division.rest,
            "parts": {name: indices.tolist() for name, indices in chosen.items() if name != division.rest},
        }
        kept = run_copy(_job(plan, description, pieces, records.size()), place, options, begin, progress)
        return copied((source,), place, started, len(reader), kept, records.warnings())


def divide(reader: Reader, choice: Division) -> dict[str, NDArray[np.int64]]:
    """The dense indices of each new split. Raises `OptionError` for parts that overlap or do not exist."""
    splits, parts = reader.manifest.splits, choice.parts
    names = [name for name in splits if name != WHOLE]
    if names and choice.of is None:
        raise OptionError(f"there are splits already ({', '.join(names)}): say which to divide (of={names[0]})")
    if choice.of is not None and choice.of not in splits:
        raise OptionError(f"there is no split {choice.of!r} to divide, only {', '.join(splits)}")
    kept = {name: reader.manifest.indices(name) for name in names if name != choice.of}
    free = reader.manifest.indices(choice.of or WHOLE)
    taken: dict[str, NDArray[np.int64]] = {}
    if not parts:
        raise OptionError("nothing says how to divide: give a part such as val=0.1")
    for name, part in parts.items():
        if check_split_name(name) in (WHOLE, choice.rest, *kept):
            raise OptionError(f"{name!r} cannot be the name of a new split: it is taken, or means something else")
        if not isinstance(part, float | int):
            taken[name] = _listed(name, part, free)
            free = np.setdiff1d(free, taken[name], assume_unique=True)
    shares = {name: float(part) for name, part in parts.items() if isinstance(part, float | int)}
    if not shares and (choice.stratify or choice.seed is not None):
        unused = "stratify=True" if choice.stratify else f"seed={choice.seed}"
        raise OptionError(f"{unused} has no effect: expected a share such as val=0.1, found none; leave it out")
    if any(not 0 < share < 1 for share in shares.values()) or sum(shares.values()) > 1:
        raise OptionError(f"shares must be above 0 and together at most 1, found {shares}")
    for name, indices in _drawn(reader, free, shares, choice).items():
        taken[name] = indices
        free = np.setdiff1d(free, indices, assume_unique=True)
    check_split_name(choice.rest)
    if choice.rest in kept:
        raise OptionError(f"the rest would be called {choice.rest!r}, which is a split of its own already")
    return {**kept, **taken, choice.rest: free}


def _listed(name: str, part: Sequence[int], free: NDArray[np.int64]) -> NDArray[np.int64]:
    indices = np.unique(np.asarray(list(part), np.int64))
    strange = np.setdiff1d(indices, free)
    if len(indices) < len(part) or len(strange) or not len(indices):
        which = f"{strange[0]} was not found" if len(strange) else "a record occurs twice, or there are none"
        raise OptionError(f"the records of split {name!r}: {which}")
    return indices


def _drawn(
    reader: Reader, free: NDArray[np.int64], shares: Mapping[str, float], choice: Division
) -> dict[str, NDArray[np.int64]]:
    """Draw the shares of the records `free` from the seed, for each class separately if `stratify` is set."""
    groups = {"": free}
    if choice.stratify and len(free):
        found = [reader.labels(free[start : start + STEP]) for start in range(0, len(free), STEP)]
        labels = np.concatenate(found)
        groups = {str(label): free[labels == label] for label in np.unique(labels).tolist()}
    drawn: dict[str, list[NDArray[np.int64]]] = {name: [] for name in shares}
    for group, members in groups.items():
        order = permuted(
            len(members), f"iofast/split/{choice.seed or 0}/{group}", np.arange(len(members), dtype=np.int64)
        )
        start, total = 0, 0.0
        for name, share in shares.items():  # cumulative shares, so that rounding loses no record
            total += share
            stop = round(total * len(members))
            drawn[name].append(members[order[start:stop]])
            start = stop
    return {name: np.sort(np.concatenate(pieces)) for name, pieces in drawn.items()}


def merge(
    sources: Sequence[FilePath],
    target: FilePath,
    options: CopyOptions | None = None,
    *,
    names: Sequence[str] | None = None,
    begin: Begin | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Copy all records of several containers to the new `target`: split by split, in the order of `sources`.

    Classes are united by name: the first source keeps its numbers, and `warnings` of the result lists new numbers of
    the others. `names` makes each source a split. Keys are the new positions. Raises `OptionError` if classes or splits
    of the sources contradict each other.
    """
    options, started = options or CopyOptions(), time.monotonic()
    place = place_of(target, options)
    if len(sources) < 2 or (names is not None and len(names) != len(sources)):
        raise OptionError(f"merging takes two sources or more, and a name for each or none: found {len(sources)}")
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(open_reader(source)) for source in sources]
        for reader, source in zip(readers, sources, strict=True):
            require_elsewhere(reader, source, place)
        shown = [os.fspath(source) for source in sources]
        classes, numbers = unite(readers, shown)
        records = [RecordSource(reader) for reader in readers]
        pieces = _pieces(records, shown, numbers, names)
        first = readers[0].manifest
        order = first.class_order if classes == first.classes else "file"
        description = Description(classes, order, _recipe(readers))
        prints = [source_facts(reader, source) for source, reader in zip(shown, readers, strict=True)]
        plan: dict[str, object] = {"sources": prints, "names": list(names or ())}
        job = _job(plan, description, pieces, sum(own.size() for own in records))
        kept = run_copy(job, place, options, begin, progress)
        warnings = [*_renumbered(readers, shown, numbers), *(warning for own in records for warning in own.warnings())]
        return copied(sources, place, started, sum(map(len, readers)), kept, warnings)


def unite(
    readers: Sequence[Reader], shown: Sequence[str]
) -> tuple[tuple[str, ...] | None, list[NDArray[np.int64] | None]]:
    """All class names, and for each reader the new numbers of its classes (None = unchanged). Raises `OptionError`."""
    named = [reader.manifest.classes for reader in readers]
    labelled = [LABEL_FIELD in reader.manifest.fields for reader in readers]
    for own, has, where in zip(named, labelled, shown, strict=True):
        if own is None and has and any(each is not None for each in named):
            raise OptionError(
                f"{where} has labels without class names, so they cannot be matched with the classes of the others"
            )
    if all(own is None for own in named):
        return None, [None] * len(readers)
    united: dict[str, int] = {}
    alike: dict[str, tuple[str, str]] = {}
    numbers: list[NDArray[np.int64] | None] = []
    for own, where in zip(named, shown, strict=True):
        for name in own or ():
            plain = " ".join(name.casefold().replace("_", " ").replace("-", " ").split())
            known, place = alike.setdefault(plain, (name, where))
            if known != name and place != where:
                raise OptionError(f"class {name!r} of {where} and {known!r} of {place}: the same, or two? rename one")
            united.setdefault(name, len(united))
        mapped = np.array([united[name] for name in own or ()], np.int64)
        same = own is None or bool((mapped == np.arange(len(mapped))).all())
        numbers.append(None if same else mapped)
    return tuple(united), numbers


def _pieces(
    records: Sequence[RecordSource],
    shown: Sequence[str],
    numbers: Sequence[NDArray[np.int64] | None],
    names: Sequence[str] | None,
) -> list[_Piece]:
    """The pieces of the target, in packing order."""
    divided = [WHOLE not in own.reader.manifest.splits for own in records]
    if names is not None and any(divided):
        raise OptionError(f"{shown[divided.index(True)]} has splits already, so it cannot become one")
    if names is None and any(divided) and not all(divided):
        one, other = shown[divided.index(True)], shown[divided.index(False)]
        raise OptionError(f"{one} has splits and {other} has none: divide that first (iofast split)")
    pieces = []
    for place, own in enumerate(records):
        for split_name in own.reader.manifest.splits:
            name = split_name if names is None else check_split_name(names[place])
            if len(indices := own.reader.manifest.indices(split_name)):
                pieces.append(_Piece(name, own, indices, numbers[place]))
    return sorted(pieces, key=lambda piece: split_rank(piece.split))


def _recipe(readers: Sequence[Reader]) -> dict[str, object]:
    """The recipe, if all sources have the same, else a list of all recipes."""
    recipes = [dict(reader.manifest.recipe) for reader in readers]
    return recipes[0] if all(recipe == recipes[0] for recipe in recipes) else {"merged": recipes}


def _renumbered(
    readers: Sequence[Reader], shown: Sequence[str], numbers: Sequence[NDArray[np.int64] | None]
) -> Iterator[str]:
    for reader, where, mapped in zip(readers, shown, numbers, strict=True):
        if mapped is not None and reader.manifest.classes is not None:
            changes = [
                f"{name} {old} -> {new}"
                for old, (name, new) in enumerate(zip(reader.manifest.classes, mapped.tolist(), strict=True))
                if old != new
            ]
            yield f"classes of {where} have new numbers: {few(changes)}"


def _job(plan: dict[str, object], description: Description, pieces: Sequence[_Piece], size: int) -> CopyJob:
    """The copy of all pieces; keys are the new positions."""

    def copies(done: int) -> Iterator[tuple[int, CopiedRecord, str]]:
        first = 0  # position of the piece's first record
        for piece in pieces:
            skipped = min(max(0, done - first), len(piece.indices))
            for position, copy in enumerate(piece.source.records(piece.indices, skipped), first + skipped):
                yield position, copy if piece.labels is None else _relabelled(copy, piece.labels), piece.split
            first += len(piece.indices)

    splits = tuple(dict.fromkeys(piece.split for piece in pieces)) or (WHOLE,)
    fields = sorted({name for piece in pieces for name in piece.source.reader.manifest.fields})
    count = sum(len(piece.indices) for piece in pieces)
    shape = Shape(description.classes, splits, tuple(fields), key_width(count))
    return CopyJob(plan, description, shape, count, size, copies)


def _relabelled(copy: CopiedRecord, numbers: NDArray[np.int64]) -> CopiedRecord:
    """The record with the new number of its class."""
    if copy.info.label < 0:
        return copy
    if copy.info.label >= len(numbers):
        raise ContainerError(f"record {copy.place} has label {copy.info.label}, but there are {len(numbers)} classes")
    label = int(numbers[copy.info.label])
    return copy._replace(fields={**copy.fields, LABEL_FIELD: b"%d" % label}, info=replace(copy.info, label=label))
