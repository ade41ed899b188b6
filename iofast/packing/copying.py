"""Copy the records of a container as they are: `pack` with format=keep and check=end, which `iofast convert` calls.

No payload byte changes. Order, splits, classes, recipe and keys stay; a key that is not a position goes into `json`.
This process reads and writes, because nothing is decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np

from iofast.containers.base import Reader
from iofast.containers.folder_writer import FolderTarget
from iofast.containers.identity import require_elsewhere, state_of
from iofast.containers.manifest import Description
from iofast.containers.publish import Target, require_free
from iofast.containers.shard_target import ShardTarget, shard_bytes
from iofast.containers.writer import TRANSACTION_BYTES, Section
from iofast.errors import SourceError
from iofast.packing.options import PackOptions
from iofast.packing.plan import PackPlan, shards
from iofast.packing.pool import Done
from iofast.packing.records import CopiedRecords
from iofast.record import key_width
from iofast.version import __version__

_OF_COPIES = ("format", "check", "shard_size", "shard_records", "overwrite", "foreign", "workers", "max_errors")


def is_copy(options: PackOptions) -> bool:
    """Whether the options leave all records of a container as they are."""
    given = {each.name for each in fields(options) if getattr(options, each.name) != each.default}
    return options.format == "keep" and options.check == "end" and given <= set(_OF_COPIES)


class CopyWork:
    """The copying of all records of a reader of `source`; see `work.PackWork`.

    Raises `SourceError` if a folder would get no file. `results` raise `ContainerError` for a damaged payload.
    """

    def __init__(self, reader: Reader, source: str, target: Target, options: PackOptions) -> None:
        require_elsewhere(reader, source, target)
        if not len(reader) and isinstance(target, FolderTarget):
            raise SourceError(f"{source} contains no record")
        self.options, self._reader, self._source = options, reader, source
        self._records = CopiedRecords(reader)
        self.key_width = self._records.key_width or key_width(len(reader))
        settings = {"copy of": os.path.abspath(source), "iofast": __version__, **shards(options, target)}
        self.plan = PackPlan(len(reader), tuple(reader.manifest.ranges()), state_of(reader, source), settings)

    def results(self, _: object, sections: Sequence[Section]) -> Iterator[Done]:
        """The records of these sections, one at a time."""
        for section in sections:
            for record in self._records.read(section.start, section.stop):
                yield Done(section.start, 1, (record,), (), sum(map(len, record.fields.values())), 0)

    def path(self, position: int) -> str:
        """The name of a record, for messages."""
        return self._reader.name(position)

    def description(self) -> Description:
        """The description for the container's writer."""
        manifest = self._reader.manifest
        return Description(manifest.classes, manifest.class_order, manifest.recipe, manifest.seed)

    def section_records(self, target: Target) -> int:
        """How many records a section gets: about a shard of the wanted size, or a transaction of LMDB."""
        limit = shard_bytes(self.options.shard_size, target) if isinstance(target, ShardTarget) else TRANSACTION_BYTES
        return self.options.shard_records or max(1, int(limit / (self._size / max(1, len(self._reader)) + 2048)))

    def require_space(self, target: Target) -> None:
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
            "warnings": self.warnings,
        }

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What is not copied, in words."""
        return (*self._reader.left_out, *self._records.not_stored())

    @property
    def _size(self) -> int:
        """Bytes of all files, about those of all payloads."""
        return sum(shard.size for shard in self._reader.manifest.shards)
