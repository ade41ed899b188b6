"""Sets of shards: names and patterns, and the files `<DST>.manifest` and `<DST>.index`.

docs/format.md sections 3, 5, 6 and 8. Readers and writers of sets are in `shard_reader` and `shard_writer`.
"""

import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from iofast.containers.any_bytes import open_bytes
from iofast.containers.file_bytes import retried
from iofast.containers.index import BLOCK, IndexView, Layout
from iofast.containers.manifest import WHOLE, Manifest
from iofast.containers.publish import MARKER
from iofast.errors import ContainerError, OptionError, SourceMissingError, StorageError, UnfinishedError
from iofast.remote.urls import is_url

MANIFEST_SUFFIX = ".manifest"
SHARD_SIZE = 1_000_000_000  # bytes, by default
MAX_SHARDS = 1_000_000  # in a pattern: {0..999999999999} must not fill the memory

_BRACES = re.compile(r"\{([^{}]*)\}")
_SHARD = re.compile(r"(.*/)([^/]+?)-\d{5,6}(?:-of-\d{5})?(\.\w+)")  # folder, stem, suffix
_RANGE = re.compile(r"(\d+)\.\.(\d+)", re.ASCII)


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
        if is_url(name) and "*" in name:
            raise OptionError(f"{name}: names in a store are not searched: expected braces, as in {{000000..000127}}")
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
    if (MARKER not in there or manifest not in there) and path.with_name(manifest).exists():
        return
    raise UnfinishedError(f"{path} was not finished: run the same command again to go on with it")


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of the set `path`. Raises `FileNotFoundError` if there is none, and `ContainerError`."""
    file = f"{os.fspath(path)}{MANIFEST_SUFFIX}"
    data = open_bytes(file)
    return retried(data, lambda: Manifest.from_json(data[:], file))


def open_index(path: str | os.PathLike[str], manifest: Manifest) -> IndexView:
    """Open `<DST>.index`; nothing is read yet. Raises `ContainerError`."""
    where = os.fspath(path)
    data, expected = open_bytes(where), Layout(manifest.count, manifest.fields).size
    if len(data) != expected:
        raise ContainerError(f"{where}: expected {expected} bytes, found {len(data)}")
    return IndexView(data, manifest, lambda block: block * BLOCK, where)


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
