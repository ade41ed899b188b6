"""The plan of a packing run: its settings and sections, stored so that a killed run can be resumed.

Everything in it decides the bytes of the result. Other options (workers, error budget) may differ
between a run and the one that resumes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iofast import kernel
from iofast.containers.publish import MARKER, PLAN, Target
from iofast.containers.targets import ShardTarget, section_bytes
from iofast.containers.writer import Section
from iofast.errors import TargetError
from iofast.packing.options import PackOptions, as_option
from iofast.version import __version__

VERSION = 6


@dataclass(frozen=True, slots=True)
class PackPlan:
    """`images` of a source with the fingerprint `source`, packed with `settings` in sections of `records` positions.

    `splits`: name, start and stop of each. `parts`: how many parts of the run are packed on their own; None for a run
    as a whole. In an object store a run has an `id`, and may replace the set whose manifest has the version `replaces`
    ("" for none), and its `shards`.
    """

    images: int
    splits: Sequence[tuple[str, int, int]]
    source: str
    settings: Mapping[str, object]
    records: int | None = None  # until the run begins
    parts: int | None = None
    id: str = ""
    replaces: str = ""
    shards: Sequence[str] = ()
    version: int = VERSION

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> PackPlan:
        """The plan that was stored as `asdict` gives it. Raises `TypeError`, `ValueError` or `KeyError` for others."""
        if members["version"] != VERSION or not f"{members['id']}0".isalnum():
            raise ValueError(f"version {members['version']}, id {members['id']!r:.20}")
        splits = tuple((name, start, stop) for name, start, stop in members["splits"])
        return cls(**{**members, "splits": splits, "shards": tuple(map(str, members["shards"]))})

    def sections(self) -> list[Section]:
        """The sections of the run: none has positions of two splits."""
        step, found = self.records or max(1, self.images), list[Section]()
        for name, first, last in self.splits:
            for start in range(first, last, step):
                found.append(Section(len(found), name, start, min(start + step, last)))
        return found

    def check_same(self, old: PackPlan, folder: object) -> None:
        """Raise `TargetError`, naming the difference, if work begun with the plan `old` cannot be resumed."""
        if self.parts != old.parts:
            found, expected = ("without parts" if n is None else f"in {n:,} parts" for n in (old.parts, self.parts))
            raise TargetError(
                f"{folder} holds the work of a run {found}, expected one {expected}: "
                "go on as it began, or delete the folder to start anew"
            )
        names = sorted({*self.settings, *old.settings})
        pairs = [(name, self.settings.get(name), old.settings.get(name)) for name in names]
        differences = [f"{as_option(name, then)}, not {now}" for name, now, then in pairs if now != then]
        if self.images != old.images:
            differences.append(f"{old.images:,} images, not {self.images:,}")
        if self.source != old.source:
            differences.append("the source as it was before it changed (names, labels, splits or files)")
        if differences:
            raise TargetError(
                f"{folder} holds the work of a run with {differences[0]}: give that command again to resume it, "
                "or delete the folder to start anew"
            )


def load_plan(target: Target) -> PackPlan | None:
    """Read the plan of the run in a target's folder; None if there is none of this version.

    Of a run that was interrupted while it published, the marker has it.
    """
    members = target.read(PLAN) or (target.read(MARKER) or {}).get("plan")
    with contextlib.suppress(TypeError, ValueError, KeyError):
        return PackPlan.of(members or {})
    return None


def recipe(options: PackOptions) -> dict[str, object]:
    """The manifest's recipe: all options that shape payloads, and versions of the software."""
    import PIL

    facts = kernel.describe()
    software = {"iofast": __version__, "kernel": kernel.backend, "pillow": PIL.__version__}
    if facts["libjpeg-turbo"]:
        software["libjpeg-turbo"] = facts["libjpeg-turbo"]
    return {**options.shaping(), **software}


def shards(options: PackOptions, target: Target) -> dict[str, object]:
    """The settings of a set of shards; none for other targets."""
    if not isinstance(target, ShardTarget):
        return {}
    return {"shard_size": section_bytes(options.shard_size, target), "shard_records": options.shard_records}


def settings(options: PackOptions, target: Target) -> dict[str, object]:
    """The settings that must be equal when a run is resumed."""
    return {
        **recipe(options),
        "shuffle": options.shuffle,
        "class_order": options.class_order,
        **shards(options, target),
    }


def shared_settings(sources: Sequence[str], options: PackOptions, target: Target) -> dict[str, object]:
    """The settings on which all parts of a run must agree. They do not list the sources, so names stand for them."""
    columns = {name: getattr(options, name) for name in ("path_column", "label_column", "split_column", "only")}
    named = ", ".join(os.path.basename(os.path.abspath(source)) for source in sources)
    return {**settings(options, target), **columns, "source": named}
