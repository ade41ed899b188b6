"""Copy the records of a container as they are: `pack` with format=keep and check=end, which `iofast convert` calls.

No payload byte changes. Order, splits, classes, recipe and keys stay; a key that is not a position goes into `json`.
This process reads and writes, because nothing is decoded.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from iofast import kernel
from iofast.containers.base import Located, Reader
from iofast.containers.changed import follow
from iofast.containers.folder_writer import FolderTarget
from iofast.containers.located import steps
from iofast.containers.manifest import Description
from iofast.containers.publish import Target, require_free
from iofast.containers.targets import require_elsewhere, section_bytes, state_of
from iofast.containers.writer import Section
from iofast.errors import ContainerError, SourceError
from iofast.packing.inputs import warnings_of
from iofast.packing.messages import Done, PackedRecord
from iofast.packing.options import PackOptions
from iofast.packing.plan import PackPlan, shards
from iofast.packing.pool import WorkerPool
from iofast.record import (
    FIELD_OF_FORMAT,
    IMAGE_FIELDS,
    JSON_FIELD,
    KEY_WIDTH,
    LABEL_FIELD,
    ImageInfo,
    field_of,
    image_field,
    is_stored,
    key_width,
)
from iofast.version import __version__

SLICE_BYTES = 16 << 20  # bytes of payloads that are read together
SLICE_RECORDS = 1024

_MAX_KEY = 20  # digits
_OF_COPIES = ("format", "check", "shard_size", "shard_records", "overwrite", "foreign", "workers", "max_errors")


def is_copy(options: PackOptions) -> bool:
    """Whether the options leave all records of a container as they are."""
    given = {each.name for each in fields(options) if getattr(options, each.name) != each.default}
    return options.format == "keep" and options.check == "end" and given <= set(_OF_COPIES)


class CopyWork:
    """The copying of all records of a reader of `source`; see `work.PackWork`.

    Keys stay if all are rising positions. Otherwise positions are dense indices, and the `json` of each record gets its
    old key. Raises `SourceError` if a folder would get no file. `results` raise `ContainerError` for a damaged payload.
    """

    def __init__(self, reader: Reader, source: str, target: Target, options: PackOptions) -> None:
        require_elsewhere(reader, source, target)
        if not len(reader) and isinstance(target, FolderTarget):
            raise SourceError(f"{source} contains no record")
        self.options, self._reader, self._source, self._own = options, reader, source, reader.is_ours
        kept = reader.manifest.key_width if self._own else _kept_width(reader)
        self._keeps_keys, self.key_width = kept > 0, kept or key_width(len(reader))
        settings = {"copy of": os.path.abspath(source), "iofast": __version__, **shards(options, target)}
        self.plan = PackPlan(len(reader), tuple(reader.manifest.ranges()), state_of(reader, source), settings)

    def results(self, _: object, sections: Sequence[Section]) -> Iterator[Done]:
        """The records of these sections, one at a time."""
        for section in sections:
            for record in self._records(section.start, section.stop):
                yield Done(section.start, 1, (record,), (), sum(map(len, record.fields.values())), 0)

    def path(self, position: int) -> str:
        """The name of a record, for messages."""
        return self._reader.name(position)

    def description(self) -> Description:
        """The description for the container's writer."""
        manifest = self._reader.manifest
        return Description(manifest.classes, manifest.class_order, manifest.recipe, manifest.seed)

    def section_records(self, target: Target, _: WorkerPool) -> int:
        """How many records a section gets: about a shard of the wanted size, or a transaction of LMDB."""
        limit = section_bytes(self.options.shard_size, target)
        return self.options.shard_records or max(1, int(limit / (self._size / max(1, len(self._reader)) + 2048)))

    def require_space(self, target: Target, _: WorkerPool) -> None:
        """Raise `TargetError` unless the disk can take everything; files in `<DST>.partial/` already count."""
        staged = sum(entry.stat().st_size for entry in os.scandir(target.partial))
        require_free(target.partial, self._size - staged)

    def facts(self) -> dict[str, Any]:
        """The members of `PackReport` that the source determines."""
        manifest = self._reader.manifest
        return {
            "source": self._source,
            "images": len(self._reader),
            "classes": None if manifest.classes is None else len(manifest.classes),
            "unlabelled": int((self._reader.labels(np.arange(len(self._reader), dtype=np.int64)) < 0).sum()),
            "splits": {name: sum(stop - start for start, stop in own) for name, own in manifest.splits.items()},
            "warnings": warnings_of(self._reader),
        }

    @property
    def _size(self) -> int:
        """Bytes of all files, about those of all payloads."""
        return sum(shard.size for shard in self._reader.manifest.shards)

    def _records(self, start: int, stop: int) -> Iterator[PackedRecord]:
        """The records of these dense indices. Raises `ContainerError` for a damaged payload."""
        for part in steps(start, stop):
            columns = self._reader.columns(part)
            keys = self._reader.keys(columns)
            for first, last in columns.slices(SLICE_BYTES, SLICE_RECORDS):
                own = keys[first:last]
                found = self._reader.all_values(part[first:last])
                headers = [
                    None if self._own else self._header(columns, row, each) for row, each in enumerate(found, first)
                ]
                infos = columns.rows(slice(first, last)).infos()  # a header may have updated them
                rows = zip(part[first:last].tolist(), own, found, headers, infos, strict=True)
                for index, key, payloads, header, info in rows:
                    fields = payloads if self._own else self._legal(payloads, info, key, header)
                    if not fields:
                        raise ContainerError(f"{self._reader.name(index)} has no field that can be stored")
                    yield PackedRecord(int(key) if self._keeps_keys else index, info, fields, None)

    def _header(self, columns: Located, row: int, payloads: Mapping[str, bytes]) -> kernel.Header | None:
        """The header of a record's image, or None; without a checksum, `columns` is updated from it."""
        image = image_field(payloads)
        return None if image not in IMAGE_FIELDS else follow(self._reader, columns, row, payloads[image])

    def _legal(
        self, payloads: Mapping[str, bytes], info: ImageInfo, key: str, header: kernel.Header | None
    ) -> dict[str, bytes]:
        """Fields of another program as ours: label in `cls`, image under its format's name, key in `json`."""
        fields = {name: payload for name, payload in payloads.items() if is_stored(name)}
        _name_image(fields, header, any_format=self._reader.renames)
        label = fields.pop(LABEL_FIELD, None)
        if info.label >= 0:
            fields[LABEL_FIELD] = b"%d" % info.label
        elif label is not None:  # not a class index: one or more names
            fields.setdefault("cls.txt", label)
        if not self._keeps_keys:
            _keep_key(fields, key)
        return fields


def _kept_width(reader: Reader) -> int:
    """The length of another program's keys if all are positions as in docs/format.md; else 0."""
    width, last = 0, -1
    for indices in steps(0, len(reader)):
        for key in reader.keys(reader.columns(indices)):
            width = width or len(key)
            if len(key) != width or width > _MAX_KEY or not (key.isascii() and key.isdigit()) or int(key) <= last:
                return 0
            last = int(key)
    return (width or KEY_WIDTH) if last < 1 << 63 else 0


def _name_image(fields: dict[str, bytes], header: kernel.Header | None, *, any_format: bool) -> None:
    """Rename a PNG in the field `jpg` to `png`, if that name is free; with `any_format` a GIF there to `gif`, too."""
    image = image_field(fields)
    if image not in IMAGE_FIELDS or header is None:
        return
    real = field_of(header.format) if any_format else FIELD_OF_FORMAT.get(header.format, image)
    if real not in fields:
        fields[real] = fields.pop(image)


def _keep_key(fields: dict[str, bytes], key: str) -> None:
    """Insert the old key into the text of `json`; if that is not an object, add it as the field `key.txt`."""
    text = fields.get(JSON_FIELD, b"{}")
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        fields.setdefault("key.txt", key.encode("utf-8", "backslashreplace"))
    elif "key" not in members:
        inside = text.lstrip(b"\xef\xbb\xbf \t\r\n")[1:]
        comma = b"," if members else b""
        fields[JSON_FIELD] = b'{"key":%s%s%s' % (json.dumps(key).encode(), comma, inside)
