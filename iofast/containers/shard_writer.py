"""The Writer of a set of shards. A resumed run keeps full shards and writes the others again.

A subclass encodes one record in its format. Everything else is here: where a shard ends, the entries of its records,
index and manifest.
"""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from iofast import owned
from iofast.containers.base import Description, Kept, Reader, Seen, Writer
from iofast.containers.entries import EntryColumns, in_columns
from iofast.containers.index import Stamp, encode_rows
from iofast.containers.manifest import Manifest, Shard
from iofast.containers.register import Register
from iofast.containers.shard_files import FullShard, OpenShard, entries_in, find_full
from iofast.containers.shard_reader import ShardReader
from iofast.containers.shards import INDEX_SUFFIX, MANIFEST_SUFFIX, ShardCut, write_index
from iofast.errors import ContainerError, IofastError, TargetError, because
from iofast.kernel import crc32c
from iofast.record import KEY_WIDTH, ImageInfo, format_key


class EncodedRecord(NamedTuple):
    """The bytes of one record in a shard. `offsets` are of the payloads in these bytes, sorted by field."""

    pieces: Sequence[bytes]
    length: int  # of all pieces
    offsets: Sequence[int]


class AdoptedShard(NamedTuple):
    """Shard `number` of another set, whose records begin at the dense index `first` there."""

    reader: ShardReader
    number: int
    first: int

    @property
    def path(self) -> Path:
        return Path(self.reader.path).with_name(self.reader.manifest.shards[self.number].name)

    def entries(self) -> Iterator[EntryColumns]:
        """The entries of its records."""
        records = self.reader.manifest.shards[self.number].count
        return self.reader.entries(self.first, self.first + records)


class ShardWriter(Writer):
    """Write the set `name` (`train.tar`) into `folder`, its `.partial`; `cut` decides where shards end.

    A full shard is made durable at once, with a file of entries beside it. Equal records give equal bytes. Staged
    shards are numbered; `files` maps them to their final names. Raises `ContainerError` for an invalid record and
    `TargetError` if the disk is full or not writable; after a `TargetError` call only `abort`.
    """

    suffix: str
    resumes = True

    def __init__(
        self, folder: str | os.PathLike[str], name: str, *, cut: ShardCut | None = None, key_width: int = KEY_WIDTH
    ) -> None:
        self.folder, self.name, self.cut = Path(folder), name, cut or ShardCut()
        self._register = Register(key_width)
        self._shard: OpenShard | None = None
        self._done: list[FullShard] = []
        self._adopted: dict[int, AdoptedShard] = {}  # by their number in this set
        self._begun = self._closed = False

    @property
    def committed(self) -> int:
        """The last position in full shards; see `Writer.committed`."""
        return self._done[-1].stop - 1 if self._done else -1

    def join(self, part: Reader, seen: Seen | None = None) -> None:
        """Adopt the shards of `part`, a set in the writer's folder; see `Writer.join`. `files` has them."""
        self._begin()
        if not isinstance(part, ShardReader):
            raise ContainerError(f"{self.name}: expected a part that is a set of shards, found {part.container}")
        for number, split, first in _shards_of(part):
            self._adopt(part, number, split, first, seen)

    def resume(self, seen: Seen | None = None, stop: int | None = None) -> Kept:
        """Adopt the full shards that an earlier run of the same records left; see `Writer.resume`.

        All other shards are removed. Payloads of full shards are not read: the header of a shard's entries is written
        only when the shard is durable, and a shard whose size or modification time differs is not adopted.
        """
        if self._begun:
            raise ContainerError(f"{self.name}: the writer has begun, so it cannot resume")
        self._begun = True
        with self._errors():
            while True:
                number = len(self._done)
                full = find_full(self._staged(number), self._rows(number), self._shape)
                if full is None or (stop is not None and full.stop > stop):
                    break
                for records in in_columns(entries_in(self._rows(number))):
                    self._register.adopt(records, full.split)
                    if seen is not None:
                        seen(records.position.tolist())
                self._done.append(full)
            self._clear()
        return Kept(self._register.count, self.committed)

    def write(self, position: int, fields: Mapping[str, bytes], info: ImageInfo, split: str) -> None:
        """Append the record of `position`; see `Writer.write`. Without `resume`, shards in the folder are removed."""
        self._begin()
        with self._errors():
            entry = self._register.add(position, fields, info, split)
            encoded = self._encode(format_key(position, self._register.key_width), fields, info)
            shard = self._enter(position, encoded.length, split)
            shard.add(encoded.pieces, encoded.length, entry.at(shard.size, encoded.offsets))

    def finish(self, description: Description) -> Manifest:
        """Write index and manifest, make them durable, and close. Afterwards the staged files are a complete set."""
        self._begin()
        with self._errors():
            self._leave(self._register.position + 1)
            files = zip(self._names(), self._done, strict=True)
            shards = tuple(Shard(name, full.records, full.size) for name, full in files)
            manifest = self._register.manifest(description, shards)
            chunks = encode_rows(self._entries(), manifest.fields, Stamp())
            write_index(self.folder / (self.name + INDEX_SUFFIX), chunks)
            (self.folder / (self.name + MANIFEST_SUFFIX)).write_bytes(manifest.to_json())
            for staged in (self.name + INDEX_SUFFIX, self.name + MANIFEST_SUFFIX):
                owned.sync(self.folder / staged)
        self.abort()
        return manifest

    def abort(self) -> None:
        """Close all files. Full shards stay for a later `resume`."""
        self._closed = True
        if self._shard is not None:
            self._shard.close()
            self._shard = None

    @property
    def files(self) -> dict[str, str]:
        """Staged names → final names, the manifest last: the argument of `Target.publish`."""
        shards = {self._staged(number).name: name for number, name in enumerate(self._names())}
        return shards | {self.name + suffix: self.name + suffix for suffix in (INDEX_SUFFIX, MANIFEST_SUFFIX)}

    def _adopt(self, base: ShardReader, number: int, split: str, first: int, seen: Seen | None) -> None:
        """Register a shard of another set, and its records."""
        shard, own = base.manifest.shards[number], AdoptedShard(base, number, first)
        self._adopted[len(self._done)] = own
        with self._errors():
            for records in own.entries():
                self._register.adopt(records, split)
                if seen is not None:
                    seen(records.position.tolist())
        self._done.append(FullShard(split, shard.count, shard.size, self._register.position + 1))

    @abstractmethod
    def _encode(self, key: str, fields: Mapping[str, bytes], info: ImageInfo) -> EncodedRecord:
        """The bytes of a record, a function of the arguments only."""

    @abstractmethod
    def _end(self, size: int) -> bytes:
        """The closing bytes of a shard whose records have `size` bytes."""

    @abstractmethod
    def _name(self, stem: str, split: str, number: int, total: int) -> str:
        """The final name of shard `number` of `total` of a split."""

    @property
    def _shape(self) -> int:
        """A checksum of everything, except the records, that determines the bytes of a shard."""
        return crc32c(repr((self.cut, self._register.key_width, *self._own_shape())).encode())

    def _own_shape(self) -> tuple[object, ...]:
        """The part of the shape that depends on the format."""
        return ()

    def _begin(self) -> None:
        if self._closed:
            raise ContainerError(f"{self.name}: the writer is closed")
        if not self._begun:
            self._begun = True
            with self._errors():
                self._clear()

    def _clear(self) -> None:
        """Remove shards and entries of earlier runs, except adopted ones."""
        kept = {place.name for number in range(len(self._done)) for place in (self._staged(number), self._rows(number))}
        for entry in list(os.scandir(self.folder)):
            if entry.name.startswith(("shard-", "rows-")) and entry.name not in kept:
                os.unlink(entry.path)

    def _enter(self, position: int, length: int, split: str) -> OpenShard:
        """Return the shard for a record of this length; close the previous shard if it is full."""
        shard = self._shard
        if shard is not None:
            size = shard.size + length
            if split != shard.split or self.cut.between(shard.position, position, size + len(self._end(size))):
                self._leave(position)
        if self._shard is None:
            number = len(self._done)
            self._shard = OpenShard(self._staged(number), self._rows(number), split)
        return self._shard

    def _leave(self, stop: int) -> None:
        """Close the open shard: it has all records before position `stop`."""
        if self._shard is not None:
            self._done.append(self._shard.commit(self._end(self._shard.size), stop, self._shape))
            self._shard = None

    def _names(self) -> list[str]:
        splits = [full.split for full in self._done]
        totals, numbers, names = Counter(splits), Counter[str](), []
        for split in splits:
            names.append(self._name(self.name.removesuffix(self.suffix), split, numbers[split], totals[split]))
            numbers[split] += 1
        return names

    def _staged(self, number: int) -> Path:
        own = self._adopted.get(number)
        if own is not None:
            return own.path  # of a part, in the same folder
        return self.folder / f"shard-{number:06d}{self.suffix}"

    def _rows(self, number: int) -> Path:
        return self.folder / f"rows-{number:06d}"

    def _entries(self) -> Iterator[EntryColumns]:
        """Yield all records."""
        for number in range(len(self._done)):
            own = self._adopted.get(number)
            if own is None:
                yield from in_columns(entries_in(self._rows(number)))
            else:
                yield from own.entries()
                own.reader.close()  # there may be more parts than descriptors

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except IofastError:
            raise
        except OSError as error:
            raise TargetError(f"{self.folder / self.name} cannot be written: {because(error)}") from None


def _shards_of(base: ShardReader) -> Iterator[tuple[int, str, int]]:
    """Yield the number, the split and the first dense index of each shard."""
    first, ranges = 0, base.manifest.ranges()
    for number, shard in enumerate(base.manifest.shards):
        yield number, next(name for name, _, stop in ranges if first < stop), first
        first += shard.count
