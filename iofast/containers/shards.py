"""What a set of shards is: names and patterns, the sidecars `<DST>.manifest` and `<DST>.index`, how it is published.

docs/format.md sections 3.2, 5, 6 and 8. Readers and writers of sets are in `shard_reader` and `shard_writer`.
"""

from __future__ import annotations

import bisect
import contextlib
import glob
import itertools
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from iofast.containers.file_bytes import FileBytes
from iofast.containers.index import IndexView, chunk_count, chunk_size
from iofast.containers.locked_folder import LOCK
from iofast.containers.manifest import CHUNK_LIMIT, WHOLE, Manifest
from iofast.containers.publish import APPENDING, MARKER, Target
from iofast.errors import ContainerError, IofastError, OptionError, SourceError, TargetError, UnfinishedError

MANIFEST_SUFFIX = ".manifest"
INDEX_SUFFIX = ".index"
SHARD_SIZE = 1_000_000_000  # bytes, where nothing else is said
MAX_SHARDS = 1_000_000  # of a pattern: {0..999999999999} must not fill the memory

_MAGIC, _VERSION, _ALIGN = b"iofastIF", 1, 64
_HEADER = struct.Struct("<8sHHIQI")  # then its CRC32C
_HEADER_SIZE = _HEADER.size + 4
_U32 = struct.Struct("<I")
_BRACES = re.compile(r"\{([^{}]*)\}")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.ASCII | re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_RANGE = re.compile(r"(\d+)\.\.(\d+)", re.ASCII)


def parse_size(value: int | str, option: str = "shard_size") -> int:
    """Bytes, from a number or a text such as 500MB, 1GB, 1.5GiB. Raises `OptionError`."""
    found = _SIZE.fullmatch(str(value).strip()) if len(str(value)) < 32 else None
    if found is None or isinstance(value, bool):
        raise OptionError(
            f"{option} must be a number of bytes, or one with a unit such as 500MB or 1GiB, found {value!r:.40}"
        )
    size = round(float(found[1]) * float(1024 if found[3] else 1000) ** _POWERS[found[2].lower()])
    if not 1 <= size < 1 << 62:
        raise OptionError(f"{option} must be above 0 and below 2^62 bytes, found {value!r}")
    return size


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a set is cut into shards, beside the ends of its splits.

    With `records` after every so many positions, counted from each of `starts` on: then a shard depends on its own
    records alone. Else before the record that would make a shard larger than `size` bytes. Raises `OptionError`.
    """

    size: int = SHARD_SIZE
    records: int | None = None
    starts: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if self.size < 1 or (self.records is not None and self.records < 1):
            raise OptionError(f"a shard must have room for something, found {self.size} bytes, {self.records} records")

    def between(self, last: int, position: int, size: int) -> bool:
        """Whether a shard ends between the records of these positions; `size` is what it would have with both."""
        return size > self.size if self.records is None else self._cell(last) != self._cell(position)

    def _cell(self, position: int) -> tuple[int, int]:
        run = bisect.bisect_right(self.starts, position) - 1
        return run, (position - self.starts[max(0, run)]) // (self.records or 1)


def shard_bytes(size: int | str | None, place: Target) -> int:
    """Bytes of a shard of the target: `size`, by default `SHARD_SIZE`. Raises `OptionError` if it has no shards."""
    if size is None:
        return SHARD_SIZE
    if not isinstance(place, ShardTarget):
        raise OptionError(
            f"shard_size={size} has no effect: expected a target of shards, found {place.path.name}; leave it out"
        )
    return parse_size(size)


def stem_of(name: str, suffix: str) -> str:
    """The name of a set without its suffix: what the names of its shards begin with."""
    return name.removesuffix(suffix)


def stem_with(stem: str, split: str) -> str:
    """What the names of a split's shards begin with: the stem and the split.

    The split is left out in a set without splits, and where the stem ends with its name already: the split train of
    `train.tar`, or of `birds-train.tar`, stands in `train-000000.tar`, not in `train-train-000000.tar`.
    """
    said = split == WHOLE or stem == split or stem.endswith((f"-{split}", f"_{split}", f".{split}"))
    return stem if said else f"{stem}-{split}"


def expand(pattern: str) -> list[str]:
    """The files that a pattern of shards names: braces as in `{000000..000127}` and `{a,b}`, then `*`, `?` and `[…]`.

    In the order of the braces; what a glob matches is sorted. A brace pattern names its files whether they are there or
    not. Raises `SourceError` where a glob matches nothing, `OptionError` for a pattern that is too long.
    """
    named = list(itertools.islice(_braces(pattern), MAX_SHARDS + 1))
    if len(named) > MAX_SHARDS:
        raise OptionError(f"{pattern} names more than {MAX_SHARDS} shards")
    found: list[str] = []
    for name in named:
        matches = sorted(glob.glob(name)) if glob.has_magic(name) and not os.path.exists(name) else [name]
        if not matches:
            raise SourceError(f"no file matches {name}")
        found += matches
    return found


def is_pattern(name: str) -> bool:
    """Whether a path is to be expanded: it has braces or a glob, and is not the name of a file itself."""
    return (glob.has_magic(name) or _BRACES.search(name) is not None) and not os.path.lexists(name)


def set_of(paths: Sequence[str]) -> Path | None:
    """The set that iofast wrote and of which these are all the shards; None where they are another program's, or some.

    Raises `UnfinishedError` where a set is being made beside them that may hold them.
    """
    folders = {os.path.dirname(os.path.abspath(path)) for path in paths}
    if len(folders) != 1:
        return None
    folder = Path(folders.pop())
    names = sorted(os.path.basename(path) for path in paths)
    suffix = Path(names[0]).suffix
    for entry in sorted(os.listdir(folder) if folder.is_dir() else ()):
        own = entry.removesuffix(MANIFEST_SUFFIX).removesuffix(".partial")
        if own == entry or not own.endswith(suffix) or not names[0].startswith(stem_of(own, suffix) + "-"):
            continue
        check_finished(folder / own)
        shards = read_manifest(folder / own).shards if entry.endswith(MANIFEST_SUFFIX) else ()
        if sorted(shard.name for shard in shards) == names:
            return folder / own
    return None


def check_finished(path: Path) -> None:
    """Raise `UnfinishedError` where `<path>.partial/` stands beside the set `path`, and it is not only added to."""
    partial = path.with_name(path.name + ".partial")
    try:
        there = set(os.listdir(partial))
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError:  # another user's; it may be an addition, and what is replaced loses its manifest first
        there = {APPENDING}
    if path.with_name(path.name + MANIFEST_SUFFIX).exists() and (
        APPENDING in there or there <= {LOCK} or not _is_of_its_owner(partial, path)
    ):
        return
    raise UnfinishedError(f"{path} was not finished: run the same command again to go on with it")


def _is_of_its_owner(partial: Path, path: Path) -> bool:
    """Whether `<path>.partial/` belongs to the user who wrote the index of the set: another user's says nothing."""
    try:
        return partial.lstat().st_uid == path.with_name(path.name + INDEX_SUFFIX).lstat().st_uid
    except OSError:
        return True


def read_manifest(path: Path) -> Manifest:
    """The manifest of the set `path`. Raises `FileNotFoundError` where there is none, `ContainerError`."""
    partial, file = path.with_name(path.name + ".partial"), path.with_name(path.name + MANIFEST_SUFFIX)
    # killed between two renames of an addition: the index is the new one already, and everything else is there
    published = not os.path.exists(partial / (path.name + INDEX_SUFFIX))
    if os.path.exists(partial / MARKER) and published and _is_of_its_owner(partial, path):
        with contextlib.suppress(FileNotFoundError):
            staged = os.fspath(partial / file.name)
            return Manifest.from_json(FileBytes(staged)[:], staged)
    return Manifest.from_json(FileBytes(os.fspath(file))[:], os.fspath(file))


def write_index(path: Path, chunks: Iterable[bytes]) -> None:
    """Write the chunks of a binary index as `<DST>.index`."""
    starts = []
    with path.open("wb") as file:
        file.write(bytes(_HEADER_SIZE))
        for chunk in chunks:
            file.write(bytes(-file.tell() % _ALIGN))
            starts.append(file.tell())
            file.write(chunk)
        end = file.tell()
        directory = struct.pack(f"<{len(starts) + 1}Q", *starts, end)
        file.write(directory + _U32.pack(google_crc32c.value(directory)))
        file.seek(0)
        header = _HEADER.pack(_MAGIC, _VERSION, 0, len(starts), end, 0)
        file.write(header + _U32.pack(google_crc32c.value(header)))


def open_index(path: Path, manifest: Manifest, groups: Sequence[str] | None = None) -> IndexView:
    """The rows in `<DST>.index`, of which nothing but the directory is read yet. Raises `ContainerError`.

    `groups` are the location groups of a row, where there are others than the manifest's fields.
    """
    groups = manifest.fields if groups is None else groups
    where = os.fspath(path)
    data = FileBytes(where)
    head = data[:_HEADER_SIZE]
    if len(head) < _HEADER_SIZE or google_crc32c.value(head[:-4]) != _U32.unpack_from(head, _HEADER.size)[0]:
        raise ContainerError(f"{where} is no index, or the header at offset 0 is damaged: its CRC32C differs")
    magic, version, _, count, offset, _ = _HEADER.unpack_from(head)
    if (magic, version) != (_MAGIC, _VERSION):
        raise ContainerError(f"{where} begins with {magic!r} version {version}, expected {_MAGIC!r} version {_VERSION}")
    if count != chunk_count(manifest.count) or count > CHUNK_LIMIT:
        raise ContainerError(f"{where} has {count} chunks, expected {chunk_count(manifest.count)}")
    length = 8 * (count + 1)
    directory = data[offset : offset + length + 4] if offset < len(data) else b""
    if len(directory) < length + 4 or google_crc32c.value(directory[:-4]) != _U32.unpack_from(directory, length)[0]:
        raise ContainerError(f"{where} is cut off, or its directory at offset {offset} is damaged: its CRC32C differs")
    starts = np.frombuffer(directory, "<u8", count + 1)
    return IndexView(data, manifest, partial(_find_chunk, starts, manifest.count, groups, where), where, groups)


class ShardTarget(Target):
    """The place of a set of shards that is being made. `suffix` is that of its shards."""

    def __init__(
        self, path: str | os.PathLike[str], suffix: str, *, overwrite: bool = False, append: bool = False
    ) -> None:
        super().__init__(path, overwrite=overwrite, append=append)
        self._stem, self._suffix = stem_of(self.path.name, suffix), suffix
        stem, end = re.escape(self._stem) + "(-[0-9A-Za-z_-]+)?", re.escape(suffix)
        self._shard = re.compile(rf"{stem}-\d+{end}")
        self._beside = re.compile(rf"{stem}(-\d+\.idx|\.shardindex\.json)|_info\.json")  # see sidecars.py

    def check_free(self) -> None:
        """Raise `TargetError` if a set, a file, or shards of the same names stand in the set's place."""
        super().check_free()
        if self.overwrite or self.append or not self.path.parent.exists():
            return
        found = next(self.taken(sorted(os.listdir(self.path.parent))), None)
        if found is not None:
            where = self.path.with_name(found)
            raise TargetError(
                f"{where} exists already: choose another name than {self.path.name}, or give overwrite=True"
            )

    @property
    def exists(self) -> bool:
        """Whether a finished set stands there."""
        return self.path.with_name(self.path.name + MANIFEST_SUFFIX).is_file()

    def publish(
        self,
        names: Mapping[str, str] | Sequence[str] | None = None,
        replaced: Sequence[str] = (),
        removed: Sequence[str] = (),
    ) -> None:
        """Publish a set; what it replaces is found in the manifest of the old one.

        Raises `TargetError` where a file would be written over that the old set does not name.
        """
        named = list(names.values()) if isinstance(names, Mapping) else list(names or ())
        old = [*replaced, *self._replaced()]
        sidecars = [self.path.name + MANIFEST_SUFFIX, self.path.name + INDEX_SUFFIX]
        if self.append:  # nothing that stands is touched before the new manifest is there; sidecars are renamed over
            old = sidecars
        strange = [name for name in named if name not in old and os.path.lexists(self.path.with_name(name))]
        if strange:
            raise TargetError(
                f"{self.path.with_name(strange[0])} exists already and is no part of {self.path}: move it"
            )
        super().publish(names, () if self.append else old, removed)

    def _renamed(self, marker: Mapping[str, Sequence[str]]) -> IofastError | None:
        from iofast.containers import sidecars  # which opens sets, and needs this module

        if self.append:
            sidecars.renew(self.path, marker["removed"])
        try:
            sidecars.write(self.path, marker["sidecars"], published=False)
        except (TargetError, OptionError) as error:
            return type(error)(f"{self.path} is whole, but not its sidecars: {error}")
        return None

    def owns(self, name: str) -> bool:
        """Whether a file of this name beside the target can be one of its own; see `Target.owns`."""
        if name in (self.path.name + MANIFEST_SUFFIX, self.path.name + INDEX_SUFFIX):
            return True
        return bool(self._shard.fullmatch(name) or self._beside.fullmatch(name))

    def taken(self, names: Sequence[str]) -> Iterator[str]:
        """The files that are, or may be, of a set of this name; `train-val-000000.tar` may be of `train-val.tar`."""
        sidecars = (self.path.name + MANIFEST_SUFFIX, self.path.name + INDEX_SUFFIX)
        longer = [stem_of(name, self._suffix + MANIFEST_SUFFIX) for name in names if name.endswith(MANIFEST_SUFFIX)]
        others = tuple(f"{stem}-" for stem in longer if len(stem) > len(self._stem))
        for name in names:
            if name in sidecars or (self._shard.fullmatch(name) and not name.startswith(others)):
                yield name

    def _replaced(self) -> list[str]:
        """The manifest that is there, then the files that go with it."""
        file = self.path.with_name(self.path.name + MANIFEST_SUFFIX)
        if not os.path.lexists(file):
            return [self.path.name + INDEX_SUFFIX]
        shards: list[str] = []
        with contextlib.suppress(OSError, ContainerError):  # damaged: what it named is not known, and stays
            shards = [shard.name for shard in read_manifest(self.path).shards]
        from iofast.containers.sidecars import belonging  # which opens sets, and needs this module

        beside = belonging(self.path, shards)
        # a damaged or hostile manifest may name anything
        return [file.name, self.path.name + INDEX_SUFFIX, *filter(self.owns, [*beside, *shards])]


def _find_chunk(
    starts: NDArray[np.uint64], records: int, groups: Sequence[str], where: str, chunk: int
) -> tuple[int, int]:
    start, end = int(starts[chunk]), int(starts[chunk + 1])
    size = chunk_size(min(1 << 16, records - (chunk << 16)), groups)
    if start % _ALIGN or not 0 <= end - start - size < _ALIGN:
        raise ContainerError(f"{where}: index chunk {chunk} at {start} … {end} has not the {size} bytes expected")
    return start, size


def _braces(pattern: str) -> Iterator[str]:
    """The pattern with its first pair of braces (one without braces inside) replaced, again and again."""
    found = _BRACES.search(pattern)
    if found is None:
        yield pattern
        return
    head, tail = pattern[: found.start()], pattern[found.end() :]
    if numbers := _RANGE.fullmatch(found[1]):
        low, high = int(numbers[1]), int(numbers[2])
        width = max(map(len, numbers.groups())) if "0" in (numbers[1][0], numbers[2][0]) else 0
        step = 1 if low <= high else -1
        choices: Iterable[str] = (f"{number:0{width}d}" for number in range(low, high + step, step))
    else:
        choices = found[1].split(",")
    for choice in choices:
        for rest in _braces(tail):
            yield head + choice + rest
