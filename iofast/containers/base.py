"""What every container is to the code above it: a Reader, a Writer, a Manifest, and places of payloads.

The contract is written for all containers at once (docs/format.md); a container adds only how it finds its bytes.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from iofast.containers.index import ABSENT
from iofast.containers.manifest import Manifest
from iofast.errors import IofastError
from iofast.kernel import Payloads
from iofast.record import ImageInfo, Record, format_key, image_field

_log = logging.getLogger("iofast")

# No process has this descriptor, so reading a byte of it fails, and with it only its row.
UNREADABLE = np.iinfo(np.int32).max

Failures = dict[int, IofastError]  # row of what was asked for → what was wrong with it


class Located(NamedTuple):
    """Where the payloads of one field lie, and what the index says of their records: columns of N rows each.

    `crc` is None where the index has no checksums (a plain folder), int64 with -1 where some rows have none (containers
    and folders joined). `width` and `height` are upright, 0 = unknown.
    `kind` tells raw pixels: 1 + the field's place in `record.RAW_FIELDS`, 0 = any other payload.
    """

    indices: NDArray[np.int64]  # the dense indices that were asked for
    position: NDArray[np.uint64]  # position in the packing order, the number in the key
    label: NDArray[np.int32]  # -1 = no label
    width: NDArray[np.int32]
    height: NDArray[np.int32]
    orientation: NDArray[np.uint8]  # EXIF 1-8 still to be applied; 0 = none, whatever the image says
    file: NDArray[np.uint32]  # which file; meaning known to the reader alone
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    crc: NDArray[np.uint32] | NDArray[np.int64] | None

    @property
    def certain(self) -> NDArray[np.bool_]:
        """Which rows have a checksum, so that what the index says of an image holds of the bytes that are read."""
        if self.crc is None or self.crc.dtype == np.int64:
            return np.zeros(len(self.indices), np.bool_) if self.crc is None else np.asarray(self.crc >= 0)
        return np.ones(len(self.indices), np.bool_)

    def rows(self, rows: NDArray[np.int64] | slice) -> Located:
        """The same columns of some of the rows."""
        return Located._make(None if column is None else column[rows] for column in self)

    def slices(self, most_bytes: int, most_rows: int) -> list[tuple[int, int]]:
        """The rows as [start, stop) with so many rows and bytes of payload at most, or one row where that has more."""
        ends = np.cumsum(self.length.astype(np.int64))
        found, start = [], 0
        while start < len(ends):
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + most_bytes, "right"))
            stop = min(max(stop, start + 1), start + most_rows)
            found.append((start, stop))
            start = stop
        return found

    def payloads(
        self, rows: slice, fds: NDArray[np.int32], offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]
    ) -> Payloads:
        """Some rows as the kernel reads them, their bytes at these places.

        A checksum says that an encoded image is the one that was indexed; without one its header has to.
        """
        kind, certain = self.kind[rows], self.certain[rows]
        indexed = None
        if kind.any() or not certain.all():
            indexed = np.stack((kind, self.width[rows], self.height[rows]), 1, dtype=np.int32)
            indexed[certain & (kind == 0), 1:] = 0
        crcs = None if self.crc is None else self.crc[rows]
        return Payloads(fds, offsets, lengths, crcs, self.orientation[rows], indexed)

    def nowhere(self) -> Located:
        """The same records without a payload, as those that lack a field: `file` is `ABSENT`, all else is 0."""
        nothing = np.zeros(len(self.indices), np.uint64)
        file, kind = np.full(len(nothing), ABSENT, np.uint32), np.zeros(len(nothing), np.uint8)
        crc = None if self.crc is None else np.zeros(len(nothing), np.uint32)  # of no bytes
        return self._replace(file=file, offset=nothing, length=nothing, kind=kind, crc=crc)


def dense(indices: NDArray[np.int64], count: int, where: str, what: str = "records") -> NDArray[np.int64]:
    """Indices as one row in memory. Raises `IndexError` where one is not from 0 to `count` - 1."""
    indices = np.ascontiguousarray(indices, np.int64).reshape(-1)
    if indices.size and not 0 <= indices.min() <= indices.max() < count:
        raise IndexError(f"{where}: indices {indices.min()} to {indices.max()} of {count} {what}")
    return indices


class Entry(NamedTuple):
    """A payload as the container itself, without its index, says where it lies. `name` is `<key>.<field>`."""

    name: str
    offset: int
    length: int


class Reader(ABC):
    """Random access to the records of one container or plain folder.

    Picklable; opens its files lazily in each process, survives fork and spawn; any number of threads may read.
    Dense indices 0 … len-1 are in packing order, over all splits.
    """

    manifest: Manifest
    container: str  # the name of this kind in `info` and `verify`: lmdb, tar, folder
    renames = False  # `record` names the image's field by its format; other methods call it `jpg`
    _changed: bytearray  # by dense index, from the first image on that was found to be changed

    def __len__(self) -> int:
        return self.manifest.count

    @property
    def moved(self) -> bool:
        """Whether another program has written to it since it was indexed, so only checksums vouch for payloads."""
        return False

    @abstractmethod
    def locate(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """Where the payloads of `field` (default: the image) of these records lie.

        Raises `IndexError` for an index out of range, `KeyError` for a field that the container does not have.
        """

    @abstractmethod
    def payloads(self, located: Located, start: int, stop: int) -> AbstractContextManager[Payloads]:
        """Rows [start, stop) of `located` as something the kernel can read; valid inside the `with` block."""

    @abstractmethod
    def view(self, index: int, field: str | None = None) -> memoryview:
        """The payload of one field of one record, in memory of its own: it outlives the reader.

        Checked as a whole against its CRC32C where the index has one. Raises like `locate`.
        """

    @abstractmethod
    def values(
        self,
        indices: NDArray[np.int64],
        field: str | None = None,
        *,
        check: bool = True,
        failed: Failures | None = None,
    ) -> list[bytes | None]:
        """The payloads of one field (default: the image) of many records, None where a record does not have it.

        Read in the order of the file, and nothing else of the records is. Checked against the CRC32C where the index
        has one, unless `check` is False. Raises like `locate`, and `ContainerError` (a folder: `SourceError`) for a
        payload that is damaged or cannot be read; with `failed` such a row gets None and its error is put there.
        """

    def columns(self, indices: NDArray[np.int64]) -> Located:
        """What the index says of these records: `locate` of the image, or where no record has one, of nothing."""
        fields = self.manifest.fields
        if image_field(fields) or not fields:
            return self.locate(indices)
        return self.locate(indices, fields[0]).nowhere()

    def keys(self, located: Located) -> list[str]:
        """The keys of the records in `located`."""
        return [format_key(position, self.manifest.key_width) for position in located.position.tolist()]

    @abstractmethod
    def record(self, index: int) -> Record:
        """One record whole: key and all its fields."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What an error message calls this record: container and key, or the path of a file."""

    @property
    def changed(self) -> int:
        """How many images were found to be others than the index says, by this reader in this process."""
        return self._changed.count(1) if hasattr(self, "_changed") else 0

    def note_changed(self, index: int, now: str) -> None:
        """Count an image that is another than the index says; `now` is its size. The first one is logged."""
        mine = bytearray(len(self))
        if self.__dict__.setdefault("_changed", mine) is mine:  # one step: of several threads, one is the first
            _log.warning(
                "%s was changed after it was indexed: it has %s pixels now, and is read so. Others that were changed "
                "are read as they are now, too, and counted in stats.changed, but not named",
                self.name(index),
                now,
            )
        self._changed[index] = 1

    def walk(self, shard: int) -> Iterator[Entry] | None:  # noqa: ARG002
        """All payloads of a file of `manifest.shards`, in their order, found without the index; None where none can be.

        Everything else that the container's format lets check is checked on the way. Raises `ContainerError` where it
        is damaged.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Give back descriptors; a later call opens them again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record]:
        return (self.record(index) for index in range(len(self)))


@dataclass(frozen=True, slots=True)
class Description:
    """What a writer cannot know by itself and puts into the manifest."""

    classes: tuple[str, ...] | None = None
    class_order: str = "lexicographic"  # lexicographic | natural | file
    recipe: Mapping[str, object] | None = None  # every option that shaped the pixels, and library versions
    seed: int | None = None  # of the packing permutation


class Kept(NamedTuple):
    """What an earlier run had written: how many records, and the position of the last one (-1 where there is none)."""

    records: int
    position: int


class Writer(ABC):
    """Writes records, in packing order, into a container that nobody sees before `finish`.

    `resumes` says whether another writer can go on with what this one has written; where it cannot, whoever may be
    interrupted must keep the records elsewhere.
    """

    resumes = False

    @property
    def committed(self) -> int:
        """The last position that a resumed run would not write again; -1 if there is none."""
        return -1

    def resume(self, seen: Callable[[int], object] | None = None, stop: int | None = None) -> Kept:  # noqa: ARG002
        """Go on with what an earlier run of the same records left, up to before position `stop`; first of all calls.

        `seen` is told the position of each record that is kept. The caller goes on behind `Kept.position`.
        """
        return Kept(0, -1)

    @abstractmethod
    def extend(self, base: Reader, seen: Callable[[int], object] | None = None) -> None:
        """Begin with the records of a container of the same kind, as they are; before `resume` and `write`.

        What is written behind them begins new ranges of the splits. `seen` is told the position of each. `base` must
        stay open until `finish`.
        """

    @property
    @abstractmethod
    def last(self) -> list[tuple[str, int, int]]:
        """Name, length and CRC32C of each field of the record that came last, by `extend`, `resume` or `write`."""

    @property
    @abstractmethod
    def mark(self) -> int:
        """A number under which `recall` knows the record that came last."""

    @abstractmethod
    def recall(self, mark: int) -> Record:
        """A record that was written, read back from where it stands."""

    @property
    @abstractmethod
    def files(self) -> dict[str, str]:
        """Staged names and what they will be called, in the order of publishing: what `Target.publish` takes."""

    @property
    def obsolete(self) -> list[str]:
        """Files of the container that was added to which go once the new ones stand."""
        return []

    @abstractmethod
    def write(self, position: int, fields: Mapping[str, bytes], info: ImageInfo, split: str) -> None:
        """Append the record of `position` (greater than any before; holes are allowed).

        Splits are contiguous: a split that was left may not be entered again, but for one that `reenter` names.
        """

    @abstractmethod
    def reenter(self, split: str) -> None:
        """Let the next record be one of `split`, even where that was left, as containers have it that were added to."""

    @abstractmethod
    def finish(self, description: Description) -> Manifest:
        """Write index and manifest, make everything durable. The container is whole after this, still unpublished."""

    @abstractmethod
    def abort(self) -> None:
        """Stop; what was written is worthless."""
