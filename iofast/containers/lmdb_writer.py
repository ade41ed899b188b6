"""The LMDB container's Writer: a section is a transaction (docs/format.md 4.4).

LMDB chooses the places of values; they are read back from the file's B-tree when all records are committed. Then the
index is stored under reserved keys, in blocks, and the manifest last.
"""

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import lmdb
import numpy as np

from iofast.containers.columns import NOWHERE, Arrays
from iofast.containers.file_bytes import FileBytes
from iofast.containers.index import BLOCK, Layout, blocks_of
from iofast.containers.lmdb_pages import Tree, read_meta
from iofast.containers.manifest import Description, Manifest, Shard
from iofast.containers.shard_writer import ShardWriter
from iofast.containers.writer import Finished, Section, Writer
from iofast.errors import ContainerError, TargetError
from iofast.record import KEY_WIDTH, ImageInfo, format_key

RESERVED = b"__iofast__."  # prefix of keys that are not of records
MANIFEST_KEY = RESERVED + b"manifest"
_ROOM = 16 << 20  # bytes
MAP_STEP = 1 << 36  # bytes: far more than a section has, so the map never fills up within one


def index_key(block: int) -> bytes:
    """The reserved key of a block of the index."""
    return b"__iofast__.index.%08d" % block


def find_block(tree: Tree, where: str, block: int) -> int:
    """Where a block of the index begins in the file. Raises `ContainerError`."""
    place = tree.find(index_key(block))
    if place is None:
        raise ContainerError(f"{where}: block {block} of the index is missing")
    return place[0]


class LmdbWriter(Writer):
    """Write one LMDB file `name` into `folder`. Memory: the records of one section, which LMDB keeps until its commit.

    Each commit is synced, so the file is whole after a power failure, too.
    """

    def __init__(
        self, folder: str | os.PathLike[str], name: str, description: Description, key_width: int = KEY_WIDTH
    ) -> None:
        super().__init__(folder, name, description, key_width)
        self.path = self.folder / name
        self._environment: lmdb.Environment | None = None
        self._transaction: lmdb.Transaction | None = None

    def resume(self, sections: Iterable[Section]) -> list[Section]:
        """See `Writer.resume`. The rows of a section are stored before its transaction: the file decides."""
        sections, last, found = list(sections), self._last_position(), -1
        with self._errors():
            for section in sections:
                own = self._find(section)
                end = int(own.columns()["position"][-1]) if own is not None and own.count else found
                if own is None or end > last:
                    break
                self.finished[section.number], found = own, end
            if found != last:  # no file of ours, or not what these rows describe
                self.abort()
                self.finished.clear()
                self.path.unlink(missing_ok=True)
            left = [section for section in sections if section.number not in self.finished]
            for section in left:
                self._remove(section)
        return left

    def adopt(self, parts: ShardWriter) -> None:
        """Append the records of all sections that `parts` finished in the same folder, unless they are there already.

        Their rows stay those of the sections.
        """
        self.finished = parts.finished
        with self._errors():
            if (last := self._last_position()) < -1:
                self.abort()
                self.path.unlink(missing_ok=True)
            for _, done in sorted(parts.finished.items()):
                if done.count and int(done.columns()["position"][-1]) > last:
                    self._begin(done.section)
                    for position, fields in parts.records(done):
                        self._append(format_key(position, self.key_width), fields, ImageInfo())
                    self._commit(done.section)

    def abort(self) -> None:
        """Close everything. Committed sections stay for a later `resume`."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _begin(self, section: Section) -> None:  # noqa: ARG002
        environment = self._open()
        used = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if used > environment.info()["map_size"] - MAP_STEP // 2:
            environment.set_mapsize((used // MAP_STEP + 2) * MAP_STEP)
        self._transaction = environment.begin(write=True)

    def _append(self, key: str, fields: Mapping[str, bytes], info: ImageInfo) -> Mapping[str, int]:  # noqa: ARG002
        for name in sorted(fields):
            self._put(f"{key}.{name}".encode(), fields[name])
        return {}

    def _commit(self, section: Section) -> None:  # noqa: ARG002
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            transaction.commit()

    def _finish(self, done: Sequence[Finished]) -> Manifest:
        """Store zeros of the right sizes, read the places of all values from the tree, and write over the zeros.

        Storing index and manifest moves small values of the last records, so their places are only known then.
        """
        manifest = self._manifest(done, (Shard("", sum(each.count for each in done), 0),))
        page = self._open().stat()["psize"]
        for number, size in enumerate(blocks_of(Layout(manifest.count, manifest.fields).size)):
            with self._open().begin(write=True) as transaction:
                self._put(index_key(number), bytes(max(size, page)), transaction)  # so that it begins at a page
        with self._open().begin(write=True) as transaction:
            manifest = replace(manifest, transaction=transaction.id())
            self._put(MANIFEST_KEY, bytes(len(manifest.to_json())), transaction)
        self.abort()
        file = FileBytes(os.fspath(self.path))
        tree = Tree(file, read_meta(file, self.name), self.name)
        find = functools.cache(partial(find_block, tree, self.name))
        with self.path.open("r+b") as out:

            def write_at(offset: int, data: memoryview) -> None:
                while data:
                    room = BLOCK - offset % BLOCK
                    out.seek(find(offset // BLOCK) + offset % BLOCK)
                    out.write(data[:room])
                    data, offset = data[room:], offset + room

            manifest = self._indexed(manifest, self._placed(done, tree.walk()), write_at)
            out.flush()
            os.fsync(out.fileno())  # the index is durable before the manifest makes it valid
            place = tree.find(MANIFEST_KEY)
            assert place is not None  # committed above
            out.seek(place[0])
            out.write(manifest.to_json())
            out.flush()
            os.fsync(out.fileno())
        shard = Shard("", manifest.count, self.path.stat().st_size)
        return replace(manifest, shards=(shard,))  # as readers see it

    def _placed(self, done: Sequence[Finished], entries: Iterator[tuple[bytes, int, int]]) -> Iterator[Arrays]:
        """The columns of the sections, with the offsets of their payloads: the next of `entries`."""
        for each in done:
            columns = dict(each.columns())
            offsets = {name: columns[f"{name}.offset"].copy() for name in each.fields}
            there = {name: (own != np.uint64(NOWHERE)).tolist() for name, own in offsets.items()}
            lengths = {name: columns[f"{name}.length"].tolist() for name in each.fields}
            for row, position in enumerate(columns["position"].tolist()):
                key = format_key(position, self.key_width)
                for name in each.fields:
                    if there[name][row]:
                        found, offset, size = next(entries, (b"", 0, 0))
                        if (found, size) != (f"{key}.{name}".encode(), lengths[name][row]):
                            words = f"{key}.{name} of {lengths[name][row]} bytes, found {found!r:.80} of {size}"
                            raise ContainerError(f"{self.path}: expected {words}")
                        offsets[name][row] = offset
            yield columns | {f"{name}.offset": own for name, own in offsets.items()}

    def _put(self, key: bytes, value: bytes, transaction: lmdb.Transaction | None = None) -> None:
        transaction = transaction or self._transaction
        if transaction is None:
            raise ContainerError(f"{self.name}: no section was begun")
        if not transaction.put(key, value, append=True):
            raise ContainerError(f"LMDB refused to append {key!r}: it does not sort behind the keys before it")

    def _last_position(self) -> int:
        """The position of the last record in the file, -1 without one; -2 without a file of ours that can be read.

        What a run that was killed in `finish` stored behind the records is removed.
        """
        if not self.path.is_file():  # LMDB would make it
            return -2
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
            return -2

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
