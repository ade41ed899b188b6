"""The interface of every container that is read. docs/format.md specifies it for all containers at once."""

import ctypes
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Self

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from iofast.containers.any_bytes import StoredPlaces, fetch_again
from iofast.containers.columns import ABSENT
from iofast.containers.file_bytes import MAX_OPEN, bounded, read_at
from iofast.containers.located import Located, dense
from iofast.containers.manifest import Manifest
from iofast.errors import ContainerError, IofastError
from iofast.kernel import Payloads
from iofast.record import Record, format_key, image_field

__all__ = ["UNREADABLE", "Failures", "Located", "Reader", "dense"]

_log = logging.getLogger("iofast")

# No process has this descriptor: reading from it fails, and only for the rows that have it.
UNREADABLE = np.iinfo(np.int32).max

Failures = dict[int, IofastError]  # row of the request → its error


class Reader(ABC):
    """Random access to the records of one container or plain folder.

    Dense indices 0 … len-1 are in packing order, over all splits.
    """

    manifest: Manifest
    container: str  # the kind, for `info` and `verify`: lmdb, tar, folder
    renames = False  # `record` names the image's field by its format; other methods call it `jpg`
    is_ours = False  # iofast wrote it: its fingerprint covers bytes, and its fields are legal
    has_paths = False  # `path` in a record's `json` is from iofast or from a file's name, not from another program
    left_out: Sequence[str] = ()  # about content of the files that is in no record, in words
    _changed: bytearray  # a flag per dense index, created with the first changed image

    def __len__(self) -> int:
        return self.manifest.count

    @property
    def is_stored(self) -> bool:
        """Whether payloads are in an object store."""
        return False

    @property
    def index_is_stale(self) -> bool:
        """Whether another program wrote to the file after it was indexed, so only checksums prove payloads."""
        return False

    def opening(self) -> object:
        """Return a token that changes when the file is opened again, as it is here if another program wrote to it.

        Places that were located under another token are invalid. Raises `ContainerError`, as `locate` does.
        """
        return None

    @abstractmethod
    def locate(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """Where the payloads of `field` (default: the image) of these records lie.

        Raises `IndexError` for an index out of range, `KeyError` for a field that the container does not have.
        """

    def places(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """Where the payloads of `field` lie: `locate`, but the other columns (labels, sizes) may be 0."""
        return self.locate(indices, field)

    @abstractmethod
    def payloads(self, located: Located, start: int, stop: int) -> AbstractContextManager[Payloads]:
        """Rows [start, stop) of `located` as the kernel reads them; valid inside the `with` block."""

    def stored_places(self, located: Located) -> list[StoredPlaces]:  # noqa: ARG002
        """Where those of the payloads lie that are in object stores: each set of places has a row for each of them."""
        return []

    def view(self, index: int, field: str | None = None) -> memoryview:
        """The payload of one field of one record, in memory of its own: it outlives the reader.

        Its CRC32C is checked where the index has one. Raises like `values`, and `KeyError` if the record lacks the
        field.
        """
        value = self.values(np.array([index], np.int64), field)[0]
        if value is None:
            raise KeyError(f"{self.name(index)} has no {'image' if field is None else f'field {field!r}'}")
        return memoryview(value)

    def values(
        self,
        indices: NDArray[np.int64],
        field: str | None = None,
        *,
        check: bool = True,
        failed: Failures | None = None,
    ) -> list[bytes | None]:
        """The payloads of one field (default: the image) of many records, None for a record without the field.

        Payloads are read in the order of the file, and no other field is read. The CRC32C is checked where the index
        has one, unless `check` is False. Raises like `locate`, and `ContainerError` (a folder: `SourceError`) for a
        payload that is damaged or cannot be read. With `failed`, such a row is None and its error is stored there.
        """
        wrong: Failures = {}
        values = self._values(indices, field, check, wrong)
        if failed is not None:
            failed.update(wrong)
        elif wrong:
            raise next(iter(wrong.values()))
        return values

    def columns(self, indices: NDArray[np.int64]) -> Located:
        """What the index knows about these records: `locate` of the image, without places if there is no image."""
        fields = self.manifest.fields
        if image_field(fields) or not fields:
            return self.locate(indices)
        return self.locate(indices, fields[0]).nowhere()

    def labels(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """The labels of these records, int32 (N,), -1 for none. Containers of iofast read nothing else for them."""
        return self.columns(indices).label

    def positions(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The positions of these records in the packing order, uint64 (N,): the numbers in the keys."""
        return np.asarray(indices).astype(np.uint64)

    def keys(self, located: Located) -> list[str]:
        """The keys of the records in `located`."""
        width = self.manifest.key_width
        return [format_key(position, width) for position in self.positions(located.indices).tolist()]

    def all_values(
        self, indices: NDArray[np.int64], fields: Sequence[str] | None = None, *, failed: Failures | None = None
    ) -> list[dict[str, bytes]]:
        """The payloads of `fields` (default: all) of many records. Raises like `values`, which explains `failed`."""
        found: list[dict[str, bytes]] = [{} for _ in range(len(indices))]
        for name in self.manifest.fields if fields is None else fields:
            for own, value in zip(found, self.values(indices, name, failed=failed), strict=True):
                if value is not None:
                    own[name] = value
        return found

    @abstractmethod
    def record(self, index: int) -> Record:
        """One record with all its fields, every payload checked where there are checksums."""

    @abstractmethod
    def name(self, index: int) -> str:
        """The record in error messages: container and key, or the path of a file."""

    @property
    def changed(self) -> int:
        """How many images differed from the index, for this reader in this process."""
        return self._changed.count(1) if hasattr(self, "_changed") else 0

    def note_changed(self, index: int, now: str) -> None:
        """Count an image that differs from the index; `now` is its size. The first one is logged."""
        mine = bytearray(len(self))
        if self.__dict__.setdefault("_changed", mine) is mine:  # one step, so only one of several threads is first
            _log.warning(
                "%s was changed after it was indexed: it has %s pixels now, and is read so. Others that were changed "
                "are read as they are now, too, and counted in stats.changed, but not named",
                self.name(index),
                now,
            )
        self._changed[index] = 1

    @abstractmethod
    def close(self) -> None:
        """Give back descriptors; a later call opens them again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record]:
        return (self.record(index) for index in range(len(self)))

    def _values(
        self, indices: NDArray[np.int64], field: str | None, check: bool, wrong: Failures
    ) -> list[bytes | None]:
        """See `values`; errors go to `wrong`. One `pread` for each; damaged stored payloads are fetched again once."""
        located = self.places(indices, field)
        values: list[bytes | None] = [None] * len(located.indices)
        groups = _groups(located.file)
        for is_last in (False, True):
            for row, found in (each for rows in groups for each in self._read(located, rows, field or "image", check)):
                if isinstance(found, bytes):
                    values[row] = found
                else:
                    wrong[row] = found
            damaged = np.array([*wrong], np.intp)
            if is_last or not wrong or not fetch_again(self.stored_places(located.rows(damaged))):
                break
            groups = [damaged]
            wrong.clear()
        return values

    def _read(
        self, located: Located, rows: NDArray[np.intp], field: str, check: bool
    ) -> Iterator[tuple[int, bytes | ContainerError]]:
        """Payload or error of those of the rows that have one, by file and offset."""
        some = located if len(rows) == len(located.indices) else located.rows(rows)
        with self.payloads(some, 0, len(rows)) as places:
            fds, offsets, lengths = (column.tolist() for column in places[:3])
            wanted = some.length.tolist()
            crcs = places.crcs.tolist() if check and places.crcs is not None else None
            order = np.lexsort((some.offset, some.file))
            for number in order[some.file[order] != ABSENT].tolist():
                fd, place = fds[number], (offsets[number], lengths[number])
                try:
                    data = ctypes.string_at(*place) if fd == -1 else read_at(fd, *place)  # -1: an address in memory
                    if len(data) < wanted[number]:
                        raise ContainerError(f"ends after {len(data)} of {wanted[number]} bytes: the file was cut off")
                    if crcs is not None and google_crc32c.value(data) != crcs[number]:
                        raise ContainerError("is damaged: its CRC32C differs")
                    yield int(rows[number]), data
                except (ContainerError, OSError) as error:
                    what = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
                    where = f"{self.name(int(some.indices[number]))}: {field} at offset {some.offset[number]}"
                    yield int(rows[number]), ContainerError(f"{where} {what}")


def _groups(files: NDArray[np.uint32]) -> list[NDArray[np.intp]]:
    """Rows that are read together: of half as many files as a reader keeps open. More take 2 to 4 times as long."""
    most = max(1, bounded(MAX_OPEN) // 2)
    if len(files) <= most:
        return [np.arange(len(files))]
    group = np.unique(files, return_inverse=True)[1] // most
    return [np.flatnonzero(group == number) for number in range(int(group.max()) + 1)]
