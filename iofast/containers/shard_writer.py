"""The Writer of a set of shards: records go straight into their shard, once, and a killed run goes on from there.

A subclass says how a record looks in its format. Everything else is here: where one shard ends and the next begins,
the journal of what was written, the index, the manifest.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from iofast import owned
from iofast.containers import shard_journal
from iofast.containers.base import Description, Kept, Reader, Writer
from iofast.containers.index import ABSENT, CHUNK_ROWS, Stamp, chunk_count, encode_chunk, raw_fields, row_struct
from iofast.containers.manifest import Manifest, Shard
from iofast.containers.shard_files import OpenShard, StagedShards, write
from iofast.containers.shard_journal import Placed
from iofast.containers.shard_reader import ShardReader
from iofast.containers.shards import INDEX_SUFFIX, MANIFEST_SUFFIX, SHARD_SIZE, stem_of, write_index
from iofast.containers.spool import Spool, Stored
from iofast.errors import ContainerError, OptionError, TargetError
from iofast.kernel import crc32c
from iofast.record import KEY_WIDTH, ImageInfo, Record, format_key

JOURNAL = "records"


class Encoded(NamedTuple):
    """The bytes of one record in a shard. `offsets` are those of the payloads in them, fields sorted by name."""

    pieces: Sequence[bytes]
    length: int  # of all pieces
    offsets: Sequence[int]
    whole: tuple[int, int, int] | None = None  # offset, length and CRC32C that go into one more location group


class ShardWriter(Writer):
    """Writes the set `name` (`train.tar`) into `folder`, its `.partial`, in shards of up to `shard_size` bytes.

    A shard ends before the record that would make it larger, and where a split ends; it has at least one record. Equal
    records give equal bytes. Staged names are numbers; `files` tells the final ones. Errors: `ContainerError` for a
    record that is not legal, `TargetError` where the disk is full or cannot be written; after the latter only `abort`.
    """

    suffix: str
    resumes = True

    def __init__(
        self, folder: str | os.PathLike[str], name: str, *, shard_size: int = SHARD_SIZE, key_width: int = KEY_WIDTH
    ) -> None:
        if shard_size < 1:
            raise OptionError(f"shard_size must be a number of bytes above 0, found {shard_size}")
        self.folder, self.name, self.shard_size = Path(folder), name, shard_size
        self._shard: OpenShard | None = None
        self._done: list[tuple[str, int, int]] = []  # split, count, size of the shards that are full
        self._grown: ShardReader | None = None
        self._begun = self._closed = False
        self._last = -1
        self._mark = self._end_of_journal = 0
        with self._errors():
            self._spool = Spool(folder, key_width)
            self._journal = os.open(self.folder / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)

    @property
    def last(self) -> list[tuple[str, int, int]]:
        """The fields of the record that came last; see `Writer.last`."""
        return self._spool.last

    @property
    def mark(self) -> int:
        """Where the journal has the record that came last; records of a set that is added to count from -1 down."""
        return self._mark

    def recall(self, mark: int) -> Record:
        """A record, from its shard; see `Writer.recall`."""
        if mark < 0 and self._grown is not None:
            return self._grown.record(~mark)
        with self._errors(), contextlib.closing(StagedShards(self._staged)) as shards:
            _, placed = next(shard_journal.entries(self._journal, mark))
            own = [
                (name, shards.read(placed.shard, offset, length)) for name, length, _, offset in placed.fields if name
            ]
        return Record(format_key(placed.position, self._spool.key_width), {name: data or b"" for name, data in own})

    def extend(self, base: Reader, seen: Callable[[int], object] | None = None) -> None:
        """Take up the shards of `base`, which stay as they are where they are; see `Writer.extend`."""
        if self._begun or self._grown is not None or not isinstance(base, ShardReader):
            raise ContainerError(f"{self.name}: only a writer that has not begun can add to a set of shards")
        self._grown, ranges = base, base.manifest.ranges()
        starts = {start for _, start, _ in ranges}
        with self._errors():
            for index, (placed, strips) in enumerate(base.placed()):
                if index in starts:
                    self._spool.section()
                fields = [(name, length, crc) for name, length, crc, _ in placed.fields if name]
                self._spool.adopt(Stored(placed.position, placed.info, fields, strips), placed.split)
                self._last, self._mark = placed.position, ~index
                if seen is not None:
                    seen(placed.position)
        self._spool.section()
        first = 0
        for shard in base.manifest.shards:
            split = next(name for name, _, stop in ranges if first < stop)
            self._done.append((split, shard.count, shard.size))
            first += shard.count

    def resume(self, seen: Callable[[int], object] | None = None, stop: int | None = None) -> Kept:
        """Go on with what an earlier run of the same records left in the folder; see `Writer.resume`.

        Every record is read and compared with its checksums and with what would be written now. From the first one that
        is not whole, everything is cut off.
        """
        if self._begun:
            raise ContainerError(f"{self.name}: the writer has begun, so it cannot resume")
        self._begun, end = True, 0
        with self._errors(), contextlib.closing(StagedShards(self._staged)) as shards:
            for after, placed in shard_journal.entries(self._journal):
                if (stop is not None and placed.position >= stop) or not self._replay(placed, shards):
                    break
                self._mark, end = end, after
                if seen is not None:
                    seen(placed.position)
            self._cut(end)
        return Kept(self._spool.count, self._last)

    def write(self, position: int, fields: Mapping[str, bytes], info: ImageInfo, split: str) -> None:
        """Append the record of `position`; see `Writer.write`. Without `resume`, what was in the folder goes first."""
        self._begin()
        with self._errors():
            key = self._spool.add(position, fields, info, split)
            encoded = self._encode(key, fields, info)
            shard = self._enter(encoded.length, split)
            write(shard.fd, encoded.pieces, shard.size)
            placed = self._placed(position, info, encoded, shard)
            entry = shard_journal.encode(placed)
            write(self._journal, [entry], None)
            self._mark, self._end_of_journal = self._end_of_journal, self._end_of_journal + len(entry)
            self._fill(shard, placed)

    def reenter(self, split: str) -> None:
        """Let the next record be one of `split`; see `Writer.reenter`."""
        self._spool.reenter(split)

    def finish(self, description: Description) -> Manifest:
        """Write index and manifest, make everything durable, close. The staged files are a whole set after this."""
        self._begin()
        with self._errors():
            self._leave()
            manifest = self._spool.manifest(description, self._shards())
            write_index(self.folder / (self.name + INDEX_SUFFIX), self._chunks(manifest))
            (self.folder / (self.name + MANIFEST_SUFFIX)).write_bytes(manifest.to_json())
            self._link()
            for staged in self.files:
                owned.sync(self.folder / staged)
        self.abort()
        return manifest

    def abort(self) -> None:
        """Close everything; what is in the folder stays, for `resume` of another writer."""
        self._closed = True
        if self._shard is not None:
            os.close(self._shard.fd)
            self._shard = None
        if self._journal >= 0:
            os.close(self._journal)
            self._journal = -1
        self._spool.close()

    @property
    def files(self) -> dict[str, str]:
        """Staged names and what they will be called, the manifest last: what `Target.publish` takes."""
        old, new = self._old, self._names()
        shards = {
            self._staged(number).name: name for number, name in enumerate(new) if name not in old[number : number + 1]
        }
        return shards | {self.name + suffix: self.name + suffix for suffix in (INDEX_SUFFIX, MANIFEST_SUFFIX)}

    @property
    def obsolete(self) -> list[str]:
        """Shards of the set that is added to which got another name."""
        return sorted(set(self._old) - set(self._names()))

    @abstractmethod
    def _encode(self, key: str, fields: Mapping[str, bytes], info: ImageInfo) -> Encoded:
        """The bytes of a record: a function of its arguments alone."""

    @abstractmethod
    def _end(self, size: int) -> bytes:
        """What closes a shard whose records have `size` bytes."""

    @abstractmethod
    def _name(self, stem: str, split: str, number: int, total: int) -> str:
        """The final name of shard `number` of `total` of a split."""

    def _groups(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        """The location groups of an index row; one more, called "", where records have `Encoded.whole`."""
        return fields

    @property
    def _old(self) -> list[str]:
        """The names of the shards of the set that is added to."""
        return [] if self._grown is None else [shard.name for shard in self._grown.manifest.shards]

    def _link(self) -> None:
        """Give shards whose names tell how many there are their new ones; the old ones stay until these stand."""
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
                self._cut(0)

    def _cut(self, end: int) -> None:
        """Let the journal end there, and remove what stands in the shards behind its last entry."""
        os.ftruncate(self._journal, end)
        os.lseek(self._journal, end, os.SEEK_SET)
        self._end_of_journal = end
        if self._shard is not None:
            os.ftruncate(self._shard.fd, self._shard.size)
        kept = {self._staged(number).name for number in range(len(self._done) + (self._shard is not None))}
        for entry in list(os.scandir(self.folder)):
            if entry.name.startswith("shard-") and entry.name.endswith(self.suffix) and entry.name not in kept:
                os.unlink(entry.path)

    def _replay(self, placed: Placed, shards: StagedShards) -> bool:
        """Take up one record of an earlier run, if every byte of it is as it would be written now."""
        if not 0 <= placed.stop - placed.start <= 1 << 40:
            return False
        data = shards.read(placed.shard, placed.start, placed.stop - placed.start)
        if data is None or placed.position < 0:
            return False
        fields = {}
        for name, length, crc, offset in placed.fields:
            if not name:  # the whole record, whose bytes are compared below
                continue
            payload = data[offset - placed.start : offset - placed.start + length] if offset >= placed.start else b""
            if len(payload) != length or crc32c(payload) != crc:
                return False
            fields[name] = payload
        try:
            encoded = self._encode(format_key(placed.position, self._spool.key_width), fields, placed.info)
            place = self._next(encoded.length, placed.split)
            if place != (placed.shard, placed.start) or b"".join(encoded.pieces) != data:
                return False
            if placed.fields != _fields_of(placed, encoded, sorted(fields)):  # the index will be made of them
                return False
            if placed.shard > len(self._done) and not self._is_full():
                return False
            self._spool.reenter(placed.split)  # it was written so
            self._spool.add(placed.position, fields, placed.info, placed.split)
        except ContainerError:  # it was never written so
            return False
        shard = self._enter(encoded.length, placed.split)
        self._fill(shard, self._placed(placed.position, placed.info, encoded, shard))
        return True

    def _is_full(self) -> bool:
        """Whether the open shard ends behind what has been replayed: no entry of it is missing."""
        shard = self._shard
        if shard is None:
            return True
        end = self._end(shard.size)
        return os.pread(shard.fd, len(end) + 1, shard.size) == end

    def _next(self, length: int, split: str) -> tuple[int, int]:
        """Number of the shard and offset in it where a record of this length belongs."""
        number, shard = len(self._done), self._shard
        if shard is None:
            return number, 0
        size = shard.size + length
        if split != shard.split or size + len(self._end(size)) > self.shard_size:
            return number + 1, 0
        return number, shard.size

    def _enter(self, length: int, split: str) -> OpenShard:
        """The shard for a record of this length."""
        number, _ = self._next(length, split)
        if number > len(self._done):
            self._leave()
        if self._shard is None:
            self._shard = OpenShard(self._staged(number), split)
        return self._shard

    def _leave(self) -> None:
        """Close the shard that is being filled."""
        shard = self._shard
        if shard is None:
            return
        end = self._end(shard.size)
        write(shard.fd, [end], shard.size)
        size = shard.size + len(end)
        os.ftruncate(shard.fd, size)
        os.close(shard.fd)
        self._shard = None
        self._done.append((shard.split, shard.count, size))

    def _fill(self, shard: OpenShard, placed: Placed) -> None:
        shard.grow(placed.stop)
        self._last = placed.position

    def _placed(self, position: int, info: ImageInfo, encoded: Encoded, shard: OpenShard) -> Placed:
        """The record that the spool took last, where it lies."""
        start = shard.size
        offsets = [start + offset for offset in encoded.offsets]
        fields = [(*entry, offset) for entry, offset in zip(self._spool.last, offsets, strict=True)]
        if encoded.whole is not None:
            offset, length, crc = encoded.whole
            fields.append(("", length, crc, start + offset))
        return Placed(position, len(self._done), start, start + encoded.length, info, shard.split, tuple(fields))

    def _shards(self) -> tuple[Shard, ...]:
        sizes = zip(self._names(), self._done, strict=True)
        return tuple(Shard(name, count, size) for name, (_, count, size) in sizes)

    def _names(self) -> list[str]:
        totals, numbers = Counter(split for split, _, _ in self._done), Counter[str]()
        names = []
        for split, _, _ in self._done:
            names.append(self._name(stem_of(self.name, self.suffix), split, numbers[split], totals[split]))
            numbers[split] += 1
        return names

    def _staged(self, number: int) -> Path:
        return self.folder / f"shard-{number:06d}{self.suffix}"

    def _chunks(self, manifest: Manifest) -> Iterator[bytes]:
        """The chunks of the index: places from the journal, checksums of strips from the spool."""
        groups = self._groups(manifest.fields)
        pack, raw = row_struct(groups).pack, raw_fields(groups)
        numbers = {name: number for number, name in enumerate(groups)}
        old = iter(()) if self._grown is None else (placed for placed, _ in self._grown.placed())
        new = (placed for _, placed in shard_journal.entries(self._journal))
        rows = zip(itertools.chain(old, new), self._spool.rows(), strict=True)
        for chunk in range(chunk_count(manifest.count)):
            body = b"".join(
                [
                    pack(*_row(placed, stored, numbers), *(stored.strips.get(name, b"") for name in raw))
                    for placed, stored in itertools.islice(rows, CHUNK_ROWS)
                ]
            )
            yield encode_chunk(body, chunk * CHUNK_ROWS, groups, Stamp())

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TargetError:
            raise
        except OSError as error:
            reason = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error)).lower()
            raise TargetError(f"{self.folder / self.name} cannot be written: {reason}") from None


def _fields_of(placed: Placed, encoded: Encoded, names: Sequence[str]) -> tuple[tuple[str, int, int, int], ...]:
    """What an entry has to say of fields whose lengths and checksums were found right."""
    said = {name: (length, crc) for name, length, crc, _ in placed.fields}
    fields = [(name, *said[name], placed.start + at) for name, at in zip(names, encoded.offsets, strict=True)]
    if encoded.whole is not None:
        offset, length, crc = encoded.whole
        fields.append(("", length, crc, placed.start + offset))
    return tuple(fields)


def _row(placed: Placed, stored: Stored, numbers: Mapping[str, int]) -> list[int]:
    """An index row but for its strips."""
    if placed.position != stored.position:
        raise ContainerError(f"the journal has position {placed.position} where {stored.position} was written")
    info = stored.info
    row = [placed.position, info.label, info.width, info.height, info.orientation, 0, *[ABSENT, 0, 0, 0] * len(numbers)]
    for name, length, crc, offset in placed.fields:
        at = 6 + 4 * numbers[name]
        row[at : at + 4] = [placed.shard, offset, length, crc]
    return row
