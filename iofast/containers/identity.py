"""Identity of a source of records: its writer, whether it has changed, and whether it overlaps a target."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from iofast.containers.base import Reader
from iofast.containers.joined import JoinedReader
from iofast.containers.publish import Target
from iofast.containers.shard_target import ShardTarget
from iofast.errors import OptionError


def containers_of(reader: Reader, source: str = "") -> list[tuple[Reader, str]]:
    """The containers that a reader joins, or its only one, each with its path."""
    if isinstance(reader, JoinedReader):
        return list(zip(reader.parts, reader.names, strict=True))
    return [(reader, source)]


def source_facts(reader: Reader, source: str | os.PathLike[str]) -> list[object]:
    """A source in a plan, in JSON's types: its path, a digest of its manifest, sizes and times of foreign files."""
    changed: list[list[int]] = []
    if not reader.is_ours:  # the fingerprint of other containers covers places, not bytes
        files = getattr(reader, "paths", None) or [getattr(reader, "path", source)]
        states = [os.stat(file) for file in files if os.path.exists(file)]
        changed = [[state.st_size, state.st_mtime_ns] for state in states]
    return [os.path.abspath(source), hashlib.sha256(reader.manifest.to_json()).hexdigest(), changed]


def state_of(reader: Reader, source: str | os.PathLike[str]) -> str:
    """A digest of the `source_facts` of all parts, without their paths."""
    facts = [source_facts(each, name)[1:] for each, name in containers_of(reader, os.fspath(source))]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def require_elsewhere(reader: Reader, source: str | os.PathLike[str], target: Target) -> None:
    """Raise `OptionError` if the target is the source, is in it, or would replace a file of it."""
    own, goal = Path(os.path.realpath(source)), Path(os.path.realpath(target.path))
    named = Path(os.path.realpath(getattr(reader, "path", source)))  # the set, if its shards were named
    if goal in (own, named) or (own.is_dir() and own in goal.parents):
        raise OptionError(f"{target.path} is, or lies in, the source {os.fspath(source)}: choose another target")
    names = {Path(os.path.realpath(path)) for path in getattr(reader, "paths", ())}
    if goal in names:
        raise OptionError(f"{target.path} is one of the files of {os.fspath(source)}: choose another name")
    if isinstance(target, ShardTarget) and goal.parent.is_dir():
        taken = [goal.with_name(name) for name in target.taken(sorted(os.listdir(goal.parent)))]
        if lost := sorted(names.intersection(map(Path, map(os.path.realpath, taken)))):
            raise OptionError(f"{lost[0]} of the source would be a shard of {target.path}: choose another name")
