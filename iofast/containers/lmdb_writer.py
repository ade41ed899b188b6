"""The LMDB container's Writer: a section is a transaction (docs/format.md 4.4).

LMDB chooses the places of values; they are read back from the file's B-tree when all records are committed. Then the
pieces of the index are stored under reserved keys, and the manifest last.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO

import lmdb
import numpy as np

from iofast.containers.columns import FACTS, columns_of, fields_in, places_in
from iofast.containers.columns_file import ALIGN, Arrays
from iofast.containers.file_bytes import FileBytes
from iofast.containers.lmdb_pages import Tree, read_meta
from iofast.containers.manifest import Description, Manifest, Shard
from iofast.containers.writer import INDEX_SUFFIX, Finished, IndexedWriter, Section
from iofast.errors import ContainerError, TargetError
from iofast.record import KEY_WIDTH, ImageInfo, format_key

RESERVED = b"__iofast__."  # prefix of keys that are not of records
MANIFEST_KEY = RESERVED + b"manifest"
_ROOM = 16 << 20  # bytes
MAP_STEP = 1 << 36  # bytes: far more than a section has, so the map never fills up within one


def index_key(piece: int) -> bytes:
    """The reserved key of a piece of the index."""
    return b"__iofast__.index.%08d" % piece


class LmdbWriter(IndexedWriter):
    """Write one LMDB file `name` into `folder`. Memory: the records of one section, which LMDB keeps until its commit.

    Each commit is synced, so the file is whole after a power failure, too.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str, key_width: int = KEY_WIDTH) -> None:
        super().__init__(folder, name, key_width)
        self.path = self.folder / name
        self._environment: lmdb.Environment | None = None
        self._transaction: lmdb.Transaction | None = None
        self._size = 0  # bytes of payloads in the transaction

    @property
    def files(self) -> dict[str, str]:
        """The one file; see `Writer.files`."""
        return {self.name: self.name}

    def resume(self, sections: Iterable[Section]) -> list[Section]:
        """See `Writer.resume`. The rows of a section are stored before its transaction: the file decides."""
        sections = list(sections)
        last, left = self._last_position(), list[Section]()
        if last is None:
            self.path.unlink(missing_ok=True)
        found = -1
        with self._errors():
            for number, section in enumerate(sections):
                own = None if last is None or left else self._find(section)
                end = int(own.columns()["position"][-1]) if own is not None and own.count else found
                if own is None or last is None or end > last:
                    left = sections[number:]
                    break
                self.finished[section.number], found = own, end
            if last is not None and found != last:  # not what these rows describe
                self.finished.clear()
                self.path.unlink()
                left = sections
            for section in left:
                self._remove(section)
        return left

    def records(self, done: Finished) -> Iterator[tuple[int, dict[str, bytes], ImageInfo, dict[str, int]]]:
        """The records of a finished section: position, fields, facts, checksums."""
        columns = done.columns()
        facts = zip(*(columns[name].tolist() for name in FACTS), strict=True)
        sums = {name: places_in(columns, name).crc.tolist() for name in fields_in(columns)}
        with self._open().begin(buffers=True) as transaction, transaction.cursor() as cursor:
            for row, (position, *info) in enumerate(facts):
                prefix, fields = f"{format_key(position, self.key_width)}.".encode(), dict[str, bytes]()
                found = cursor.set_range(prefix)
                while found and bytes(cursor.key()).startswith(prefix):
                    fields[bytes(cursor.key())[len(prefix) :].decode()] = bytes(cursor.value())
                    found = cursor.next()
                yield position, fields, ImageInfo(*info), {name: sums[name][row] for name in fields}

    def size_with(self, position: int, fields: Mapping[str, bytes], info: ImageInfo) -> int:  # noqa: ARG002
        """See `Writer.size_with`."""
        return self._size + sum(map(len, fields.values()))

    def abort(self) -> None:
        """Close everything. Committed sections stay for a later `resume`."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _begin(self, section: Section) -> None:
        self._rows_file(section).unlink(missing_ok=True)
        environment = self._open()
        used = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if used > environment.info()["map_size"] - MAP_STEP // 2:
            environment.set_mapsize((used // MAP_STEP + 2) * MAP_STEP)
        self._transaction, self._size = environment.begin(write=True), 0

    def _append(self, key: str, fields: Mapping[str, bytes], info: ImageInfo) -> Mapping[str, int]:  # noqa: ARG002
        for name in sorted(fields):
            self._put(f"{key}.{name}".encode(), fields[name])
            self._size += len(fields[name])
        return {}

    def _end(self, section: Section) -> tuple[int, dict[str, object]]:  # noqa: ARG002
        return 0, {}

    def _commit(self, section: Section) -> None:  # noqa: ARG002
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            transaction.commit()

    def _remove(self, section: Section) -> None:
        self._rows_file(section).unlink(missing_ok=True)

    def _finish(self, done: Sequence[Finished], description: Description) -> Manifest:
        """Store zeros of the right sizes, read the places of all values from the tree, and write over the zeros.

        Storing index and manifest moves small values of the last records, so their places are only known then.
        """
        shards = (Shard("", sum(each.count for each in done), 0),)
        sizes = self._described(done, description, shards, (each.columns() for each in done))
        page = self._open().stat()["psize"]
        for piece, (size, _) in enumerate(sizes.index):
            with self._open().begin(write=True) as transaction:
                # a value of a page or more begins at a page, so its columns are aligned
                self._put(index_key(piece), bytes(max(size, page)), transaction)
        with self._open().begin(write=True) as transaction:
            number = transaction.id()
            self._put(MANIFEST_KEY, bytes(len(replace(sizes, transaction=number).to_json())), transaction)
        self.abort()
        file = FileBytes(os.fspath(self.path))
        tree = Tree(file, read_meta(file, self.name), self.name)
        manifest = self._described(done, description, shards, self._placed(done, tree.walk()))
        manifest = replace(manifest, transaction=number)
        draft = self.folder / (self.name + INDEX_SUFFIX)
        with self.path.open("r+b") as out, draft.open("rb") as index:
            for piece, (size, _) in enumerate(manifest.index):
                index.seek(-index.tell() % ALIGN, os.SEEK_CUR)
                _write_over(out, tree.find(index_key(piece)), index.read(size))
            os.fsync(out.fileno())  # the index is durable before the manifest makes it valid
            _write_over(out, tree.find(MANIFEST_KEY), manifest.to_json())
            os.fsync(out.fileno())
        draft.unlink()
        return replace(manifest, shards=(replace(shards[0], size=self.path.stat().st_size),))  # as readers see it

    def _placed(self, done: Sequence[Finished], entries: Iterator[tuple[bytes, int, int]]) -> Iterator[Arrays]:
        """The columns of the sections, with the offsets of their payloads: the next of `entries`."""
        for each in done:
            columns = dict(each.columns())
            names = fields_in(columns)
            places = [places_in(columns, name) for name in names]
            there = np.stack([own.there for own in places], 1) if names else np.zeros((each.count, 0), np.bool_)
            keys = [format_key(position, self.key_width) for position in columns["position"].tolist()]
            rows, fields = (column.tolist() for column in np.nonzero(there))
            found = list(itertools.islice(entries, len(rows)))
            lengths = np.zeros(there.shape, np.uint64)
            lengths[there] = [length for _, _, length in found] + [0] * (len(rows) - len(found))
            expected = [f"{keys[row]}.{names[field]}".encode() for row, field in zip(rows, fields, strict=True)]
            for number, name in enumerate(names):
                if (lengths[:, number] != places[number].length).any():
                    raise ContainerError(f"{self.path}: the lengths of {name} are not those that were written")
            if [key for key, _, _ in found] != expected:
                raise ContainerError(f"{self.path}: the keys from {keys[0]} on are not those that were written")
            offsets = np.full(there.shape, np.iinfo(np.uint64).max, np.uint64)
            offsets[there] = [offset for _, offset, _ in found]
            for number, name in enumerate(names):
                columns[columns_of(name)[0]] = offsets[:, number]
            yield columns

    def _put(self, key: bytes, value: bytes, transaction: lmdb.Transaction | None = None) -> None:
        transaction = transaction or self._transaction
        if transaction is None:
            raise ContainerError(f"{self.name}: no section was begun")
        if not transaction.put(key, value, append=True):
            raise ContainerError(f"LMDB refused to append {key!r}: it does not sort behind the keys before it")

    def _last_position(self) -> int | None:
        """The position of the last record in the file; None without a file of ours that can be read.

        What a run that was killed in `finish` stored behind the records is removed.
        """
        if not self.path.is_file():  # LMDB would make it
            return None
        try:
            environment = self._open()
            with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                while cursor.last() and cursor.key().startswith(RESERVED):
                    cursor.delete()
                if not cursor.last():
                    return -1
                key, _, _ = cursor.key().partition(b".")
                return int(key)
        except (lmdb.Error, OSError, ValueError, TargetError):
            self.abort()
            return None

    def _open(self) -> lmdb.Environment:
        if self._environment is None:
            # made here, because LMDB would give it another mode
            os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666))
            path = os.fsencode(self.path)  # LMDB refuses text that is not UTF-8
            self._environment = lmdb.open(path, subdir=False, lock=False, readahead=False, map_size=MAP_STEP)
        return self._environment

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the system and of LMDB into `TargetError`."""
        try:
            with super()._errors():
                yield
        except lmdb.Error as error:
            full = isinstance(error, lmdb.DiskError) or self._disk_is_full(error)
            reason = "the disk is full" if full else str(error).lower()
            raise TargetError(f"{self.path} cannot be written: {reason}") from None

    def _disk_is_full(self, error: Exception) -> bool:
        """Whether the disk is full: LMDB reports a partial write as an input/output error."""
        if "nput/output" not in str(error):
            return False
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize < _ROOM


def _write_over(file: BinaryIO, place: tuple[int, int] | None, data: bytes) -> None:
    """Write `data` over the zeros that were reserved for it."""
    if place is None or place[1] < len(data):
        raise ContainerError(f"expected {len(data)} reserved bytes in the LMDB file, found {place}")
    file.seek(place[0])
    file.write(data)
    file.flush()
