"""The LMDB container's Reader (docs/format.md section 4); its Writer is in `lmdb_writer`.

The index knows where in the file every payload lies, so a batch is found without LMDB and read with `pread`. liblmdb is
not used for reading at all: it refuses a second environment on one file in a process, must not be carried over a fork,
and trusts every page of a file that may come from anyone. A file that was compacted or written to since (its stamp
differs) is looked up key by key in its B-tree.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Entry, Failures, Located, Reader
from iofast.containers.file_bytes import FileBytes
from iofast.containers.index import ABSENT, IndexView, Rows, Stamp
from iofast.containers.lmdb_pages import META_END, Tree, read_meta, read_metas
from iofast.containers.lmdb_writer import MANIFEST_KEY, RESERVED, LmdbWriter, index_key
from iofast.containers.located_rows import columns, field_numbers, misplaced
from iofast.containers.manifest import Manifest
from iofast.containers.values import read_values, read_view
from iofast.errors import ContainerError, UnfinishedError
from iofast.kernel import Payloads
from iofast.record import Record, format_key

__all__ = ["LmdbReader", "LmdbWriter", "is_own"]


def is_own(path: str | os.PathLike[str]) -> bool:
    """Whether iofast wrote, or was writing, this LMDB file; what is neither has no reserved key in it.

    The older meta page counts too: its number may be damaged so that it seems to be the newer one, and the tree as it
    was before the index was written is without a checksum. Raises `ContainerError` where the file is no LMDB's.
    """
    where = os.fspath(path)
    data = FileBytes(where)
    newest, older = read_metas(data, where)
    if newest.flags or os.path.abspath(where).rpartition("/")[0].endswith(".partial"):
        return not newest.flags
    if _has_reserved(Tree(data, newest, where)):
        return True
    with contextlib.suppress(ContainerError):  # its pages may have been used again
        return _has_reserved(Tree(data, older, where))
    return False


def _has_reserved(tree: Tree) -> bool:
    return tree.find(MANIFEST_KEY) is not None or tree.find(index_key(0)) is not None


class LmdbReader(Reader):
    """Random access to the records of an LMDB file that iofast wrote.

    Opening costs the same for any number of records. Raises `FileNotFoundError`, `UnfinishedError` where the file has
    no manifest (another program's, or never finished), `ContainerError` where its bytes contradict docs/format.md.
    """

    container = "lmdb"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._opened: _OpenedFile | None = _OpenedFile(self.path)
        self.manifest = self._opened.manifest

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "manifest": self.manifest}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _opened=None)

    @property
    def moved(self) -> bool:
        """See `Reader.moved`; as the last `locate` found it."""
        return self._opened is not None and self._opened.moved

    def locate(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """Where the payloads lie; see `Reader.locate`. A record without the field has `file` 0xFFFFFFFF and length 0.

        256 random records of 1.28 million take about 0.2 ms.
        """
        opened = self._open()
        indices = np.ascontiguousarray(indices, np.int64).reshape(-1)
        rows = opened.index.rows(indices)
        number = field_numbers(self.manifest.fields, field, rows, self.path)
        located = columns(indices, self.manifest.fields, rows, number)
        if opened.moved:
            _look_up(opened.tree, self._keys(rows, number), located.offset, located.length)
        opened.check_places(located)
        return located

    @contextlib.contextmanager
    def payloads(self, located: Located, start: int, stop: int) -> Iterator[Payloads]:
        """The open file and the places in it; see `Reader.payloads`. The file stays open until the block ends.

        Whether somebody wrote to it was looked at by `locate`: a look is three system calls that let go of the GIL, and
        with one for each slice of a batch a loader that has nothing to decode was an eighth slower.
        """
        opened = self._opened or self._open()  # held by this frame, so `close` in another thread cannot pull it away
        rows = slice(start, stop)
        offsets, lengths = located.offset[rows], located.length[rows]
        yield located.payloads(rows, np.full(len(offsets), opened.data.fd, np.int32), offsets, lengths)

    def view(self, index: int, field: str | None = None) -> memoryview:
        """The payload, by `pread`, its CRC32C checked; see `Reader.view`."""

        def read(_: int, start: int, length: int) -> bytes:
            return self._open().data[start : start + length]

        return read_view(self, index, field, read)

    def values(
        self,
        indices: NDArray[np.int64],
        field: str | None = None,
        *,
        check: bool = True,
        failed: Failures | None = None,
    ) -> list[bytes | None]:
        """Payloads of one field, by `pread`; see `Reader.values`."""
        return read_values(self, self.locate(indices, field), field, check, failed)

    def record(self, index: int) -> Record:
        """One record whole, every payload checked."""
        row = self._open().index.rows(np.array([index], np.int64))[0]
        there = (row["place"]["file"] != ABSENT).tolist()
        names = [name for name, own in zip(self.manifest.fields, there, strict=True) if own]
        key = format_key(int(row["position"]), self.manifest.key_width)
        return Record(key, {name: bytes(self.view(index, name)) for name in names})

    def name(self, index: int) -> str:
        """`out.lmdb: 00000042`."""
        row = self._open().index.rows(np.array([index], np.int64))[0]
        return f"{self.path}: {int(row['position']):0{self.manifest.key_width}d}"

    def walk(self, shard: int) -> Iterator[Entry]:  # noqa: ARG002 - there is one file
        """The entries of the B-tree but iofast's own; see `Reader.walk`."""
        for key, offset, length in self._open().tree.walk():
            if not key.startswith(RESERVED):
                yield Entry(key.decode("ascii", "backslashreplace"), offset, length)

    def close(self) -> None:
        """Let go of the file; it is closed when the last `payloads` block has ended."""
        self._opened = None

    def _open(self) -> _OpenedFile:
        opened = self._opened
        if opened is None or opened.is_stale():
            opened = _OpenedFile(self.path)
            if opened.manifest.fingerprint != self.manifest.fingerprint:
                raise ContainerError(f"{self.path} was replaced by another dataset since it was opened")
            self._opened = opened
        return opened

    def _keys(self, rows: Rows, number: NDArray[np.intp]) -> list[bytes | None]:
        """The LMDB key of each row's payload, None where it has none."""
        fields, width = self.manifest.fields, self.manifest.key_width
        there = rows["place"][np.arange(len(rows)), number]["file"] != ABSENT
        asked = zip(rows["position"].tolist(), number.tolist(), there.tolist(), strict=True)
        return [f"{position:0{width}d}.{fields[own]}".encode() if ok else None for position, own, ok in asked]


class _OpenedFile:
    """One opening of the file: its bytes and what its pages say. Immutable, so threads and forks may share it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.data = FileBytes(path)
        meta = read_meta(self.data, path)
        self._read_metas = self._metas(meta.page_size)
        while (again := read_meta(self.data, path)) != meta:  # somebody writes: the bytes must be those that were read
            meta, self._read_metas = again, self._metas(again.page_size)
        self.tree = Tree(self.data, meta, path)
        self.manifest = self._read_manifest()
        find = partial(_find_chunk, self.tree, path)  # not a method: a cycle would keep the file open until collected
        self.index = IndexView(self.data, self.manifest, find, path)
        meta = self.tree.meta
        stamp = self.index.stamp() if self.manifest.count else Stamp(meta.txnid, meta.last_page)
        self.moved = stamp != (meta.txnid, meta.last_page)
        if not self.moved and meta.file_size > len(self.data):
            raise ContainerError(f"{path} is truncated: {len(self.data)} bytes, expected {meta.file_size}")

    def is_stale(self) -> bool:
        """Whether somebody wrote to the file since. Raises `ContainerError` where it was cut off."""
        self.data.check_size()
        # as bytes: loaders ask often, and to understand the pages takes four times as long
        if self._metas(self.tree.meta.page_size) == self._read_metas:
            return False
        return read_meta(self.data, self.path).txnid != self.tree.meta.txnid

    def _metas(self, second: int) -> tuple[bytes, bytes]:
        """The two meta pages, at offsets 0 and `second`, as they are now."""
        return self.data[:META_END], self.data[second : second + META_END]

    def check_places(self, located: Located) -> None:
        """Refuse places outside the file."""
        if (found := misplaced(located, np.array([len(self.data)], np.uint64))) is not None:
            position, place = found
            raise ContainerError(
                f"{self.path}: the index puts a payload of position {position} outside the file: {place}"
            )

    def _read_manifest(self) -> Manifest:
        place = self.tree.find(MANIFEST_KEY) if self.tree.meta.flags == 0 else None
        if place is None:
            raise UnfinishedError(f"{self.path} has no iofast manifest: made by another program, or never finished")
        text = self.data[place[0] : place[0] + place[1]]
        if not text.strip(b"\0"):
            raise UnfinishedError(f"{self.path} was never finished: its manifest is still empty")
        return Manifest.from_json(text, self.path)


def _find_chunk(tree: Tree, path: str, chunk: int) -> tuple[int, int]:
    place = tree.find(index_key(chunk))
    if place is None:
        raise ContainerError(f"{path}: index chunk {chunk} is missing")
    return place


def _look_up(tree: Tree, keys: list[bytes | None], offset: NDArray[np.uint64], length: NDArray[np.uint64]) -> None:
    """Set offsets and lengths as the tree has them now. A payload that is gone or changed will fail its checksum."""
    for i, key in enumerate(keys):
        if key is not None:
            offset[i], length[i] = tree.find(key) or (0, 0)
