"""Open any container or folder, and write records of your own: `open_reader` and `open_writer`."""

from __future__ import annotations

import contextlib
import json
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from iofast.containers import tar, tfrecord
from iofast.containers.base import Description, Reader
from iofast.containers.container_suffixes import BETON, COMPRESSED_TAR, LISTS, LMDB, TAR, TFRECORD
from iofast.containers.file_bytes import check_access
from iofast.containers.lmdb import LmdbReader, is_own
from iofast.containers.lmdb_pages import is_lmdb
from iofast.containers.manifest import WHOLE, Manifest
from iofast.containers.publish import Target
from iofast.containers.shard_reader import ShardReader
from iofast.containers.shard_target import shard_bytes
from iofast.containers.shards import MANIFEST_SUFFIX, ShardCut, check_finished, expand, is_pattern, set_of
from iofast.containers.targets import target_of, writer_of
from iofast.errors import ContainerError, ObjectMissingError, OptionError, SourceError, StorageError, because
from iofast.record import (
    IMAGE_FIELDS,
    JSON_FIELD,
    LABEL_FIELD,
    PICKLED,
    RAW_FIELDS,
    ImageInfo,
    check_field,
    image_field,
    raw_length,
)
from iofast.remote.urls import RemotePath, is_url, require_text

if TYPE_CHECKING:
    from iofast.foreign.options import ForeignOptions

_SETS: dict[str, type[ShardReader]] = {TAR: tar.TarReader} | dict.fromkeys(
    TFRECORD, tfrecord.TfrecordReader
)  # containers of several files, by the suffix of the name given to `pack`
_FORMATS = {"jpg": "jpeg", "png": "png", "webp": "webp"}

Value = bytes | bytearray | memoryview | str | float | SupportsIndex | Mapping[str, Any] | list[Any] | tuple[Any, ...]


def open_reader(path: str | os.PathLike[str], foreign: ForeignOptions | Mapping[str, Any] | None = None) -> Reader:
    """Open a container, a plain folder of images, or a list of image files (.csv …), for access to its records.

    A container is an LMDB file, a set of tar or TFRecord shards by the name given to `pack`, a folder in MosaicML's MDS
    format (with `index.json`), or an FFCV `.beton` file with JPEGs. `path` may also be one shard of another program, or
    a pattern of shards (`train-{000000..000127}.tar`, `train-*-of-*`), or an LMDB of another program by file or folder;
    see `open_shards` and `foreign.lmdb`. `foreign`, a `ForeignOptions` or a mapping of its members, gives the meaning
    of such files if it is not the usual one.

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
        if not all(map(is_shard, paths)):
            raise OptionError(
                f"a pattern names the shards of one set, but {path} names {paths[0]!r}: "
                "give a list of paths, or `iofast merge` them first"
            )
        return open_shards(paths, name, foreign)
    check_access(place)
    if place.is_dir():
        if not (place / "data.mdb").is_file():
            return _open_folder(place)
        place = place / "data.mdb"
    if _is_set(place):
        return _SETS[place.suffix](place)
    if not place.exists():
        check_finished(place)
        raise SourceError(f"{place} does not exist")
    if not place.is_file():  # opening a pipe without a writer would block forever
        raise SourceError(f"{place} is neither a file nor a folder")
    try:
        with place.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise SourceError(f"{place} cannot be read: {because(error)}") from None
    if is_lmdb(head):
        return _open_lmdb(place, foreign)
    if place.suffix.lower() in LISTS:
        return _open_folder(place)
    if place.suffix.lower() == BETON:
        from iofast.foreign.beton import BetonFile
        from iofast.foreign.reader import ForeignReader

        return ForeignReader(os.fspath(place), BetonFile(place))
    if is_shard(place):
        return open_shards([os.fspath(place)], os.fspath(place), foreign)
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
            raise SourceError(f"{url}: neither this object nor {url}{MANIFEST_SUFFIX} exists") from None
        except StorageError as error:
            if error.was_patient:
                raise
            raise refused or SourceError(f"{url} cannot be opened") from None
    if suffix == LMDB:
        return _open_lmdb(url, foreign)
    raise SourceError(
        f"{url} is no container: expected the name of a set as given to `iofast pack`, with the suffix "
        f"{', '.join((*_SETS, LMDB))}; single images in a store must be packed first"
    )


def not_foreign(path: str | os.PathLike[str]) -> OptionError:
    """The error for `foreign` beside a path that is not another program's container."""
    return OptionError(
        f"foreign (names, labels, labels-from) is for other programs' tar, TFRecord and LMDB, "
        f"and {os.fspath(path)} is none"
    )


def is_container(path: str | os.PathLike[str]) -> bool:
    """Whether `open_reader` opens a path as a container, not as a folder of images or a list of image files."""
    place = Path(os.fspath(path))
    if is_pattern(os.fspath(path)):
        return True
    check_access(place)
    if place.is_dir():
        return (place / "data.mdb").is_file() or _find_mds(place) is not None
    if place.suffix.lower() in LISTS:
        return False
    return is_shard(place) or place.suffix.lower() in (LMDB, BETON) or (place.is_file() and _is_lmdb_file(place))


def is_shard(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a shard, by its suffix. Several shards are one set, not containers to be joined."""
    name = os.path.basename(os.fspath(path)).lower()
    return name.endswith((TAR, *COMPRESSED_TAR)) or tfrecord.is_named_so(name)


def open_shards(paths: Sequence[str], name: str, foreign: ForeignOptions | Mapping[str, Any] | None = None) -> Reader:
    """Open tar or TFRecord shards, in this order, as one set; messages call it `name`.

    If they are all shards of a set of iofast, that set is opened, with its classes, splits and checksums. Otherwise
    they are indexed once; see `foreign.tar` and `foreign.tfrecord`.
    """
    own = set_of(paths)
    if own is not None:
        return _SETS[Path(own).suffix](own)
    from iofast.foreign.options import ForeignOptions  # here: Pillow and the cache take time to import
    from iofast.foreign.reader import ForeignReader

    options = ForeignOptions.of(foreign)
    if all(tfrecord.is_named_so(os.path.basename(path).lower()) for path in paths):
        from iofast.foreign.tfrecord import TfrecordFiles

        return ForeignReader(name, TfrecordFiles(paths, options))
    from iofast.foreign.tar import TarShards

    return ForeignReader(name, TarShards(paths, options))


def open_writer(
    path: str | os.PathLike[str],
    *,
    classes: Sequence[str] | None = None,
    recipe: Mapping[str, object] | None = None,
    overwrite: bool = False,
    split: str = WHOLE,
    shard_size: int | None = None,
) -> RecordWriter:
    """Begin a new container at `path`; its suffix selects the format (.lmdb, .tar, .tfrecord). Use it in `with`.

    `classes` are the names of the numbers in `cls`; the manifest stores `recipe`; `split` is that of records without
    one; shards get up to `shard_size` bytes (default: 10^9). Nothing exists at `path` until the block has ended without
    an exception.

        with open_writer("out.lmdb", classes=["cat", "dog"]) as writer:
            writer.write({"jpg": jpeg, "cls": 1, "boxes.json": [[10, 20, 30, 40]]})

    Raises `TargetError` if `path` exists, cannot be written, or is being written by another process.
    """
    target = target_of(path, overwrite=overwrite)
    names = None if classes is None else tuple(classes)
    return RecordWriter(
        target, Description(classes=names, recipe=recipe), split, ShardCut(shard_bytes(shard_size, target))
    )


class RecordWriter:
    """Writes records with any fields, one after another; `open_writer` makes it.

    `manifest` is None until the container is finished.
    """

    def __init__(self, target: Target, description: Description, split: str, cut: ShardCut) -> None:
        self.manifest: Manifest | None = None
        self._target, self._description, self._split = target, description, split
        self._count = 0
        target.acquire()
        try:
            if target.interrupted:  # publish what an earlier run has finished; then it may have to be overwritten
                target.complete()
                target.acquire()
            target.clear()
            self._writer = writer_of(target, description, cut)
        except BaseException:
            target.release()
            raise

    def write(self, fields: Mapping[str, Value], split: str | None = None) -> int:
        """Append one record and return its dense index.

        Bytes are stored as they are; text as UTF-8, numbers as decimal text, mappings and sequences as JSON. `cls` is
        the class index. A payload of `jpg`, `png` or `webp` must be such an image; `rgb` and `yuv` need `width` and
        `height` in `json`. Splits must be written one after another. Raises `ContainerError` or `DecodeError` for an
        invalid record, of which nothing is stored.
        """
        encoded = {_checked(name): _encode(name, value) for name, value in fields.items()}
        self._writer.write(self._count, encoded, self._describe(encoded), split or self._split)
        self._count += 1
        return self._count - 1

    def finish(self) -> Manifest:
        """Finish the container and publish it."""
        self.manifest = self._writer.finish(self._description)
        self._target.publish(self._writer.files)
        return self.manifest

    def abort(self) -> None:
        """Stop, and remove everything that was written."""
        self._writer.abort()
        self._target.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
        elif self.manifest is None:
            try:
                self.finish()
            except BaseException:
                self.abort()
                raise

    def _describe(self, fields: Mapping[str, bytes]) -> ImageInfo:
        label = _label(fields.get(LABEL_FIELD), self._description.classes)
        image = image_field(fields)
        if image in RAW_FIELDS:
            return ImageInfo(label, *_raw_size(image, fields))
        if image in IMAGE_FIELDS:
            from iofast.kernel import read_header  # here: readers do not need the native code

            header = read_header(fields[image])
            if header.format != _FORMATS[image]:
                raise ContainerError(f"field {image} has a {header.format} image: store it under its own name")
            return ImageInfo(label, header.width, header.height, header.orientation)
        return ImageInfo(label)


def _open_lmdb(place: Path | str, foreign: ForeignOptions | Mapping[str, Any] | None) -> Reader:
    if is_own(place):
        return LmdbReader(place)
    if is_url(os.fspath(place)):
        raise SourceError(f"{place} was not packed by iofast, and another program's LMDB must be a local file")
    from iofast.foreign.lmdb import ForeignLmdbReader
    from iofast.foreign.options import ForeignOptions

    return ForeignLmdbReader(place, ForeignOptions.of(foreign))


def _open_folder(place: Path) -> Reader:
    found = _find_mds(place)
    if found is not None:
        from iofast.foreign.mds import MdsFolder
        from iofast.foreign.reader import ForeignReader

        return ForeignReader(os.fspath(place), MdsFolder(place, found))
    from iofast.source.folder import FolderReader  # here: Pillow and the scan take time to import

    return FolderReader(place)


def _find_mds(place: Path) -> dict[str, Path] | None:
    """Map splits to their `index.json` in MosaicML's format; None for any other path."""
    if not place.is_dir():
        return None
    if not (place / "index.json").exists():
        with os.scandir(place) as entries:
            folder = next((entry.path for entry in entries if entry.is_dir()), place)  # one is enough to decide
        if not os.path.exists(os.path.join(folder, "index.json")) or any(place.glob("*.*")):
            return None
    from iofast.foreign.mds import find_index

    return find_index(place)


def _is_lmdb_file(place: Path) -> bool:
    with contextlib.suppress(OSError), place.open("rb") as file:
        return is_lmdb(file.read(64))
    return False


def _checked(name: str) -> str:
    if name.rpartition(".")[2] in PICKLED:
        raise ContainerError(f"field {name!r} names pickled data, which iofast does not store")
    return check_field(name)


def _encode(name: str, value: Value) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (float, Mapping, list, tuple)):
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise ContainerError(f"field {name}: {error}") from None
    try:
        return b"%d" % operator.index(value)  # NumPy's and torch's integers too
    except TypeError:
        kinds = "bytes, text, a number, a mapping or a list"
        raise ContainerError(f"field {name} must be {kinds}, found {type(value).__name__}") from None


def _label(text: bytes | None, classes: tuple[str, ...] | None) -> int:
    if text is None:
        return -1
    if not text.isdigit() or len(text) > 10 or text != b"%d" % int(text):
        raise ContainerError(f"field {LABEL_FIELD} must be a class index in decimal, found {text!r:.40}")
    if classes is not None and int(text) >= len(classes):
        raise ContainerError(f"field {LABEL_FIELD} is {int(text)}, but there are {len(classes)} classes")
    return int(text)


def _raw_size(image: str, fields: Mapping[str, bytes]) -> tuple[int, int]:
    try:
        members = json.loads(fields[JSON_FIELD])
        width, height = operator.index(members["width"]), operator.index(members["height"])
    except (KeyError, TypeError, ValueError):
        raise ContainerError(f"field {image} needs integers width and height in field {JSON_FIELD}") from None
    expected = raw_length(image, width, height)
    if width < 1 or height < 1 or len(fields[image]) != expected:
        raise ContainerError(f"field {image} has {len(fields[image])} bytes, {width}×{height} needs {expected}")
    return width, height
