"""The place of a set of shards that is being made, and which files beside it belong to it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from iofast.containers.locked_folder import LOCK
from iofast.containers.publish import Target
from iofast.containers.shards import MANIFEST_SUFFIX, SHARD_SIZE, read_manifest
from iofast.containers.writer import INDEX_SUFFIX
from iofast.errors import ContainerError, OptionError, TargetError
from iofast.option import parse_size


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


def shard_bytes(size: int | str | None, target: Target) -> int:
    """Bytes of a shard: `size`, by default `SHARD_SIZE`. Raises `OptionError` if the target has no shards."""
    if size is None:
        return SHARD_SIZE
    if not isinstance(target, ShardTarget):
        raise OptionError(
            f"shard_size={size} has no effect: expected a target of shards, found {target.path.name}; leave it out"
        )
    return parse_size(size)
