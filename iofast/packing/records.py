"""The records of any reader for a writer: payloads unchanged, keys and labels as in docs/format.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.containers.base import Located, Reader
from iofast.containers.changed import follow
from iofast.containers.columns import ABSENT
from iofast.containers.located import steps
from iofast.errors import ContainerError
from iofast.packing.messages import PackedRecord
from iofast.record import (
    FIELD_OF_FORMAT,
    IMAGE_FIELDS,
    JSON_FIELD,
    KEY_WIDTH,
    LABEL_FIELD,
    PICKLED,
    ImageInfo,
    image_field,
    is_stored,
)

SLICE_BYTES = 16 << 20  # bytes of payloads that are read together
SLICE_RECORDS = 1024

_MAX_KEY = 20  # digits


class CopiedRecords:
    """The records of a reader, read in slices.

    `key_width` is the length of the keys if all are rising positions. Otherwise it is 0, positions are dense indices,
    and the `json` of each record gets its old key.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader, self._own = reader, reader.is_ours
        self.key_width = reader.manifest.key_width if self._own else _key_width(reader)

    def read(self, start: int, stop: int) -> Iterator[PackedRecord]:
        """The records of these dense indices. Raises `ContainerError` for a damaged payload."""
        for part in steps(start, stop):
            columns = self._reader.columns(part)
            keys = self._reader.keys(columns)
            for first, last in columns.slices(SLICE_BYTES, SLICE_RECORDS):
                found, own = self._payloads(part[first:last]), keys[first:last]
                headers = [
                    None if self._own else self._header(columns, row, each) for row, each in enumerate(found, first)
                ]
                infos = columns.rows(slice(first, last)).infos()  # a header may have updated them
                rows = zip(part[first:last].tolist(), own, found, headers, infos, strict=True)
                for index, key, payloads, header, info in rows:
                    fields = payloads if self._own else self._legal(payloads, info, key, header)
                    yield PackedRecord(int(key) if self.key_width else index, info, fields, None)

    def not_stored(self) -> list[str]:
        """What no container stores, in words."""
        lines = []
        for name in sorted(self._reader.manifest.fields):
            if self._own or is_stored(name):
                continue
            number = sum(self._having(name, part) for part in steps(0, len(self._reader)))
            pickled = name.rpartition(".")[2] in PICKLED
            why = "is pickled data, which is never stored or loaded" if pickled else "is not a legal name"
            lines.append(f"field {name!r} of {number:,} records {why}: left out")
        return lines

    def _having(self, name: str, indices: NDArray[np.int64]) -> int:
        """How many of these records have the field."""
        try:
            return int((self._reader.locate(indices, name).file != ABSENT).sum())
        except KeyError:  # in no file
            return sum(value is not None for value in self._reader.values(indices, name))

    def _payloads(self, indices: NDArray[np.int64]) -> list[dict[str, bytes]]:
        if self._reader.renames:
            return [dict(self._reader.record(index).fields) for index in indices.tolist()]
        return self._reader.all_values(indices)

    def _header(self, columns: Located, row: int, payloads: Mapping[str, bytes]) -> kernel.Header | None:
        """The header of a record's image, or None; without a checksum, `columns` is updated from it."""
        image = image_field(payloads)
        return None if image not in IMAGE_FIELDS else follow(self._reader, columns, row, payloads[image])

    def _legal(
        self, payloads: Mapping[str, bytes], info: ImageInfo, key: str, header: kernel.Header | None
    ) -> dict[str, bytes]:
        """Fields of another program as ours: label in `cls`, image under its format's name, key in `json`."""
        fields = {name: payload for name, payload in payloads.items() if is_stored(name)}
        _name_image(fields, header)
        label = fields.pop(LABEL_FIELD, None)
        if info.label >= 0:
            fields[LABEL_FIELD] = b"%d" % info.label
        elif label is not None:  # not a class index: one or more names
            fields.setdefault("cls.txt", label)
        if not self.key_width:
            _keep_key(fields, key)
        if not fields:
            raise ContainerError(f"record {key!r} of another program has no field that can be stored")
        return fields


def _key_width(reader: Reader) -> int:
    """The length of another program's keys if all are positions as in docs/format.md; else 0."""
    width, last = 0, -1
    for indices in steps(0, len(reader)):
        for key in reader.keys(reader.columns(indices)):
            width = width or len(key)
            if len(key) != width or width > _MAX_KEY or not (key.isascii() and key.isdigit()) or int(key) <= last:
                return 0
            last = int(key)
    return (width or KEY_WIDTH) if last < 1 << 63 else 0


def _name_image(fields: dict[str, bytes], header: kernel.Header | None) -> None:
    """Rename a PNG in the field `jpg` to `png`, if that name is free."""
    image = image_field(fields)
    if image not in IMAGE_FIELDS or header is None:
        return
    real = FIELD_OF_FORMAT.get(header.format, image)
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
