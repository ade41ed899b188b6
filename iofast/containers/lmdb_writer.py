"""The LMDB container's Writer: equal records give equal bytes (docs/format.md 4.4 is the recipe).

LMDB chooses the places of values, and only the finished file shows them. So index and manifest are first stored as
zeros of their exact sizes; then the tree is read back and both are written over the zeros.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace

import lmdb
import numpy as np

from iofast.containers import entries
from iofast.containers.base import Description, Located, Reader, Seen, Writer
from iofast.containers.entries import RecordEntry, in_columns
from iofast.containers.file_bytes import FileBytes
from iofast.containers.index import Outlines, Stamp, encode_rows
from iofast.containers.lmdb_pages import OVERFLOW_SHARE, Tree, read_meta
from iofast.containers.manifest import Manifest, Shard
from iofast.containers.register import Register
from iofast.containers.writeback import Writeback
from iofast.errors import ContainerError, TargetError
from iofast.record import KEY_WIDTH, ImageInfo, format_key

RESERVED = b"__iofast__."  # prefix of keys that are not of records
MANIFEST_KEY = RESERVED + b"manifest"
TRANSACTION_BYTES = 16 << 20  # dirty pages, which LMDB keeps in memory until the commit
MAP_STEP = 64 << 20
MAP_SLACK = 4 << 20

_UNKNOWN_SIZE = (1 << 63) - 1  # the file's size while the manifest's place is reserved: no number is longer
_COPIED, _COPIED_BYTES = 1024, 16 << 20  # records, and bytes of their payloads, that are copied together


def index_key(chunk: int) -> bytes:
    """The reserved key of an index chunk."""
    return b"__iofast__.index.%08d" % chunk


class LmdbWriter(Writer):
    """Writes one LMDB file at `path`, which must not exist.

    Memory: one transaction (16 MiB, or one larger record). Raises `ContainerError` for an invalid record, `TargetError`
    if the disk is full or the file cannot be written; after a `TargetError` call only `abort`.
    """

    def __init__(self, path: str | os.PathLike[str], *, key_width: int = KEY_WIDTH) -> None:
        self.path = os.fspath(path)
        self._map_size = MAP_STEP
        self._register = Register(key_width)
        self._outlines = Outlines()
        self._cost = 0
        self._transaction: lmdb.Transaction | None = None
        self._environment: lmdb.Environment | None = None
        self._fd = -1  # a second descriptor of the file, for `Writeback`
        try:
            with self._errors():
                self._fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
                self._writeback = Writeback(self._fd)
                self._environment = self._open_environment()
                self._rows = tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(self.path)))  # noqa: SIM115
        except TargetError:
            self._close_environment(sync=False)
            raise
        self._page_size: int = self._environment.stat()["psize"]

    @property
    def files(self) -> dict[str, str]:
        """The one file; see `Writer.files`."""
        name = os.path.basename(self.path)
        return {name: name}

    def join(self, part: Reader, seen: Seen | None = None) -> None:
        """Copy the records of `part`, payloads checked, some megabytes at a time; see `Writer.join`."""
        for split, start, stop in part.manifest.ranges():
            for first in range(start, stop, _COPIED):
                indices = np.arange(first, min(first + _COPIED, stop), dtype=np.int64)
                lengths = [part.places(indices, name).length for name in part.manifest.fields]
                columns = part.columns(indices)._replace(length=np.sum(lengths, axis=0, dtype=np.uint64))
                for low, high in columns.slices(_COPIED_BYTES, _COPIED):
                    self._copy(part, columns.rows(slice(low, high)), split)
                if seen is not None:
                    seen(part.positions(indices).tolist())

    def _copy(self, part: Reader, own: Located, split: str) -> None:
        infos = zip(*(c.tolist() for c in (own.label, own.width, own.height, own.orientation)), strict=True)
        records = zip(part.positions(own.indices).tolist(), part.all_values(own.indices), infos, strict=True)
        for position, fields, info in records:
            self.write(position, fields, ImageInfo(*info), split)

    def write(self, position: int, fields: Mapping[str, bytes], info: ImageInfo, split: str) -> None:
        """Append the record of `position`; see `Writer.write`."""
        self._require_open()
        with self._errors():
            entry = self._register.add(position, fields, info, split)
            self._rows.write(entries.encode(entry))
            self._outlines.add(entry)
            key = format_key(position, self._register.key_width)
            self._put([(f"{key}.{name}".encode(), fields[name]) for name in sorted(fields)])

    def finish(self, description: Description) -> Manifest:
        """Write index and manifest, make everything durable, close. `self.path` is a whole container after this."""
        self._require_open()
        draft = self._register.manifest(description, (Shard("", self._register.count, _UNKNOWN_SIZE),))
        length = len(draft.to_json())
        with self._errors():
            self._commit()
            self._reserve(length)
            self._close_environment(sync=True)
            size = self._fill(draft, length)
        self._rows.close()
        return replace(draft, shards=(Shard("", draft.count, size),))

    def abort(self) -> None:
        """Close everything. The file at `path` stays, but cannot be used."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        self._close_environment(sync=False)
        with contextlib.suppress(OSError):  # on a full disk it cannot be flushed, and need not be
            self._rows.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the system and of LMDB into `TargetError`."""
        try:
            yield
        except (OSError, lmdb.Error) as error:
            if isinstance(error, TargetError):
                raise
            number = error.errno if isinstance(error, OSError) else None
            reason = (os.strerror(number) if number else str(error)).lower()
            if number == errno.ENOSPC or isinstance(error, lmdb.DiskError) or self._disk_is_full(error):
                reason = "the disk is full"
            raise TargetError(f"{self.path} cannot be written: {reason}") from None

    def _disk_is_full(self, error: Exception) -> bool:
        """Whether the disk is full: LMDB reports a partial write as an input/output error."""
        if not isinstance(error, lmdb.Error) or "nput/output" not in str(error):
            return False
        disk = os.statvfs(os.path.dirname(os.path.abspath(self.path)))
        return disk.f_bavail * disk.f_frsize < TRANSACTION_BYTES

    def _open_environment(self) -> lmdb.Environment:
        path = os.fsencode(self.path)  # LMDB refuses text that is not UTF-8
        return lmdb.open(
            path, subdir=False, lock=False, sync=False, metasync=False, readahead=False, map_size=self._map_size
        )

    def _put(self, entries: list[tuple[bytes, bytes]]) -> None:
        """Store the entries of one record; the format defines where a transaction ends."""
        cost = sum(self._cost_of(len(key), len(value)) for key, value in entries)
        if self._cost and self._cost + cost > TRANSACTION_BYTES:
            self._commit()
        if self._transaction is None:
            self._transaction = self._begin(cost)
        self._cost += cost
        for key, value in entries:
            if not self._transaction.put(key, value, append=True):
                raise ContainerError(f"LMDB refused to append {key!r}: it does not sort behind the keys before it")

    def _cost_of(self, key: int, value: int) -> int:
        """Bytes that an entry takes in the file, from the lengths of its key and value."""
        if key + value + 8 <= self._page_size // 2 - 10:  # LMDB's own rule for what stays in a leaf page
            return key + value + 10
        return -(-(value + OVERFLOW_SHARE) // self._page_size) * self._page_size

    def _require_open(self) -> lmdb.Environment:
        if self._environment is None:
            raise ContainerError(f"{self.path}: the writer is closed")
        return self._environment

    def _used(self) -> int:
        """Bytes of the pages that LMDB has allocated."""
        pages: int = self._require_open().info()["last_pgno"] + 1
        return pages * self._page_size

    def _begin(self, cost: int) -> lmdb.Transaction:
        environment = self._require_open()
        wanted = self._used() + 3 * max(TRANSACTION_BYTES, cost) + MAP_SLACK
        size = -(-wanted // MAP_STEP) * MAP_STEP
        if size > self._map_size:
            environment.set_mapsize(size)
            self._map_size = size
        return environment.begin(write=True)

    def _commit(self) -> None:
        if self._transaction is not None:
            self._transaction.commit()
            self._transaction, self._cost = None, 0
            self._writeback.wrote(self._used())

    def _reserve(self, manifest_length: int) -> None:
        """Store zeros of the exact size under every reserved key, in transactions of their own."""
        for chunk, outline in enumerate(self._outlines.chunks):
            self._put([(index_key(chunk), bytes(outline.size(self._register.fields)))])
        self._put([(MANIFEST_KEY, bytes(manifest_length))])
        self._commit()

    def _close_environment(self, *, sync: bool) -> None:
        environment, self._environment = self._environment, None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if environment is None:
            return
        try:
            if sync:
                environment.sync(True)
        finally:
            environment.close()

    def _fill(self, draft: Manifest, manifest_length: int) -> int:
        """Write index and manifest over their zeros; returns the size of the file."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            data = FileBytes(self.path)
            meta = read_meta(data, self.path)
            tree = Tree(data, meta, self.path)
            size = max(meta.file_size, len(data))
            self._fill_index(fd, tree, draft)
            place = tree.find(MANIFEST_KEY)
            os.ftruncate(fd, size)
            os.fsync(fd)  # the index is durable before the manifest makes it valid
            text = replace(draft, shards=(Shard("", draft.count, size),)).to_json()
            _write_over(fd, text.ljust(manifest_length), place, manifest_length)
            os.fsync(fd)
        finally:
            os.close(fd)
        return size

    def _fill_index(self, fd: int, tree: Tree, draft: Manifest) -> None:
        self._rows.flush()
        places = tree.walk()  # in the order of the records
        placed = ((at, self._placed(entry, places)) for at, entry in entries.read(self._rows.fileno()))
        stamp = Stamp(tree.meta.txnid, tree.meta.last_page)
        for chunk, data in enumerate(encode_rows(in_columns(placed), draft.fields, stamp)):
            _write_over(fd, data, tree.find(index_key(chunk)), len(data))

    def _placed(self, entry: RecordEntry, places: Iterator[tuple[bytes, int, int]]) -> RecordEntry:
        """The entry with the offsets of its payloads: the next of `places`."""
        fields = []
        for name, length, crc, _ in entry.fields:
            key, offset, found = next(places, (b"", 0, 0))
            expected = b"%0*d.%s" % (self._register.key_width, entry.position, name.encode())
            if (key, found) != (expected, length):
                raise ContainerError(f"{self.path}: expected {expected!r} of {length} bytes, found {key!r} of {found}")
            fields.append((name, length, crc, offset))
        return RecordEntry(entry.position, entry.info, tuple(fields))


def _write_over(fd: int, data: bytes, place: tuple[int, int] | None, length: int) -> None:
    """Write `data` over the zeros that were reserved for it."""
    if place is None or place[1] != length or len(data) != length:
        raise ContainerError(f"expected {length} reserved bytes in the LMDB file, found {place}")
    offset, rest = place[0], memoryview(data)
    while rest:
        done = os.pwrite(fd, rest, offset)
        offset, rest = offset + done, rest[done:]
