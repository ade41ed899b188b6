"""The suffix of a target's name chooses its container."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from iofast.containers import tar, tfrecord
from iofast.containers.container_suffixes import LMDB, TFRECORD, WRITTEN
from iofast.containers.folder_writer import FolderTarget, FolderWriter
from iofast.containers.lmdb import LmdbWriter
from iofast.containers.locked_folder import LOCK
from iofast.containers.manifest import Description
from iofast.containers.publish import Target
from iofast.containers.shard_target import ShardTarget
from iofast.containers.writer import Writer
from iofast.errors import OptionError
from iofast.record import KEY_WIDTH

_LIKE = 0.85  # similarity of a misspelt suffix: .lmd and .tarr have more, .train, .target and .table less


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
        suffix = meant(place.suffix) if place.suffix else LMDB
        hint = "" if suffix is None or not place.stem else f"; did you mean {place.with_suffix(suffix)}?"
        raise OptionError(
            f"the suffix of {os.fspath(path)!r} does not say what to make: expected {', '.join(WRITTEN)}, "
            f"or a / at the end for a folder of files, found {place.suffix or 'none'}{hint}"
        )
    if place.suffix == LMDB:
        return Target(path, overwrite=overwrite, lock=lock)
    return ShardTarget(path, place.suffix, overwrite=overwrite, lock=lock)


def meant(suffix: str) -> str | None:
    """The suffix of `WRITTEN` that `suffix` probably misspells, or None.

    The first letter must be right. Letters may have another case or order, or one may be added or missing.
    """
    suffix = suffix.lower()
    for known in WRITTEN:
        is_like = sorted(suffix) == sorted(known) or difflib.SequenceMatcher(None, suffix, known).ratio() >= _LIKE
        if suffix[:2] == known[:2] and is_like:
            return known
    return None


def writer_of(target: Target, description: Description, key_width: int = KEY_WIDTH, name: str = "") -> Writer:
    """The writer of an acquired target, or of a part of it called `name`."""
    kind: type[Writer]
    if isinstance(target, FolderTarget):
        kind = FolderWriter
    elif target.path.suffix == LMDB:
        kind = LmdbWriter
    else:
        kind = tfrecord.TfrecordWriter if target.path.suffix in TFRECORD else tar.TarWriter
    return kind(target.partial, name or target.path.name, description, key_width)
