"""`--append`: the container before the append, and checks that new images fit it."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from iofast import owned
from iofast.containers.base import Reader
from iofast.containers.manifest import WHOLE, Manifest
from iofast.containers.publish import APPENDING, Target
from iofast.errors import ContainerError, OptionError, SourceError, TargetError
from iofast.opening import open_reader
from iofast.packing.options import OWN, SOFTWARE, PackOptions, as_option
from iofast.packing.plan import recipe
from iofast.source import Source
from iofast.source.arrays import empty, steps
from iofast.source.listing import few


@dataclass(frozen=True, slots=True)
class Addition:
    """The container before the append.

    `made` is the fingerprint of the finished container and `plan` the digest of its plan; None until it is finished.
    """

    base: Manifest
    first: int  # position of the first new record
    made: str | None = None
    plan: str | None = None

    def save(self, target: Target) -> None:
        """Store it, so that a killed append resumes even when everything is already published."""
        target.note(APPENDING, {**asdict(self), "base": self.base.to_json().decode()})

    def open(self, target: Target) -> Reader:
        """Open the container. Raises `TargetError` if it changed since the append began."""
        reader = open_reader(target.path)
        if reader.manifest.fingerprint != self.base.fingerprint:
            reader.close()
            raise TargetError(
                f"{target.path} was changed since {target.partial} was begun: delete the folder, then append again"
            )
        return reader

    def is_published(self, target: Target) -> bool:
        """Whether a run that was killed during cleanup has published the result."""
        if self.made is None or target.interrupted:
            return False
        with open_reader(target.path) as reader:
            return reader.manifest.fingerprint == self.made

    def joined(self, source: Source, name: str) -> Source:
        """Return the source with the container's class numbers; new classes come last.

        Raises `SourceError`, calling the container `name`, if only one of the two has splits or classes.
        """
        splits = [split for split, _, _ in source.splits]
        if self.base.count and (WHOLE in self.base.splits) != (WHOLE in splits):
            raise SourceError(f"{name} has splits: {_splits(self.base.splits)}; the new images have: {_splits(splits)}")
        source = replace(source, class_order=self.base.class_order)  # a container may have another order
        old, new = self.base.classes, source.classes
        if old is None and new is None:
            return source
        if old is None or new is None:
            raise SourceError(f"{name} has {_count(old)} classes, the new images have {_count(new)}")
        classes = tuple(dict.fromkeys((*old, *new)))
        numbers = {each: number for number, each in enumerate(classes)}
        mapped = np.array([*(numbers[each] for each in new), -1], np.int32)  # index -1: no label
        labels = empty(len(source.listed_labels), np.int32)
        for rows in steps(len(labels)):
            labels[rows] = mapped[source.listed_labels[rows]]
        return replace(source, classes=classes, listed_labels=labels)

    def check(self, options: PackOptions, name: str) -> None:
        """Raise `OptionError`, naming the option, if records made with `options` would not match the others."""
        old = {**self.base.recipe, "shuffle": self.base.seed, "class_order": self.base.class_order}
        if "format" not in old:
            raise OptionError(f"{name} has no recipe, so nothing can be appended: it was not made by iofast pack")
        new = {**recipe(options), "shuffle": options.shuffle, "class_order": options.class_order}
        for option in sorted({*new, *OWN & set(old)} - set(SOFTWARE)):  # without earlier notes
            if old.get(option) != new.get(option):
                raise OptionError(f"{name} was packed with {as_option(option, old.get(option))}, not {new.get(option)}")

    def recipe(self, options: PackOptions) -> dict[str, object]:
        """The recipe of the result: that of the container, with all software versions."""
        new, whole = recipe(options), dict(self.base.recipe)
        for name in SOFTWARE:
            versions = [str(each[name]) for each in (whole, new) if name in each]
            if versions and versions[-1] not in versions[0].split(", "):
                whole[name] = ", ".join(versions)
        return whole


def find_addition(target: Target) -> Addition:
    """The container at `target`, as stored by a killed run, else as it is now."""
    begun = _load(target.partial / APPENDING)
    if begun is not None:
        return begun
    done = _load(target.appended)
    with open_reader(target.path) as reader:
        if done is not None and done.made == reader.manifest.fingerprint:
            return done
        last = np.array([len(reader) - 1], np.int64)
        first = int(reader.positions(last)[0]) + 1 if len(reader) else 0
        return Addition(reader.manifest, first)


def _load(file: Path) -> Addition | None:
    """Load what `Addition.save` wrote; None if incomplete. Raises `TargetError` for another user's file."""
    try:
        members = json.loads(owned.read(file))
        base = Manifest.from_json(members["base"].encode(), os.fspath(file))
        return Addition(base, members["first"], members["made"], members["plan"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, ContainerError):
        return None


def _splits(names: Collection[str]) -> str:
    return "none" if WHOLE in names else few(list(names))


def _count(classes: tuple[str, ...] | None) -> str:
    return "no" if classes is None else f"{len(classes):,}"
