"""Which container is made: the suffix of its name chooses."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from iofast.containers import tar, tfrecord
from iofast.containers.base import Description
from iofast.containers.lmdb import LmdbWriter
from iofast.containers.publish import Target
from iofast.containers.shard_target import ShardTarget
from iofast.containers.shard_writer import ShardWriter
from iofast.containers.shards import ShardCut
from iofast.errors import OptionError
from iofast.record import KEY_WIDTH

LMDB = ".lmdb"
WRITTEN = (LMDB, tar.SUFFIX, *tfrecord.SUFFIXES)

_LIKE = 0.85  # .lmd and .tarr are more like ours than this; .train, .target and .table are not


def target_of(
    path: str | os.PathLike[str], *, overwrite: bool = False, append: bool = False, sidecars: Sequence[str] = ()
) -> Target:
    """The place of a container that is made or added to, by its suffix. Raises `OptionError` for an unknown one.

    `sidecars` are made as a part of its publication; see `containers.sidecars`.
    """
    place = Path(os.fspath(path))
    if place.suffix not in WRITTEN:
        suffix = meant(place.suffix) if place.suffix else LMDB
        hint = "" if suffix is None or not place.stem else f"; did you mean {place.with_suffix(suffix)}?"
        raise OptionError(
            f"the suffix of {os.fspath(path)!r} does not say what to make: expected {', '.join(WRITTEN)}, "
            f"found {place.suffix or 'none'}{hint}"
        )
    if place.suffix == LMDB:
        target = Target(path, overwrite=overwrite, append=append)
    else:
        target = ShardTarget(path, place.suffix, overwrite=overwrite, append=append)
    if sidecars:
        from iofast.containers.sidecars import check_names  # costs start-up time, for those who want some

        target.sidecars = check_names(sidecars, place.suffix)
    return target


def meant(suffix: str) -> str | None:
    """The suffix of `WRITTEN` that another one is probably meant for.

    Its letters have another case or order, or one is too many or missing, but not the first.
    """
    suffix = suffix.lower()
    return next((known for known in WRITTEN if suffix[:2] == known[:2] and _is_like(suffix, known)), None)


def _is_like(suffix: str, known: str) -> bool:
    return sorted(suffix) == sorted(known) or difflib.SequenceMatcher(None, suffix, known).ratio() >= _LIKE


def writer_of(
    target: Target, description: Description, cut: ShardCut | None = None, key_width: int = KEY_WIDTH
) -> LmdbWriter | ShardWriter:
    """The writer that stages the container of an acquired target; `description` is the one that `finish` will get."""
    folder, name = target.partial, target.path.name
    if target.path.suffix == LMDB:
        return LmdbWriter(target.stage(), key_width=key_width)
    if target.path.suffix in tfrecord.SUFFIXES:
        return tfrecord.TfrecordWriter(folder, name, description, cut=cut, key_width=key_width)
    return tar.TarWriter(folder, name, cut=cut, key_width=key_width)
