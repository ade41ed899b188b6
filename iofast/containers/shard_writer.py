"""The Writer of a set of shards. A resumed run keeps full shards and writes the others again.

A subclass encodes one record in its format. Everything else is here: where a shard ends, the entries of its records,
index and manifest.
"""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from iofast import owned
from iofast.containers.base import Description, Kept, Reader, Writer
from iofast.containers.entries import RecordEntry
from iofast.containers.file_bytes import FileBytes
from iofast.containers.index import Stamp, encode_rows
from iofast.containers.manifest import Manifest, Shard
from iofast.containers.register import Register
from iofast.containers.shard_files import FullShard, OpenShard, entries_in, find_full
from iofast.containers.shard_reader import ShardReader
from iofast.containers.shards import INDEX_SUFFIX, MANIFEST_SUFFIX, ShardCut, write_index
from iofast.errors import ContainerError, TargetError, because
from iofast.kernel import crc32c
from iofast.record import KEY_WIDTH, ImageInfo, Record, format_key

_MARKS = 1 << 40  # mark = number of the shard * _MARKS + offset of the entry


class EncodedRecord(NamedTuple):
    """The bytes of one record in a shard. `offsets` are of the payloads in these bytes, sorted by field."""

    pieces: Sequence[bytes]
    length: int  # of all pieces
    offsets: Sequence[int]


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
        self._grown: ShardReader | None = None
        self._begun = self._closed = False
        self._mark = 0

    @property
    def mark(self) -> int:
        """A number for the last record: shard and entry, or -1 - index for a record of the set before the append."""
        return self._mark

    @property
    def committed(self) -> int:
        """The last position in full shards; see `Writer.committed`."""
        return self._done[-1].stop - 1 if self._done else -1

    def recall(self, mark: int) -> Record:
        """Read a record from its shard; see `Writer.recall`."""
        if mark < 0 and self._grown is not None:
            return self._grown.record(~mark)
        with self._errors():
            number, place = divmod(mark, _MARKS)
            _, entry = next(entries_in(self._rows(number), place))
            shard = FileBytes(os.fspath(self._staged(number)))
            own = {name: shard[offset : offset + length] for name, length, _, offset in entry.fields}
        return Record(format_key(entry.position, self._register.key_width), own)

    def extend(self, base: Reader, seen: Callable[[int], object] | None = None) -> None:
        """Adopt the shards of `base`, which stay unchanged in their place; see `Writer.extend`."""
        if self._begun or self._grown is not None or not isinstance(base, ShardReader):
            raise ContainerError(f"{self.name}: only a writer that has not begun can add to a set of shards")
        self._grown, ranges, last = base, base.manifest.ranges(), -1
        starts = {start for _, start, _ in ranges}
        splits = iter([name for name, start, stop in ranges for _ in range(start, stop)])
        with self._errors():
            for index, entry in enumerate(base.placed()):
                if index in starts:
                    self._register.section()
                self._register.adopt(entry, next(splits))
                last, self._mark = entry.position, ~index
                if seen is not None:
                    seen(entry.position)
        self._register.section()
        first = 0
        for shard in base.manifest.shards:
            split = next(name for name, _, stop in ranges if first < stop)
            self._done.append(FullShard(split, shard.count, shard.size, last + 1))
            first += shard.count

    def resume(self, seen: Callable[[int], object] | None = None, stop: int | None = None) -> Kept:
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
                self._register.reenter(full.split)
                for place, entry in entries_in(self._rows(number)):
                    self._register.adopt(entry, full.split)
                    self._mark = number * _MARKS + place
                    if seen is not None:
                        seen(entry.position)
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
            entry = entry.at(shard.size, encoded.offsets)
            self._mark = len(self._done) * _MARKS + shard.add(encoded.pieces, encoded.length, entry)

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
            self._link()
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
        old, new = self._old, self._names()
        shards = {
            self._staged(number).name: name for number, name in enumerate(new) if name not in old[number : number + 1]
        }
        return shards | {self.name + suffix: self.name + suffix for suffix in (INDEX_SUFFIX, MANIFEST_SUFFIX)}

    @property
    def obsolete(self) -> list[str]:
        """Shards of the set before the append whose name has changed."""
        return sorted(set(self._old) - set(self._names()))

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

    @property
    def _old(self) -> list[str]:
        """The shards of the set before the append."""
        return [] if self._grown is None else [shard.name for shard in self._grown.manifest.shards]

    def _link(self) -> None:
        """Link adopted shards to their new names, which contain the total; the old names stay until publication."""
        if self._grown is None:
            return
        old, new = self._old, self._names()
        if moved := [name for was, name in zip(old, new, strict=False) if was != name and name in old]:
            raise ContainerError(
                f"{self._grown.path} has its shards in another order than iofast gives them: {moved[0]}"
            )
        for number, was in enumerate(old):
            if was != new[number]:
                self._staged(number).unlink(missing_ok=True)
                os.link(os.path.join(os.path.dirname(self._grown.path), was), self._staged(number))

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
        return self.folder / f"shard-{number:06d}{self.suffix}"

    def _rows(self, number: int) -> Path:
        return self.folder / f"rows-{number:06d}"

    def _entries(self) -> Iterator[RecordEntry]:
        """Yield all records."""
        old = 0
        if self._grown is not None:
            old = len(self._grown.manifest.shards)
            yield from self._grown.placed()
        for number in range(old, len(self._done)):
            yield from (entry for _, entry in entries_in(self._rows(number)))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TargetError:
            raise
        except OSError as error:
            raise TargetError(f"{self.folder / self.name} cannot be written: {because(error)}") from None
