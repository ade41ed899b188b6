"""Open any container or folder of images: `open_reader`."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iofast.containers import tar, tfrecord
from iofast.containers.base import Reader
from iofast.containers.container_suffixes import ARROW, COMPRESSED_TAR, LISTS, LMDB, PARQUET, TAR, TFRECORD
from iofast.containers.file_bytes import check_access
from iofast.containers.joined import JoinedReader
from iofast.containers.lmdb import LmdbReader, is_own
from iofast.containers.lmdb_pages import is_lmdb
from iofast.containers.shard_reader import ShardReader
from iofast.containers.shards import MANIFEST_SUFFIX, check_finished, expand, is_pattern, set_of
from iofast.errors import (
    ContainerError,
    ObjectMissingError,
    OptionError,
    SourceError,
    SourceMissingError,
    StorageError,
    unreadable,
)
from iofast.foreign.options import ForeignOptions
from iofast.kernel.strangers import POINTER, is_pointer
from iofast.remote.urls import RemotePath, is_url, require_text

# Containers of several files, by the suffix of the name given to `pack`
_SETS: dict[str, type[ShardReader]] = {
    **dict.fromkeys(TAR, tar.TarReader),
    **dict.fromkeys(TFRECORD, tfrecord.TfrecordReader),
}

# What opens a file, by its suffix; Parquet may also be a table of images, see `_kind`
_KINDS: dict[str, str] = {
    **dict.fromkeys((*TAR, *COMPRESSED_TAR), "tar"),
    **dict.fromkeys(TFRECORD, "tfrecord"),
    **dict.fromkeys(LISTS, "list"),
    LMDB: "lmdb",
    ARROW: "table",
}


def open_reader(path: str | os.PathLike[str], foreign: ForeignOptions | Mapping[str, Any] | None = None) -> Reader:
    """Open a container, a plain folder of images, or a list of image files (.csv …), for access to its records.

    A container is an LMDB file, a set of tar or TFRecord shards by the name given to `pack`, or Parquet or Arrow files
    with images, as Hugging Face's `datasets` writes them, or their folder. `path` may also be one shard of another
    program, or a pattern of shards or tables (`train-{000000..000127}.tar`, `data/*.parquet`), or an LMDB of another
    program by file or folder; see `open_shards` and `foreign.lmdb`. `foreign`, a `ForeignOptions` or a mapping of its
    members, gives the meaning of such files if it is not the usual one.

    Raises `OptionError` if `foreign` is given for a folder or for a container of iofast, `SourceError` if there is
    nothing to open, `UnfinishedError` if packing never ended, `ContainerError` for bytes of no known format.
    """
    if not os.fspath(path):  # `Path` would take it for the current folder
        raise SourceError("the path is empty: expected a container or a folder of images, found ''")
    reader = _open(path, foreign)
    if foreign is not None:
        from iofast.foreign.reader import ForeignReader  # here: containers of iofast do not need its imports

        if not isinstance(reader, ForeignReader) or reader.format.names_are_fixed:
            raise not_foreign(path)
    return reader


def open_sources(
    paths: Sequence[str], foreign: ForeignOptions | Mapping[str, Any] | None = None, *, unite: bool = False
) -> Reader:
    """Open several paths as one: joined, or shards of one set. `unite`: see `JoinedReader`."""
    if len(paths) == 1:
        return open_reader(paths[0], foreign)
    if all(is_shard(path) and os.path.isfile(path) for path in paths):
        return open_shards(paths, f"{paths[0]} …", foreign)
    return JoinedReader([open_reader(path, foreign) for path in paths], paths, unite=unite)


def open_damaged(path: str | os.PathLike[str]) -> ShardReader:
    """Open shards of iofast even if some are missing or cut off; `broken` of the reader lists those.

    Raises the other errors of `open_reader`.
    """
    place = Path(os.fspath(path))
    if not _is_set(place):
        raise ContainerError(f"{place} is not a set of shards of iofast")
    return _SETS[place.suffix](place, whole=False)


def _is_set(place: Path) -> bool:
    return place.suffix in _SETS and place.with_name(place.name + MANIFEST_SUFFIX).exists()


def _open(path: str | os.PathLike[str], foreign: ForeignOptions | Mapping[str, Any] | None) -> Reader:
    name, place = os.fspath(path), Path(path)
    require_text(name)
    if is_url(name):
        RemotePath.of(name)  # refuses credentials, before anything quotes the URL
    if is_url(name) and not is_pattern(name):
        return _open_stored(name, foreign)
    if is_pattern(name):
        paths = expand(name)
        if all(os.path.splitext(path)[1].lower() in (ARROW, PARQUET) for path in paths) and not is_url(name):
            return _open_foreign("table", paths, name, foreign)
        if not all(map(is_shard, paths)):
            raise OptionError(
                f"a pattern names the shards of one set, but {path} names {paths[0]!r}: give a list of paths"
            )
        return open_shards(paths, name, foreign)
    check_access(place)
    if place.is_dir():
        if not (place / "data.mdb").is_file():
            return _open_folder(place, foreign)
        place = place / "data.mdb"
    if _is_set(place):
        return _SETS[place.suffix](place)
    if not place.exists():
        check_finished(place)
        from iofast.source.classes import instead_of  # here: what exists needs no imports of folders

        raise SourceMissingError(f"{place} does not exist{instead_of(os.fsencode(os.path.abspath(place)))}")
    if not place.is_file():  # opening a pipe without a writer would block forever
        raise SourceError(f"{place} is neither a file nor a folder")
    try:
        with place.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise unreadable(place, error) from None
    if is_pointer(place, len(head)):
        raise ContainerError(f"{place} is {POINTER}")
    kind = _kind(name)
    if is_lmdb(head):
        return _open_lmdb(place)
    if kind == "table":
        return _open_foreign("table", [name], name, foreign)
    if kind == "list":
        return _open_folder(place, foreign)
    if kind in ("tar", "tfrecord"):
        return open_shards([name], name, foreign)
    raise ContainerError(f"{place} is not a container: no LMDB file, no tar or TFRecord shards and no folder of images")


def _open_stored(url: str, foreign: ForeignOptions | Mapping[str, Any] | None) -> Reader:
    """Open a set, an LMDB file, or one shard of another program in an object store."""
    url = str(RemotePath.of(url))
    suffix, refused = os.path.splitext(url)[1], None
    if suffix in _SETS:
        try:
            return _SETS[suffix](url)
        except ObjectMissingError:
            pass  # not the name of a set
        except StorageError as error:  # without the right to list, S3 refuses what is missing
            if error.was_patient:
                raise
            refused = error
    if is_shard(url):
        try:
            return open_shards([url], url, foreign)
        except ObjectMissingError:
            raise SourceMissingError(f"{url}: neither this object nor {url}{MANIFEST_SUFFIX} exists") from None
        except StorageError as error:
            if error.was_patient:
                raise
            raise refused or SourceError(f"{url} cannot be opened") from None
    if suffix == LMDB:
        return _open_lmdb(url)
    raise SourceError(
        f"{url} is no container: expected the name of a set as given to `iofast pack`, with the suffix "
        f"{', '.join((*_SETS, LMDB))}; single images in a store must be packed first"
    )


def not_foreign(path: str | os.PathLike[str]) -> OptionError:
    """The error for `foreign` beside a path that is not another program's container."""
    return OptionError(
        "foreign (names, labels-from) is for other programs' tar and TFRecord, and names label= for their tables, "
        f"and {os.fspath(path)} is none of them"
    )


def is_container(path: str | os.PathLike[str]) -> bool:
    """Whether `open_reader` opens a path as a container, not as a folder of images or a list of image files."""
    place = Path(os.fspath(path))
    if is_pattern(os.fspath(path)):
        return True
    check_access(place)
    if place.is_dir():
        return (place / "data.mdb").is_file() or _find_tables(place) is not None
    kind = _kind(os.fspath(path))
    if kind is not None or not place.is_file():
        return kind not in (None, "list")
    with contextlib.suppress(OSError), place.open("rb") as file:
        return is_lmdb(file.read(64))
    return False


def is_shard(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a shard, by its suffix. Several shards are one set, not containers to be joined."""
    return _kind(os.fspath(path)) in ("tar", "tfrecord")


def _kind(path: str) -> str | None:
    """What opens a file of this name: one of `_KINDS`, or None. A Parquet file is read to know whether it has images.

    Raises `SourceError` for one that cannot be read.
    """
    name = os.path.basename(path).lower()
    suffix = next((each for each in (*COMPRESSED_TAR, os.path.splitext(name)[1]) if name.endswith(each)), "")
    if tfrecord.is_named_so(name):
        return "tfrecord"
    if suffix == PARQUET and not is_url(path) and os.path.lexists(path):
        from iofast.foreign.table_files import has_images  # here: own containers need no imports of others' formats

        return "table" if has_images(path) else "list"
    return _KINDS.get(suffix)


def open_shards(paths: Sequence[str], name: str, foreign: ForeignOptions | Mapping[str, Any] | None = None) -> Reader:
    """Open tar or TFRecord shards, in this order, as one set; messages call it `name`.

    If they are all shards of a set of iofast, that set is opened, with its classes, splits and checksums. Otherwise
    they are indexed once; see `foreign.tar` and `foreign.tfrecord`.
    """
    own = set_of(paths)
    if own is not None:
        return _SETS[Path(own).suffix](own)
    kind = "tfrecord" if all(_kind(path) == "tfrecord" for path in paths) else "tar"
    return _open_foreign(kind, paths, name, foreign)


def _open_foreign(
    kind: str, files: Sequence[Any], name: str, foreign: ForeignOptions | Mapping[str, Any] | None
) -> Reader:
    """Open files of another program as one set: tar, tfrecord, or as tables (paths, or what `_find_tables` finds)."""
    from iofast.foreign.arrow import ArrowTables  # here: Pillow and the cache take time to import
    from iofast.foreign.reader import ForeignReader
    from iofast.foreign.tar import TarShards
    from iofast.foreign.tfrecord import TfrecordFiles

    formats: dict[str, Any] = {"tar": TarShards, "tfrecord": TfrecordFiles, "table": ArrowTables}
    return ForeignReader(name, formats[kind](files, ForeignOptions.of(foreign)))


def _open_lmdb(place: Path | str) -> Reader:
    if is_own(place):
        return LmdbReader(place)
    if is_url(os.fspath(place)):
        raise SourceError(f"{place} was not packed by iofast, and another program's LMDB must be a local file")
    from iofast.foreign.lmdb import ForeignLmdbReader

    return ForeignLmdbReader(place)


def _open_folder(place: Path, foreign: ForeignOptions | Mapping[str, Any] | None) -> Reader:
    tables = _find_tables(place)
    if tables is not None:
        return _open_foreign("table", tables, os.fspath(place), foreign)
    from iofast.source.folder import FolderReader  # here: Pillow and the scan take time to import

    return FolderReader(place)


def _find_tables(place: Path) -> Sequence[Any] | None:
    """The Arrow or Parquet files of a folder, None for any other path."""
    if not place.is_dir():
        return None
    from iofast.foreign.table_files import find_tables  # here: own containers need no imports of others' formats

    return find_tables(place)
