"""Places of new containers: the suffix of a target's name chooses its format and writer.

A set of shards knows which files beside it belong to it. A source of records has an identity: its writer, whether it
has changed, and whether it overlaps a target.
"""

import contextlib
import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from iofast.containers import tar, tfrecord
from iofast.containers.base import Reader
from iofast.containers.container_suffixes import LMDB, TFRECORD, WRITTEN
from iofast.containers.folder_writer import FolderTarget, FolderWriter
from iofast.containers.joined import containers_of
from iofast.containers.lmdb import LmdbWriter
from iofast.containers.manifest import Description
from iofast.containers.publish import LOCK, Target
from iofast.containers.shards import MANIFEST_SUFFIX, SHARD_SIZE, read_manifest
from iofast.containers.writer import INDEX_SUFFIX, TRANSACTION_BYTES, Writer
from iofast.errors import ContainerError, OptionError, TargetError
from iofast.option import check_effect, parse_size
from iofast.record import KEY_WIDTH

_LIKE = 0.85  # similarity of a misspelt suffix: .lmd and .tarr have more, .train, .target and .table less


class ShardTarget(Target):
    """The place of a set of shards that is being made. `suffix` is that of its shards."""

    def __init__(self, path: str | os.PathLike[str], suffix: str, *, overwrite: bool = False, lock: str = LOCK) -> None:
        super().__init__(path, overwrite=overwrite, lock=lock)
        self._described = (self.path.name + MANIFEST_SUFFIX, self.path.name + INDEX_SUFFIX)
        self._stem, self._suffix = self.path.name.removesuffix(suffix), suffix
        stem, end = re.escape(self._stem) + "(-[0-9A-Za-z_-]+)?", re.escape(suffix)
        self._shard = re.compile(rf"{stem}-\d+{end}")

    def check_free(self) -> None:
        """Raise `TargetError` if a set, a file, or shards of the same names are in the set's place."""
        super().check_free()
        if self.overwrite or not self.path.parent.exists():
            return
        found = next(self.taken(sorted(os.listdir(self.path.parent))), None)
        if found is not None:
            where = self.path.with_name(found)
            raise TargetError(
                f"{where} exists already: choose another name than {self.path.name}, or give overwrite=True"
            )

    @property
    def exists(self) -> bool:
        """Whether a finished set is at this path."""
        return self.path.with_name(self._described[0]).is_file()

    def publish(self, files: Mapping[str, str], report: Mapping[str, object] | None = None) -> None:
        """Publish a set; see `Target.publish`. It replaces the files in the manifest of the old set.

        Raises `TargetError` if another file would be overwritten.
        """
        old = self._replaced()
        strange = [name for name in files.values() if name not in old and os.path.lexists(self.path.with_name(name))]
        if strange:
            raise TargetError(
                f"{self.path.with_name(strange[0])} exists already and is no part of {self.path}: move it"
            )
        super().publish(files, report)

    def owns(self, name: str) -> bool:
        """Whether a file of this name beside the target can belong to it; see `Target.owns`."""
        return name in self._described or bool(self._shard.fullmatch(name))

    def taken(self, names: Sequence[str]) -> Iterator[str]:
        """Files that may belong to a set of this name; `train-val-000000.tar` may belong to `train-val.tar`."""
        longer = [name.removesuffix(self._suffix + MANIFEST_SUFFIX) for name in names if name.endswith(MANIFEST_SUFFIX)]
        others = tuple(f"{stem}-" for stem in longer if len(stem) > len(self._stem))
        for name in names:
            if name in self._described or (self._shard.fullmatch(name) and not name.startswith(others)):
                yield name

    def _replaced(self) -> list[str]:
        """The manifest of the old set, then its other files."""
        if not os.path.lexists(self.path.with_name(self._described[0])):
            return [self._described[1]]
        shards: list[str] = []
        with contextlib.suppress(OSError, ContainerError):  # the shards of a damaged manifest are unknown, and stay
            shards = [shard.name for shard in read_manifest(self.path).shards]
        return [*self._described, *filter(self.owns, shards)]  # a damaged or hostile manifest may name anything


def section_bytes(size: int | str | None, target: Target) -> int:
    """About how many bytes a section gets: `size` or `SHARD_SIZE` for a shard, `TRANSACTION_BYTES` for other targets.

    Raises `OptionError` for a size of a target without shards.
    """
    is_shards = isinstance(target, ShardTarget)
    if size is None:
        return SHARD_SIZE if is_shards else TRANSACTION_BYTES
    check_effect(f"shard_size={size}", is_shards, "a target of shards", target.path.name)
    return parse_size(size)


def target_of(path: str | os.PathLike[str], *, overwrite: bool = False, lock: str = LOCK) -> Target:
    """The place of a new container, by its suffix. Raises `OptionError` for an unknown suffix."""
    if "://" in os.fspath(path):  # the text is not quoted: it may have a secret
        raise OptionError("the target is a URL: only pack writes into an object store; write a local one and copy it")
    place = Path(os.fspath(path))
    if os.fspath(path).endswith("/"):
        if overwrite:
            raise OptionError(
                f"{os.fspath(path)} would be a folder, and folders are never overwritten: remove it first"
            )
        return FolderTarget(path)
    if place.suffix not in WRITTEN:
        suffix = place.suffix.lower() or LMDB
        known = [each for each in WRITTEN if each[:2] == suffix[:2]]  # the first letter must be right
        like = difflib.get_close_matches(suffix, known, 1, _LIKE)
        hint = f"; did you mean {place.with_suffix(like[0])}?" if like and place.stem else ""
        raise OptionError(
            f"the suffix of {os.fspath(path)!r} does not say what to make: expected {', '.join(WRITTEN)}, "
            f"or a / at the end for a folder of files, found {place.suffix or 'none'}{hint}"
        )
    if place.suffix == LMDB:
        return Target(path, overwrite=overwrite, lock=lock)
    return ShardTarget(path, place.suffix, overwrite=overwrite, lock=lock)


def writer_of(target: Target, description: Description, key_width: int = KEY_WIDTH) -> Writer:
    """The writer of an acquired target."""
    kind: type[Writer]
    if isinstance(target, FolderTarget):
        kind = FolderWriter
    elif target.path.suffix == LMDB:
        kind = LmdbWriter
    else:
        kind = tfrecord.TfrecordWriter if target.path.suffix in TFRECORD else tar.TarWriter
    return kind(target.partial, target.path.name, description, key_width)


def state_of(reader: Reader, source: str | os.PathLike[str]) -> str:
    """A digest of the manifests of all parts, and of sizes and times of the files of other programs."""
    facts: list[object] = []
    for each, name in containers_of(reader, os.fspath(source)):
        changed: list[list[int]] = []
        if not each.is_ours:  # the fingerprint of other containers covers places, not bytes
            files = getattr(each, "paths", None) or [getattr(each, "path", name)]
            states = [os.stat(file) for file in files if os.path.exists(file)]
            changed = [[state.st_size, state.st_mtime_ns] for state in states]
        facts.append([hashlib.sha256(each.manifest.to_json()).hexdigest(), changed])
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
