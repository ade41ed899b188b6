"""The LMDB container's Reader (docs/format.md section 4); its Writer is in `lmdb_writer`.

The index has the place of every payload in the file, so a batch is located without LMDB and read with `pread`. liblmdb
is not used for reading: it refuses a second environment on one file in a process, does not survive a fork, and trusts
every page of a file. Payloads of a file that was compacted or written to (its last transaction is another) are looked
up by key in its B-tree.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from iofast.containers.any_bytes import open_bytes
from iofast.containers.columns import ABSENT
from iofast.containers.file_bytes import FileBytes, retried
from iofast.containers.index import IndexView
from iofast.containers.indexed_reader import IndexedReader, Opening
from iofast.containers.lmdb_pages import Tree, read_meta, read_metas
from iofast.containers.lmdb_writer import MANIFEST_KEY, RESERVED, LmdbWriter, find_block, index_key
from iofast.containers.located import Located, steps
from iofast.containers.manifest import Manifest, Shard
from iofast.containers.open_files import OpenFiles
from iofast.errors import ContainerError, UnfinishedError
from iofast.remote.urls import absolute

__all__ = ["LmdbReader", "LmdbWriter", "is_own"]


def is_own(path: str | os.PathLike[str]) -> bool:
    """Whether iofast wrote, or was writing, this LMDB file: only then it has a reserved key.

    The older meta page counts too. Damage to its number can make it look newer, and its tree, from before the index was
    written, has no checksums. Raises `ContainerError` if the file is not an LMDB data file.
    """
    where = os.fspath(path)
    data = open_bytes(where)
    found = retried(data, lambda: _is_own(data, where))
    return found or (data.fetch_again() and _is_own(data, where))  # without the key, its page may be damaged


def _is_own(data: FileBytes, where: str) -> bool:
    newest, older = read_metas(data, where)
    if newest.flags or absolute(where).rpartition("/")[0].endswith(".partial"):
        return not newest.flags
    if _has_reserved(Tree(data, newest, where)):
        return True
    with contextlib.suppress(ContainerError):  # its pages may have been reused
        return _has_reserved(Tree(data, older, where))
    return False


def _has_reserved(tree: Tree) -> bool:
    return tree.find(MANIFEST_KEY) is not None or tree.find(index_key(0)) is not None


class LmdbReader(IndexedReader["_OpenedFile"]):
    """Random access to the records of an LMDB file that iofast wrote.

    Opening costs the same for any number of records. Raises `FileNotFoundError`, `UnfinishedError` where the file has
    no manifest (another program's, or never finished), `ContainerError` where its bytes contradict docs/format.md.
    """

    container = "lmdb"

    @property
    def index_is_stale(self) -> bool:
        """See `Reader.index_is_stale`; as the last `locate` found it."""
        return self._opened is not None and self._opened.index_is_stale

    def differences(self, shard: int) -> Iterator[tuple[int | None, str]]:  # noqa: ARG002 - there is one file
        """Walk through the B-tree beside the index; see `IndexedReader.differences`."""
        entries = (each for each in self._open().tree.walk() if not each[0].startswith(RESERVED))
        found = next(entries, None)
        for index, key, *place in self._entries():
            while found is not None and found[0] < key:
                yield None, f"{_words(*found)} is not in the index"
                found = next(entries, None)
            if found is None or found[0] > key:
                yield index, f"{_words(key, *place)} is in the index, but not in the tree"
                continue
            if found[1:] != tuple(place):
                yield index, f"{_words(*found)} is in the tree, but {_words(key, *place)} in the index"
            found = next(entries, None)
        while found is not None:
            yield None, f"{_words(*found)} is not in the index"
            found = next(entries, None)

    def _entries(self) -> Iterator[tuple[int, bytes, int, int]]:
        """What the index says of the tree: the dense index of a record, a key, offset and length of its value."""
        for indices in steps(0, len(self)):
            places = [(name, self.places(indices, name)) for name in self.manifest.fields]
            columns = [(name, own.file.tolist(), own.offset.tolist(), own.length.tolist()) for name, own in places]
            for row, (index, key) in enumerate(zip(indices.tolist(), self.keys(places[0][1]), strict=True)):
                for name, file, offset, length in columns:
                    if file[row] != ABSENT:
                        yield index, f"{key}.{name}".encode(), offset[row], length[row]

    def _open_files(self) -> _OpenedFile:
        return _OpenedFile(self.path)

    def _relocate(self, opened: _OpenedFile, located: Located, fields: Sequence[str], number: NDArray[np.intp]) -> None:
        """Look up every payload in a tree that was written to. One that is gone or changed fails its checksum."""
        if not opened.index_is_stale:
            return
        keys = self.keys(located)
        for row in np.flatnonzero(located.file != ABSENT).tolist():
            key = f"{keys[row]}.{fields[number[row]]}".encode()
            located.offset[row], located.length[row] = opened.tree.find(key) or (0, 0)


def _words(key: bytes, offset: int, length: int) -> str:
    return f"{key!r:.80} at offset {offset} with {length} bytes"


class _OneFile(OpenFiles):
    """The file of an opening, which stays open: a file of this name may be another one later."""

    def __init__(self, data: FileBytes) -> None:
        super().__init__([data.path], lambda number, status: None)  # noqa: ARG005
        self._data = data

    def get(self, number: int) -> FileBytes:  # noqa: ARG002
        return self._data

    def _look(self, numbers: Sequence[int]) -> None:
        """Nothing: the version of a stored file is known."""


class _OpenedFile(Opening):
    """One opening of the file: its bytes and its pages."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.data = open_bytes(path)
        retried(self.data, self._read)

    def _read(self) -> None:
        path = self.path
        meta = read_meta(self.data, path)
        if meta.file_size > len(self.data):  # another program may have written to it since it was opened
            self.data = open_bytes(path)
            meta = read_meta(self.data, path)
        self.tree = Tree(self.data, meta, path)
        manifest = self._read_manifest()
        find = partial(find_block, self.tree, path)  # a method would make a cycle and keep the file open
        super().__init__(manifest, IndexView(self.data, manifest, find, path), _OneFile(self.data))
        self.index_is_stale = manifest.transaction != meta.txnid
        if not self.index_is_stale and meta.file_size > len(self.data):
            raise ContainerError(f"{path} is truncated: {len(self.data)} bytes, expected {meta.file_size}")

    def is_stale(self) -> bool:
        """Whether another program wrote to the file since. Raises `ContainerError` where it was cut off."""
        if self.data.is_stored:  # a version of an object does not change
            return False
        self.data.check_size()
        return read_meta(self.data, self.path).txnid != self.tree.meta.txnid

    def _read_manifest(self) -> Manifest:
        place = self.tree.find(MANIFEST_KEY) if self.tree.meta.flags == 0 else None
        if place is None:
            raise UnfinishedError(f"{self.path} has no iofast manifest: made by another program, or never finished")
        text = self.data[place[0] : place[0] + place[1]]
        if not text.strip(b"\0"):
            raise UnfinishedError(f"{self.path} was never finished: its manifest is still empty")
        manifest = Manifest.from_json(text, self.path)
        return replace(manifest, shards=(Shard("", manifest.count, len(self.data)),))
