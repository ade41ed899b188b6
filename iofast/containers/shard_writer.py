"""The Writer of a set of shards: a section is a shard. A subclass encodes one record in its format."""

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from iofast import owned
from iofast.containers.columns import NOWHERE, columns_of
from iofast.containers.index import Layout
from iofast.containers.manifest import Description, Manifest, Shard
from iofast.containers.shards import MANIFEST_SUFFIX
from iofast.containers.writer import INDEX_SUFFIX, Finished, Section, Writer
from iofast.record import ImageInfo, format_key

_PIECES = 512  # of one system call; Linux takes 1024
_WRITEBACK = 16 << 20  # bytes after which the disk begins to write them, so that the final fsync has little left to do
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class EncodedRecord(NamedTuple):
    """The bytes of one record in a shard. `offsets` are of the payloads in these bytes, by field."""

    pieces: Sequence[bytes]
    length: int  # of all pieces
    offsets: Mapping[str, int]


class ShardWriter(Writer):
    """Write the set `name` (`train.tar`) into `folder`. A finished shard is made durable at once.

    Staged shards have the numbers of their sections; `files` maps them to their final names.
    """

    is_stored = False  # whether finished shards are in an object store, under names that count empty ones

    def __init__(self, folder: str | os.PathLike[str], name: str, description: Description, key_width: int) -> None:
        super().__init__(folder, name, description, key_width)
        self.stem, self.suffix = os.path.splitext(name)
        self.size = 0  # bytes of the open shard so far
        self._fd = -1
        self._begun = 0  # bytes that the disk is writing, or has written

    @property
    def files(self) -> dict[str, str]:
        """Staged names → final names, the manifest last: the argument of `Target.publish`."""
        done = [self.finished[number] for number in sorted(self.finished)]
        shards = {self.staged(each.section).name: name for each, name in self._named(done)}
        return shards | {self.name + suffix: self.name + suffix for suffix in (INDEX_SUFFIX, MANIFEST_SUFFIX)}

    def names(self, splits: Sequence[str]) -> list[str]:
        """The final names of shards with records of these splits."""
        totals, numbers, names = Counter(splits), Counter[str](), []
        for split in splits:
            names.append(self._name(split, numbers[split], totals[split]))
            numbers[split] += 1
        return names

    def staged(self, section: Section) -> Path:
        """The file of a shard that is not published."""
        return self.folder / f"shard-{section.number:06d}{self.suffix}"

    def size_with(self, position: int, fields: Mapping[str, bytes], info: ImageInfo) -> int:
        size = self.size + self.encode(format_key(position, self.key_width), fields, info).length
        return size + len(self.closing(size))

    def records(self, done: Finished) -> Iterator[tuple[int, dict[str, bytes]]]:
        """The positions and payloads of a finished shard, which has records."""
        columns = done.columns()
        places = {name: [columns[each].tolist() for each in columns_of(name)[:2]] for name in done.fields}
        with self.staged(done.section).open("rb") as file:
            for row, position in enumerate(columns["position"].tolist()):
                fields = {}
                for name, (offsets, lengths) in places.items():
                    if offsets[row] != NOWHERE:
                        file.seek(offsets[row])
                        fields[name] = file.read(lengths[row])
                yield position, fields

    def abort(self) -> None:
        """Close the open shard. Finished shards stay for a later `resume`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @abstractmethod
    def encode(self, key: str, fields: Mapping[str, bytes], info: ImageInfo) -> EncodedRecord:
        """The bytes of a record, a function of the arguments only."""

    def closing(self, size: int) -> bytes:  # noqa: ARG002
        """The closing bytes of a shard whose records have `size` bytes."""
        return b""

    @abstractmethod
    def _name(self, split: str, number: int, total: int) -> str:
        """The final name of shard `number` of `total` of a split."""

    def _begin(self, section: Section) -> None:
        self._remove(section)
        self.size = self._begun = 0
        self._fd = os.open(self.staged(section), _FLAGS, 0o666)

    def _append(self, key: str, fields: Mapping[str, bytes], info: ImageInfo) -> Mapping[str, int]:
        encoded = self.encode(key, fields, info)
        write(self._fd, encoded.pieces)
        offsets = {name: self.size + offset for name, offset in encoded.offsets.items()}
        self.size += encoded.length
        if self.size - self._begun >= _WRITEBACK and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, self._begun, self.size - self._begun, os.POSIX_FADV_DONTNEED)
            self._begun = self.size
        return offsets

    def _end(self, section: Section) -> tuple[int, dict[str, object]]:
        path, is_empty = self.staged(section), not len(self._rows)
        if not is_empty:
            closing = self.closing(self.size)
            write(self._fd, [closing])
            self.size += len(closing)
            os.fsync(self._fd)
        changed = os.fstat(self._fd).st_mtime_ns
        self.abort()
        if is_empty:  # every image failed or was left out
            path.unlink()
        return self.size, {"changed": changed}

    def _named(self, done: Sequence[Finished]) -> list[tuple[Finished, str]]:
        """Sections with records, and the final names of their shards."""
        counted = [each for each in done if each.count or self.is_stored]
        names = self.names([each.section.split for each in counted])
        return [(each, name) for each, name in zip(counted, names, strict=True) if each.count]

    def _is_valid(self, section: Section, members: Mapping[str, Any]) -> bool:
        if self.is_stored or not members["count"]:
            return True
        status = os.stat(self.staged(section), follow_symlinks=False)
        return (status.st_size, status.st_mtime_ns) == (members["size"], members["changed"])

    def _remove(self, section: Section) -> None:
        super()._remove(section)
        self.staged(section).unlink(missing_ok=True)

    def _finish(self, done: Sequence[Finished]) -> Manifest:
        shards = tuple(Shard(name, each.count, each.size) for each, name in self._named(done))
        with (self.folder / (self.name + INDEX_SUFFIX)).open("wb") as file:

            def write_at(offset: int, data: memoryview) -> None:
                file.seek(offset)
                file.write(data)

            manifest = self._indexed(self._manifest(done, shards), (each.columns() for each in done), write_at)
            file.truncate(Layout(manifest.count, manifest.fields).size)  # which pads it
            file.flush()
            os.fsync(file.fileno())
        with owned.writing(self.folder / (self.name + MANIFEST_SUFFIX)) as out:
            out.write(manifest.to_json())
        return manifest


def write(fd: int, pieces: Sequence[bytes]) -> None:
    """Write all pieces at the file's own position."""
    for first in range(0, len(pieces), _PIECES):
        part = pieces[first : first + _PIECES]
        done = os.writev(fd, part)
        if done < sum(map(len, part)):  # after a signal, or on a nearly full disk
            rest = memoryview(b"".join(part))[done:]
            while rest:
                rest = rest[os.write(fd, rest) :]
