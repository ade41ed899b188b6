"""Sets of shards: names and patterns, and the files `<DST>.manifest` and `<DST>.index`.

docs/format.md sections 3.2, 5, 6 and 8. Readers and writers of sets are in `shard_reader` and `shard_writer`.
"""

from __future__ import annotations

import bisect
import glob
import itertools
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from iofast.containers import index
from iofast.containers.any_bytes import open_bytes
from iofast.containers.file_bytes import FileBytes, retried
from iofast.containers.index_view import IndexView
from iofast.containers.locked_folder import LOCK
from iofast.containers.manifest import WHOLE, Manifest
from iofast.containers.publish import MARKER
from iofast.errors import ContainerError, OptionError, SourceMissingError, StorageError, UnfinishedError
from iofast.remote.urls import is_url

MANIFEST_SUFFIX = ".manifest"
INDEX_SUFFIX = ".index"
SHARD_SIZE = 1_000_000_000  # bytes, by default
MAX_SHARDS = 1_000_000  # in a pattern: {0..999999999999} must not fill the memory

_MAGIC, _ALIGN = b"iofastIF", index.PADDING
_HEADER = struct.Struct("<8sHHIQI")  # then its CRC32C
_HEADER_SIZE = _HEADER.size + 4
_U32 = struct.Struct("<I")
_BRACES = re.compile(r"\{([^{}]*)\}")
_SHARD = re.compile(r"(.*/)([^/]+?)-\d{5,6}(?:-of-\d{5})?(\.\w+)")  # folder, stem, suffix
_RANGE = re.compile(r"(\d+)\.\.(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ShardCut:
    """Where shards end, in addition to the ends of splits.

    With `records`: after so many positions, counted from each of `starts`, so that a shard depends only on its own
    records. Without: before the record that would make the shard larger than `size` bytes. Raises `OptionError`.
    """

    size: int = SHARD_SIZE
    records: int | None = None
    starts: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if self.size < 1 or (self.records is not None and self.records < 1):
            raise OptionError(f"a shard must have room for something, found {self.size} bytes, {self.records} records")

    def between(self, last: int, position: int, size: int) -> bool:
        """Whether a shard ends between the records at these positions; `size`: bytes of the shard with both."""
        return size > self.size if self.records is None else self._cell(last) != self._cell(position)

    def _cell(self, position: int) -> tuple[int, int]:
        run = bisect.bisect_right(self.starts, position) - 1
        return run, (position - self.starts[max(0, run)]) // (self.records or 1)


def stem_with(stem: str, split: str) -> str:
    """The beginning of the names of a split's shards: the stem and the split.

    The split is left out in a set without splits, and if the stem ends with its name: the split train of `train.tar`
    is in `train-000000.tar`, not in `train-train-000000.tar`.
    """
    is_named = split == WHOLE or stem == split or stem.endswith((f"-{split}", f"_{split}", f".{split}"))
    return stem if is_named else f"{stem}-{split}"


def expand(pattern: str) -> list[str]:
    """The files of a pattern of shards: braces as in `{000000..000127}` and `{a,b}`, then `*`, `?` and `[…]`.

    They are in the order of the braces; matches of a glob are sorted. Files of a brace pattern need not exist. Raises
    `SourceError` if a glob matches nothing, `OptionError` if the pattern names too many files.
    """
    named = list(itertools.islice(_braces(pattern), MAX_SHARDS + 1))
    if len(named) > MAX_SHARDS:
        raise OptionError(f"{pattern} names more than {MAX_SHARDS} shards")
    found: list[str] = []
    for name in named:
        is_glob = glob.has_magic(name) and not is_url(name) and not os.path.exists(name)
        matches = sorted(glob.glob(name)) if is_glob else [name]
        if not matches:
            raise SourceMissingError(f"no file matches {name}")
        found += matches
    return found


def is_pattern(name: str) -> bool:
    """Whether a path must be expanded: it has braces or a glob, and no file has this name."""
    return (glob.has_magic(name) or _BRACES.search(name) is not None) and not os.path.lexists(name)


def set_of(paths: Sequence[str]) -> str | None:
    """The set whose shards are exactly these files; None if iofast did not write them, or others belong to it.

    Raises `UnfinishedError` if an unfinished set in the same folder may contain them.
    """
    if is_url(paths[0]):
        return _stored_set_of(paths)
    folders = {os.path.dirname(os.path.abspath(path)) for path in paths}
    if len(folders) != 1:
        return None
    folder = Path(folders.pop())
    names = sorted(os.path.basename(path) for path in paths)
    suffix = Path(names[0]).suffix
    for entry in sorted(os.listdir(folder) if folder.is_dir() else ()):
        own = entry.removesuffix(MANIFEST_SUFFIX).removesuffix(".partial")
        if own == entry or not own.endswith(suffix) or not names[0].startswith(own.removesuffix(suffix) + "-"):
            continue
        check_finished(folder / own)
        shards = read_manifest(folder / own).shards if entry.endswith(MANIFEST_SUFFIX) else ()
        if sorted(shard.name for shard in shards) == names:
            return os.fspath(folder / own)
    return None


def _stored_set_of(paths: Sequence[str]) -> str | None:
    """As `set_of`, of objects: by the names that `pack` gives to the shards of a set without splits."""
    found = _SHARD.fullmatch(paths[0])
    if found is None:
        return None
    folder, own = found[1], found[1] + found[2] + found[3]
    try:
        names = {folder + shard.name for shard in read_manifest(own).shards}
    except (FileNotFoundError, ContainerError):
        return None
    except StorageError as error:  # perhaps refused because it does not exist
        if error.was_patient:
            raise
        return None
    return own if sorted(names) == sorted(paths) else None


def check_finished(path: str | os.PathLike[str]) -> None:
    """Raise `UnfinishedError` if `<path>.partial/` exists beside the set `path`.

    In an object store a set with a manifest is finished.
    """
    if is_url(path):
        return
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        there = set(os.listdir(partial))
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError:  # another user's
        there = set()
    manifest = path.name + MANIFEST_SUFFIX
    if (there <= {LOCK} or (MARKER in there and manifest not in there)) and path.with_name(manifest).exists():
        return
    raise UnfinishedError(f"{path} was not finished: run the same command again to go on with it")


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of the set `path`. Raises `FileNotFoundError` if there is none, and `ContainerError`."""
    if is_url(path):
        where = f"{os.fspath(path)}{MANIFEST_SUFFIX}"
        stored = open_bytes(where)
        return retried(stored, lambda: Manifest.from_json(stored[:], where))
    path = Path(path)
    file = path.with_name(path.name + MANIFEST_SUFFIX)
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
        write_directory(file, starts, file.tell())


def write_directory(file: BinaryIO, starts: Sequence[int], end: int) -> None:
    """Write the header and the directory of an index file whose chunks begin at `starts` and end at `end`."""
    file.seek(end)
    directory = struct.pack(f"<{len(starts) + 1}Q", *starts, end)
    file.write(directory + _U32.pack(google_crc32c.value(directory)))
    file.seek(0)
    header = _HEADER.pack(_MAGIC, index.VERSION, 0, len(starts), end, 0)
    file.write(header + _U32.pack(google_crc32c.value(header)))


def open_index(path: str | os.PathLike[str], manifest: Manifest) -> IndexView:
    """Open `<DST>.index`; only its directory is read at once. Raises `ContainerError`."""
    where = os.fspath(path)
    data = open_bytes(where)
    return retried(data, lambda: _index_in(data, manifest, where))


def _index_in(data: FileBytes, manifest: Manifest, where: str) -> IndexView:
    head = data[:_HEADER_SIZE]
    if len(head) < _HEADER_SIZE or google_crc32c.value(head[:-4]) != _U32.unpack_from(head, _HEADER.size)[0]:
        raise ContainerError(f"{where} is not an index, or the header at offset 0 is damaged: its CRC32C differs")
    magic, version, _, count, offset, _ = _HEADER.unpack_from(head)
    if (magic, version) != (_MAGIC, index.VERSION):
        raise ContainerError(
            f"{where} must begin with {_MAGIC!r} version {index.VERSION}, found {magic!r} version {version}"
        )
    if count != index.chunk_count(manifest.count):
        raise ContainerError(f"{where} has {count} chunks, expected {index.chunk_count(manifest.count)}")
    length = 8 * (count + 1)
    directory = data[offset : offset + length + 4] if offset < len(data) else b""
    if len(directory) < length + 4 or google_crc32c.value(directory[:-4]) != _U32.unpack_from(directory, length)[0]:
        raise ContainerError(f"{where} is cut off, or its directory at offset {offset} is damaged: its CRC32C differs")
    return IndexView(data, manifest, partial(_find_chunk, np.frombuffer(directory, "<u8", count + 1), where), where)


def _find_chunk(starts: NDArray[np.uint64], where: str, chunk: int) -> tuple[int, int]:
    start, end = int(starts[chunk]), int(starts[chunk + 1])
    if start % _ALIGN or end < start:
        raise ContainerError(f"{where}: index chunk {chunk} cannot lie at offsets {start} to {end}")
    return start, end - start


def _braces(pattern: str) -> Iterator[str]:
    """Expand the first pair of braces without braces inside, then the rest of the pattern."""
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
