"""The Reader of a set of shards that iofast wrote; what is special to tar or TFRecord is in the index already."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Located
from iofast.containers.entries import RecordEntry
from iofast.containers.index import ABSENT, IndexView, Stamp
from iofast.containers.located_rows import columns, field_numbers, misplaced
from iofast.containers.manifest import Manifest
from iofast.containers.open_files import FilesReader, OpenFiles
from iofast.containers.shards import INDEX_SUFFIX, MANIFEST_SUFFIX, check_finished, open_index, read_manifest
from iofast.errors import ContainerError, because
from iofast.record import ImageInfo, format_key

_STEP = 4096  # rows of the index that are looked at in one go


class ShardReader(FilesReader):
    """Random access to the records of a set of shards: `path` is the name that was given to `pack`.

    Opening costs the same for any number of records; of every shard it looks at the size. Raises `FileNotFoundError`
    where there is no manifest, `UnfinishedError` where `<path>.partial/` stands beside it, `ContainerError` where a
    shard is missing or has another size than the manifest says, and where bytes contradict docs/format.md. For those
    who look for damage, `whole=False` lets such shards be: `broken` says by number what is wrong with them.
    """

    def __init__(self, path: str | os.PathLike[str], *, published: bool = True, whole: bool = True) -> None:
        self.path = os.path.abspath(os.fspath(path))
        if published:  # else it is who publishes it that asks, and looks at what has its name
            check_finished(Path(self.path))
        self._opened: _OpenedSet | None = _OpenedSet(self.path, self._groups)
        self.manifest = self._opened.manifest
        self.broken: dict[int, str] = {}
        for number, shard in enumerate(self._opened.files.paths):
            try:
                _check_there(self.manifest, shard, number)
            except ContainerError as error:
                if whole:
                    raise
                self.broken[number] = str(error)

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "manifest": self.manifest}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _opened=None, broken={})

    def locate(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """Where the payloads lie; see `Reader.locate`. A record without the field has `file` 0xFFFFFFFF."""
        opened = self._open()
        indices = np.ascontiguousarray(indices, np.int64).reshape(-1)
        rows = opened.index.rows(indices)
        number = field_numbers(self.manifest.fields, field, rows, self.path)
        located = columns(indices, self.manifest.fields, rows, number)
        opened.check_places(located)
        return located

    def placed(self) -> Iterator[tuple[int, RecordEntry]]:
        """All records as the index has them, each with the number of its shard."""
        opened = self._open()
        groups = self._groups(self.manifest)
        for _, start, stop in self.manifest.ranges():
            for first in range(start, stop, _STEP):
                for row in opened.index.rows(np.arange(first, min(first + _STEP, stop), dtype=np.int64)):
                    own = zip(groups, row["place"].tolist(), strict=True)
                    there = [(name, place) for name, place in own if place[0] != ABSENT]
                    fields = tuple((name, length, crc, offset) for name, (_, offset, length, crc) in there)
                    info = ImageInfo(*(int(row[name]) for name in ("label", "width", "height", "orientation")))
                    yield there[0][1][0], RecordEntry(int(row["position"]), info, fields)

    def name(self, index: int) -> str:
        """`shards/train-000000.tar: 00000042`: the shard, for that is what one looks into."""
        opened = self._open()
        row = opened.index.rows(np.array([index], np.int64))[0]
        file = int(row["place"]["file"].min(initial=ABSENT))
        path = opened.files.paths[file] if file < len(opened.files.paths) else self.path
        return f"{path}: {int(row['position']):0{self.manifest.key_width}d}"

    def close(self) -> None:
        """Let go of all files; they are closed when the last `payloads` block has ended."""
        self._opened = None

    def _groups(self, manifest: Manifest) -> Sequence[str]:
        """The location groups of an index row."""
        return manifest.fields

    def _files(self) -> OpenFiles:
        return self._open().files

    def _there(self, index: int) -> list[str]:
        row = self._open().index.rows(np.array([index], np.int64))[0]
        fields = self.manifest.fields
        there = (row["place"]["file"][: len(fields)] != ABSENT).tolist()
        return [name for name, own in zip(fields, there, strict=True) if own]

    def _key(self, index: int) -> str:
        row = self._open().index.rows(np.array([index], np.int64))[0]
        return format_key(int(row["position"]), self.manifest.key_width)

    def _open(self) -> _OpenedSet:
        opened = self._opened
        if opened is None:
            opened = _OpenedSet(self.path, self._groups)
            if opened.manifest.fingerprint != self.manifest.fingerprint:
                raise ContainerError(f"{self.path} was replaced by another dataset since it was opened")
            self._opened = opened
        return opened


class _OpenedSet:
    """One opening of the set: manifest, index, and the shards as they are needed."""

    def __init__(self, path: str, groups: Callable[[Manifest], Sequence[str]]) -> None:
        place = Path(path)
        self.manifest = manifest = read_manifest(place)
        index = place.with_name(place.name + INDEX_SUFFIX)
        try:
            self.index: IndexView = open_index(index, manifest, groups(manifest))
        except OSError as error:
            raise ContainerError(f"{index} cannot be read: {because(error)}") from None
        if manifest.count and self.index.stamp() != Stamp():
            raise ContainerError(f"{index} is not the index of a set of shards: its stamp is {self.index.stamp()}")
        paths = [os.path.join(place.parent, shard.name) for shard in manifest.shards]
        if any(not shard.name for shard in manifest.shards):
            raise ContainerError(f"{path}{MANIFEST_SUFFIX} names a shard without a name")
        seen = _identity(place)

        def check(number: int, status: os.stat_result) -> None:
            if _identity(place) != seen:
                raise ContainerError(f"{path} was replaced by another dataset since it was opened")
            _check_shard(manifest, paths[number], number, status)

        self.files = OpenFiles(paths, check)
        self._sizes = np.array([shard.size for shard in manifest.shards] or [0], np.uint64)
        self._path = path

    def check_places(self, located: Located) -> None:
        """Refuse places outside the shards."""
        if (found := misplaced(located, self._sizes)) is not None:
            position, place = found
            raise ContainerError(f"{self._path}: the index puts a payload of position {position} outside: {place}")


def _check_there(manifest: Manifest, path: str, number: int) -> None:
    try:
        status = os.stat(path)
    except OSError as error:
        raise ContainerError(f"{path} cannot be read: {because(error)}") from None
    _check_shard(manifest, path, number, status)


def _check_shard(manifest: Manifest, path: str, number: int, status: os.stat_result) -> None:
    expected = manifest.shards[number].size
    if not stat.S_ISREG(status.st_mode) or status.st_size != expected:
        found = f"{status.st_size} bytes, expected {expected}"
        raise ContainerError(f"{path} was cut off, or replaced by another file: {found}")


def _identity(place: Path) -> tuple[int, int, int] | None:
    """What tells a manifest from the one that replaces it."""
    try:
        status = os.stat(place.with_name(place.name + MANIFEST_SUFFIX))
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
