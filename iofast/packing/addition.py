"""`--append`: the records in the container, and checks that new images fit."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from iofast import owned
from iofast.containers.base import Reader
from iofast.containers.manifest import WHOLE, Manifest
from iofast.containers.publish import APPENDING, Target
from iofast.errors import ContainerError, OptionError, SourceError, TargetError
from iofast.opening import open_reader
from iofast.packing.options import PackOptions, as_given
from iofast.packing.plan import SOFTWARE, recipe
from iofast.source import Source
from iofast.source.listing import few


@dataclass(frozen=True, slots=True)
class Addition:
    """The container before the append.

    `made` is the fingerprint of the finished whole, and `plan` the digest of the plan that it was made by, once it is.
    """

    base: Manifest
    first: int  # position of the first new record
    made: str | None = None
    plan: str | None = None

    def save(self, place: Target) -> None:
        """Store it, so that a killed append resumes even when everything is already published."""
        place.note(APPENDING, {**asdict(self), "base": self.base.to_json().decode()})

    def open(self, place: Target) -> Reader:
        """Open the container. Raises `TargetError` if it changed since the work began."""
        reader = open_reader(place.path)
        if reader.manifest.fingerprint != self.base.fingerprint:
            reader.close()
            raise TargetError(
                f"{place.path} was changed since {place.partial} was begun: delete the folder, then append anew"
            )
        return reader

    def stands(self, place: Target) -> bool:
        """Whether the result is published already, by a run that was killed during cleanup."""
        if self.made is None or place.interrupted:
            return False
        with open_reader(place.path) as reader:
            return reader.manifest.fingerprint == self.made

    def joined(self, source: Source, name: str) -> Source:
        """Return the source with the container's class numbers, new classes last. Raises `SourceError` for a misfit."""
        splits = [split for split, _, _ in source.splits]
        if self.base.count and (WHOLE in self.base.splits) != (WHOLE in splits):
            held, given = ("none" if WHOLE in found else few(found) for found in (list(self.base.splits), splits))
            raise SourceError(f"{name} has splits: {held}; what is to be added has: {given}")
        if (self.base.classes is None) != (source.classes is None):
            held, given = (
                "no" if found is None else f"{len(found):,}" for found in (self.base.classes, source.classes)
            )
            raise SourceError(f"{name} has {held} classes, what is to be added has {given}")
        source = replace(source, class_order=self.base.class_order)  # a container may have another order
        if source.classes is None or self.base.classes is None:
            return source
        known = set(self.base.classes)
        classes = (*self.base.classes, *(each for each in source.classes if each not in known))
        numbers = {each: number for number, each in enumerate(classes)}
        mapped = np.array([*(numbers[each] for each in source.classes), -1], np.int32)  # index -1: no label
        return replace(source, classes=classes, listed_labels=mapped[source.listed_labels])

    def check(self, options: PackOptions, name: str) -> None:
        """Raise `OptionError`, naming the option, if records made with `options` would not match the others."""
        held = {**self.base.recipe, "shuffle": self.base.seed, "class_order": self.base.class_order}
        if "format" not in held:
            raise OptionError(f"{name} was not made by iofast pack, so nobody knows how to add to it: it has no recipe")
        given = {**recipe(options), "shuffle": options.shuffle, "class_order": options.class_order}
        for option in sorted({*given, *_OPTIONAL} - set(SOFTWARE)):
            if held.get(option) != given.get(option):
                raise OptionError(
                    f"{name} was packed with {as_given(option, held.get(option))}, not {given.get(option)}"
                )

    def recipe(self, options: PackOptions) -> dict[str, object]:
        """The recipe of the result: that of the container, with all software versions."""
        new = recipe(options)
        whole = {**self.base.recipe}
        for name in SOFTWARE:
            versions = [str(each[name]) for each in (whole, new) if name in each]
            if versions and versions[-1] not in versions[0].split(", "):
                whole[name] = ", ".join(versions)
        return whole


_OPTIONAL = (
    "restart",
    "split",
    "split_seed",
    "drop_duplicates",
    "label_base",
)  # members that a recipe has only if they were given


def find_addition(place: Target) -> Addition:
    """The container at `place`, as stored by a killed run, else as it is now."""
    begun = _load(place.partial / APPENDING)
    if begun is not None:
        return begun
    done = _load(place.appended)
    with open_reader(place.path) as reader:
        if done is not None and done.made == reader.manifest.fingerprint:
            return done
        last = np.array([len(reader) - 1], np.int64)
        first = int(reader.columns(last).position[0]) + 1 if len(reader) else 0
        return Addition(reader.manifest, first)


def _load(file: Path) -> Addition | None:
    """Load what `Addition.save` wrote; None if incomplete. Raises `TargetError` for another user's file."""
    try:
        members = json.loads(owned.read(file))
        base = Manifest.from_json(members["base"].encode(), os.fspath(file))
        return Addition(base, members["first"], members["made"], members["plan"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, ContainerError):
        return None
