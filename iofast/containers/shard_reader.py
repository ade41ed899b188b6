"""The Reader of a set of shards that iofast wrote. Tar and TFRecord need no code of their own: the index has places."""

import os
import stat
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from iofast.containers.indexed_reader import IndexedReader, Opening
from iofast.containers.manifest import Description, Manifest
from iofast.containers.open_files import OpenFiles
from iofast.containers.shard_writer import ShardWriter
from iofast.containers.shards import MANIFEST_SUFFIX, check_finished, open_index, read_manifest
from iofast.containers.writer import INDEX_SUFFIX
from iofast.errors import ContainerError, IofastError, because
from iofast.kernel.strangers import POINTER, is_pointer
from iofast.record import ImageInfo
from iofast.remote.urls import absolute, is_url

_STEP = 256  # records whose payloads are in memory together
LOOKS = 1024  # shards that are compared with the manifest at opening: 2 ms here, a second in a network's file system


class ShardReader(IndexedReader[Opening]):
    """Random access to the records of a set of shards: `path` is the name given to `pack`.

    Opening costs the same for any number of records, and a microsecond and at most one `stat` per shard. Raises
    `FileNotFoundError` if there is no manifest, `UnfinishedError` if `<path>.partial/` exists beside it,
    `ContainerError` if a shard is missing, has another size than in the manifest, or contradicts docs/format.md. Of
    more than `LOOKS` shards so many are compared, evenly spaced, and the others when they are first used, as all shards
    in an object store.
    `whole=False` compares all, and opens a set with missing or cut off shards: `broken` maps their numbers to what is
    wrong.
    """

    writer: ClassVar[type[ShardWriter]]

    def __init__(self, path: str | os.PathLike[str], *, whole: bool = True) -> None:
        check_finished(absolute(path))
        super().__init__(path)
        self.broken: dict[int, str] = {}
        paths = self._open().files.paths
        looks = 0 if is_url(self.path) else min(len(paths), LOOKS) if whole else len(paths)
        for number in np.linspace(0, len(paths) - 1, looks).astype(np.int64).tolist():
            try:
                _check_there(self.manifest, paths[number], number)
            except ContainerError as error:
                if whole:
                    raise
                self.broken[number] = str(error)

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__({**state, "broken": {}})

    def differences(self, shard: int) -> Iterator[tuple[int | None, str]]:
        """Encode the records of a shard again, and compare: see `IndexedReader.differences`.

        Records with damaged payloads are left out.
        """
        manifest, files, at = self.manifest, self._files(), 0
        description = Description(manifest.classes, manifest.class_order, manifest.recipe, manifest.seed)
        writer = self.writer("", os.path.basename(self.path), description, manifest.key_width)
        last = sum(each.count for each in manifest.shards[:shard]) - 1
        stop = last + 1 + manifest.shards[shard].count
        for index, key, fields, info, offsets in self._sound(last + 1, stop):
            encoded = writer.encode(key, fields, info)
            begins = {offset - encoded.offsets[name] for name, offset in offsets.items()}
            if begins != {at} and (index == last + 1 or len(begins) > 1):
                yield index, f"the index has its payloads at {offsets}, but the record begins at {at}"
            at, last = max(0, min(begins)), index
            if not files.has(shard, at, b"".join(encoded.pieces)):
                place = f"the record at offset {at} of {files.paths[shard]}"
                yield index, f"{place} is not as the index has it: another key, name, length or checksum"
            at += encoded.length
        end = writer.closing(at)
        ends = at + len(end) == manifest.shards[shard].size and files.has(shard, at, end)
        if last == stop - 1 and not ends:
            yield None, f"{files.paths[shard]}: the bytes after the last record, at offset {at}, do not end a shard"

    def _sound(self, start: int, stop: int) -> Iterator[tuple[int, str, dict[str, bytes], ImageInfo, dict[str, int]]]:
        """Those of the records [start, stop) without damage: index, key, fields, facts, offsets."""
        for begin in range(start, stop, _STEP):
            indices = np.arange(begin, min(begin + _STEP, stop), dtype=np.int64)
            facts, failed = self.columns(indices), dict[int, IofastError]()
            fields = self.all_values(indices, failed=failed)
            places = {name: self.places(indices, name).offset.tolist() for name in self.manifest.fields}
            offsets = [{name: places[name][row] for name in own} for row, own in enumerate(fields)]
            rows = zip(indices.tolist(), self.keys(facts), fields, facts.infos(), offsets, strict=True)
            yield from (each for row, each in enumerate(rows) if row not in failed and each[2])

    def _open_files(self) -> Opening:
        path, manifest = self.path, read_manifest(self.path)
        if any(not shard.name for shard in manifest.shards):
            raise ContainerError(f"{path}{MANIFEST_SUFFIX} has a shard without a name")
        try:
            index = open_index(path + INDEX_SUFFIX, manifest)
        except IofastError:
            raise
        except OSError as error:
            raise ContainerError(f"{path}{INDEX_SUFFIX} cannot be read: {because(error)}") from None
        folder, opened = path[: path.rindex("/") + 1], _identity(path)
        paths = [folder + shard.name for shard in manifest.shards]

        def check(number: int, status: os.stat_result) -> None:
            if _identity(path) != opened:
                raise ContainerError(f"{path} was replaced by another dataset since it was opened")
            _check_shard(manifest, paths[number], number, status)

        return Opening(manifest, index, OpenFiles(paths, check))


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
        if stat.S_ISREG(status.st_mode) and is_pointer(path, status.st_size):
            raise ContainerError(f"{path} is {POINTER}")
        raise ContainerError(f"{path} was cut off, or replaced by another file: {found}")


def _identity(path: str) -> tuple[int, int, int] | None:
    """Inode, size and time of the manifest: they differ from those of a later one. None for an object."""
    try:
        status = os.stat(path + MANIFEST_SUFFIX)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
