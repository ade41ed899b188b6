"""Write records of your own into a new container: `open_writer`."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self, SupportsIndex

from iofast.containers.folder_writer import FolderTarget
from iofast.containers.manifest import MAX_COUNT, WHOLE, Description, Manifest
from iofast.containers.publish import Target
from iofast.containers.targets import section_bytes, target_of, writer_of
from iofast.containers.writer import Section
from iofast.errors import ContainerError, OptionError
from iofast.record import (
    FIELD_OF_FORMAT,
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

_FORMATS = {field: format for format, field in FIELD_OF_FORMAT.items()}

Value = bytes | bytearray | memoryview | str | float | SupportsIndex | Mapping[str, Any] | list[Any] | tuple[Any, ...]


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
    if isinstance(target, FolderTarget):
        raise OptionError(f"{os.fspath(path)} is a folder: expected a name that ends in .lmdb, .tar or .tfrecord")
    names = None if classes is None else tuple(classes)
    return RecordWriter(target, Description(classes=names, recipe=recipe), split, section_bytes(shard_size, target))


class RecordWriter:
    """Writes records with any fields, one after another; `open_writer` makes it.

    `manifest` is None until the container is finished.
    """

    def __init__(self, target: Target, description: Description, split: str, size: int) -> None:
        self.manifest: Manifest | None = None
        self._target, self._description, self._split = target, description, split
        self._count, self._size = 0, size  # bytes of a section
        self._entered: list[str] = []  # splits, in their order; the last one is open
        self._sections = 0
        target.acquire()
        try:
            target.clear()
            self._writer = writer_of(target, description)
        except BaseException:
            target.release()
            raise

    def write(self, fields: Mapping[str, Value], split: str | None = None) -> int:
        """Append one record and return its dense index.

        Bytes are stored as they are; text as UTF-8, numbers as decimal text, mappings and sequences as JSON. `cls` is
        the class index. A payload of `jpg`, `png` or `webp` must be such an image; `rgb` needs `width` and
        `height` in `json`. Splits must be written one after another. Raises `ContainerError` or `DecodeError` for an
        invalid record, of which nothing is stored.
        """
        encoded = {_checked(name): _encode(name, value) for name, value in fields.items()}
        info, split = self._describe(encoded), split or self._split
        self._enter(split, encoded, info)
        self._writer.write(self._count, encoded, info)
        self._count += 1
        return self._count - 1

    def finish(self) -> Manifest:
        """Finish the container and publish it."""
        self.manifest = self._writer.finish()
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

    def _enter(self, split: str, fields: Mapping[str, bytes], info: ImageInfo) -> None:
        """Begin another section for a record of another split, or if the open one would grow beyond its size."""
        is_open = self._entered[-1:] == [split]
        if is_open and self._writer.size_with(self._count, fields, info) <= self._size:
            return
        if not is_open:
            if split in self._entered:
                raise ContainerError(f"split {split} was left and may not be entered again")
            if self._entered and WHOLE in (split, *self._entered):
                raise ContainerError(f"{WHOLE!r} means the union and cannot be one of several splits")
        if self._entered:
            self._writer.commit()
        self._writer.begin(Section(self._sections, split, self._count, MAX_COUNT))
        self._sections += 1
        if not is_open:
            self._entered.append(split)

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
    expected = raw_length(width, height)
    if width < 1 or height < 1 or len(fields[image]) != expected:
        raise ContainerError(f"field {image} has {len(fields[image])} bytes, {width}×{height} needs {expected}")
    return width, height
