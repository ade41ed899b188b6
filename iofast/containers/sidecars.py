"""Sidecars: index files for other programs, in their formats, beside a set of shards (docs/format.md).

They contain only data of the set, can be made again at any time, and are ignored by iofast's readers.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from iofast import owned
from iofast.containers import tar, tfrecord
from iofast.containers.container_suffixes import TAR, TFRECORD
from iofast.containers.index import ABSENT
from iofast.containers.manifest import WHOLE, Manifest, Shard
from iofast.containers.shard_reader import ShardReader
from iofast.containers.shards import MANIFEST_SUFFIX, stem_with
from iofast.errors import OptionError, TargetError, because

NAMES = ("dali", "wids", "timm")
INFO = "_info.json"  # of timm: one file for all sets of a folder

_WIDS = ".shardindex.json"
_STEP = 65_536  # records at a time


def write(path: str | os.PathLike[str], names: Iterable[str], *, published: bool = True) -> list[Path]:
    """Write the sidecars `names` (of `NAMES`) of the set `path` that iofast wrote; returns the files, in that order.

    `dali`: `<shard>.idx` for each shard, like those of wds2idx (v1.2) and tfrecord2idx. `wids`:
    `<stem>.shardindex.json` for each split of a tar set. `timm`: `_info.json`, which keeps its splits of other sets in
    the folder. Each file gets its name when it is complete. Not `published`: the set's `.partial` folder still exists.
    Raises `OptionError` for an unknown name, or one that TFRecords cannot have, `TargetError` if a file cannot be
    written or belongs to another set, and all errors of opening the set.
    """
    place = Path(os.path.abspath(path))
    wanted = check_names(names, place.suffix)
    if not wanted:
        return []
    reader = _open(place, published=published)
    made: list[Path] = []
    for name in wanted:
        for file, text in _WRITERS[name](reader, place):
            made.append(place.with_name(file))
            _store(made[-1], text, place)
    return made


def renew(path: Path, gone: Sequence[str] = ()) -> None:
    """Update the sidecars of the set `path` after an append; `gone` are shards whose name has changed.

    A sidecar that cannot be written stays as it was, with a warning; the set itself is complete.
    """
    reader = _open(path)
    shards = [shard.name for shard in reader.manifest.shards]
    old = [name for name in map(_index_name, gone) if path.with_name(name).is_file()]
    had = {"dali": bool(old) or any(path.with_name(_index_name(shard)).is_file() for shard in shards)}
    indexes = [path.with_name(name) for name in os.listdir(path.parent) if name.endswith(_WIDS)]
    had["wids"] = any(_named(file) & set(shards) for file in indexes)
    had["timm"] = bool(_named(path.parent / INFO) & set(shards))
    for name in NAMES:
        try:
            if had[name]:
                write(path, [name])
        except TargetError as error:
            warnings.warn(f"{path}: its sidecar {name} is out of date: {error}", RuntimeWarning, stacklevel=2)
    for name in set(old) - {_index_name(shard) for shard in shards}:
        path.with_name(name).unlink(missing_ok=True)


def check_names(names: Iterable[str], suffix: str) -> tuple[str, ...]:
    """The names without repetitions. Raises `OptionError` if a set of this suffix cannot have one of them."""
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in NAMES:
            raise OptionError(f"there is no sidecar {name!r}, only {', '.join(NAMES)}")
        if suffix not in (TAR, *TFRECORD):
            raise OptionError(f"sidecars are for tar and TFRecord shards, not for {suffix or 'a folder'}")
        if name != "dali" and suffix != TAR:
            raise OptionError(f"sidecar {name} is for tar shards, and this set is {suffix}: it can have dali")
    return wanted


def belonging(path: Path, shards: Sequence[str]) -> list[str]:
    """The sidecars beside the set `path` that describe only these shards: they are removed with the shards."""
    own = set(shards)
    files = [_index_name(shard) for shard in shards]
    files += [name for name in os.listdir(path.parent) if name.endswith(_WIDS) and _named(path.parent / name) <= own]
    files += [INFO] if _named(path.parent / INFO) <= own else []
    return [name for name in files if path.with_name(name).is_file()]


def _open(place: Path, *, published: bool = True) -> ShardReader:
    if not place.with_name(place.name + MANIFEST_SUFFIX).exists():
        raise OptionError(f"{place} is no set of shards that iofast wrote: it has no {place.name}{MANIFEST_SUFFIX}")
    kind = tar.TarReader if place.suffix == TAR else tfrecord.TfrecordReader
    return kind(place, published=published)


def _dali(reader: ShardReader, place: Path) -> Iterator[tuple[str, Iterable[str]]]:
    start = 0
    for number, shard in enumerate(reader.manifest.shards):
        is_tar = place.suffix == TAR
        lines = _tar_lines(reader, start, shard.count) if is_tar else _tfrecord_lines(reader, number)
        yield _index_name(shard.name), lines
        start += shard.count


def _tar_lines(reader: ShardReader, first: int, count: int) -> Iterator[str]:
    """wds2idx v1.2: the number of samples; then for each its members: extension, offset, size and name."""
    yield f"v1.2 {count}\n"
    fields = reader.manifest.fields
    for start in range(first, first + count, _STEP):
        indices = np.arange(start, min(start + _STEP, first + count))
        parts: list[list[str]] = [[] for _ in indices]
        keys: list[str] = []
        for field in fields:  # sorted, as the members are
            located = reader.locate(indices, field)
            keys = keys or reader.keys(located)
            places = zip(located.file.tolist(), located.offset.tolist(), located.length.tolist(), strict=True)
            for row, (file, offset, size) in enumerate(places):
                if file != ABSENT:
                    parts[row].append(f"{field} {offset} {size} {keys[row]}.{field}")
        yield from (" ".join(own) + "\n" for own in parts)


def _tfrecord_lines(reader: ShardReader, number: int) -> Iterator[str]:
    """tfrecord2idx: offset and size of each record, with its framing."""
    for offset, size in reader.examples(number):  # type: ignore[attr-defined]
        yield f"{offset} {size}\n"


def _wids(reader: ShardReader, place: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """One index per split; names of shards are relative to it."""
    for split, shards in _splits(reader.manifest).items():
        stem = stem_with(place.stem, split)
        listed = [{"url": shard.name, "nsamples": shard.count, "filesize": shard.size} for shard in shards]
        index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": stem, "shardlist": listed}
        yield f"{stem}{_WIDS}", [_json(index)]


def _timm(reader: ShardReader, place: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """The splits of this set, and those of other sets that are already in the file."""
    own = {shard.name for shard in reader.manifest.shards}
    splits = _known(place.parent / INFO)
    splits = {name: split for name, split in splits.items() if not own.intersection(split["filenames"])}
    for split, shards in _splits(reader.manifest).items():
        name = place.stem if split == WHOLE else split
        if name in splits:
            other = splits[name]["filenames"][:1]
            raise TargetError(f"{place.parent / INFO} has a split {name!r} of other shards: {other}")
        splits[name] = {
            "name": name,
            "num_samples": sum(shard.count for shard in shards),
            "filenames": [shard.name for shard in shards],
            "shard_lengths": [shard.count for shard in shards],
        }
    yield INFO, [_json({"splits": dict(sorted(splits.items()))})]


_WRITERS: dict[str, Callable[[ShardReader, Path], Iterator[tuple[str, Iterable[str]]]]] = {
    "dali": _dali,
    "wids": _wids,
    "timm": _timm,
}


def _splits(manifest: Manifest) -> dict[str, list[Shard]]:
    """The shards of each split; no shard has records of two."""
    splits: dict[str, list[Shard]] = {name: [] for name in manifest.splits}
    ranges, start = manifest.ranges(), 0
    for shard in manifest.shards:
        splits[next(name for name, low, high in ranges if low <= start < high)].append(shard)
        start += shard.count
    return splits


def _index_name(shard: str) -> str:
    return f"{Path(shard).stem}.idx"


def _known(file: Path) -> dict[str, Any]:
    """The splits in timm's file. Raises `TargetError` if its content is not understood."""
    try:
        splits = json.loads(owned.read(file, own=False))["splits"]
        if all(isinstance(name, str) for split in splits.values() for name in split["filenames"]):
            return dict(splits)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise TargetError(f"{file} exists and is not as timm describes splits: move it")


def _named(file: Path) -> set[str]:
    """The shards in an index file; {""} if its content is not understood."""
    try:
        content = json.loads(owned.read(file, own=False))
        if "shardlist" in content:
            return {str(shard["url"]) for shard in content["shardlist"]}
        return {str(name) for split in content["splits"].values() for name in split["filenames"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {""}


def _json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"


def _store(file: Path, text: Iterable[str], place: Path) -> None:
    """Write a file; it gets its name when it is complete. Until then it is in the folder of a run, if there is one."""
    try:
        with owned.writing(file, drafts=place.with_name(place.name + ".partial")) as out:
            out.writelines(line.encode("ascii") for line in text)
    except OSError as error:
        raise TargetError(f"{file} cannot be written: {because(error)}") from None
