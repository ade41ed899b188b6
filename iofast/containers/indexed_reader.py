"""The part of a Reader that works on the columns of an index: the same for LMDB and for sets of shards."""

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from iofast.containers.columns import FACTS, columns_of
from iofast.containers.index import IndexView
from iofast.containers.located import Located, dense, locate_in, misplaced
from iofast.containers.manifest import Manifest
from iofast.containers.open_files import FilesReader, OpenFiles
from iofast.errors import ContainerError
from iofast.record import LONGEST_SIDE, Record, format_key
from iofast.remote.urls import absolute, is_url

_SHOWN = tuple(name for name in FACTS if name != "position")


class Opening:
    """One opening of a container. Threads and forks may share it."""

    def __init__(self, manifest: Manifest, index: IndexView, files: OpenFiles) -> None:
        self.manifest, self.index, self.files = manifest, index, files
        self.ends = np.cumsum([shard.count for shard in manifest.shards], dtype=np.int64)  # of each file's records
        self.sizes = np.array([shard.size for shard in manifest.shards] or [0], np.uint64)

    def is_stale(self) -> bool:
        """Whether the container was written to since."""
        return False

    def files_of(self, indices: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The number of the file with each record."""
        return np.searchsorted(self.ends, indices, "right").astype(np.uint32)


OpenedT = TypeVar("OpenedT", bound=Opening)


class IndexedReader(FilesReader, Generic[OpenedT]):
    """Random access to the records of a container that iofast wrote; a subclass opens its files.

    It can be pickled and forked, and opens its files again after `close`. Raises `ContainerError` if another dataset
    has replaced it meanwhile.
    """

    is_ours = has_paths = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = absolute(path)
        self._opened: OpenedT | None = self._open_files()
        self.manifest = self._opened.manifest

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "manifest": self.manifest}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _opened=None)

    @abstractmethod
    def _open_files(self) -> OpenedT:
        """Open the container at `path`."""

    @property
    def is_stored(self) -> bool:
        return is_url(self.path)

    @property
    def index(self) -> IndexView:
        """The columns of the index."""
        return self._open().index

    def opening(self) -> object:
        return self._open()

    def locate(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """Where the payloads lie; see `Reader.locate`. A record without the field has `file` 0xFFFFFFFF and length 0.

        256 random records of 1.28 million take about 0.1 ms.
        """
        return self._located(indices, self._named(field), _SHOWN)

    def places(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """See `Reader.places`: only the columns of the field are read."""
        return self._located(indices, self._named(field), ())

    def labels(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """See `Reader.labels`: only the column of labels is read."""
        indices = self._dense(indices)
        facts = self._open().index.read(("label",), indices)
        self._check_facts(facts, indices)
        labels: NDArray[np.int32] = facts["label"]
        return labels

    def positions(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        indices = self._dense(indices)
        positions: NDArray[np.uint64] = self._open().index.read(("position",), indices)["position"]
        width = self.manifest.key_width
        wrong = positions > np.uint64(min(10**width, 1 << 64) - 1)
        if wrong.any():
            row = int(np.argmax(wrong))
            found = f"the position {positions[row]} of record {indices[row]} is impossible: keys have {width} digits"
            raise ContainerError(f"{self.path}: {found}")
        return positions

    def record(self, index: int) -> Record:
        """One record with all its fields, every payload checked."""
        return Record(self._key(index), self.all_values(np.array([index], np.int64))[0])

    @abstractmethod
    def differences(self, shard: int) -> Iterator[tuple[int | None, str]]:
        """Compare file `shard` of the manifest, apart from its payloads, with the index, whose rows must be valid.

        Yields the dense index of a record, or None, and what is different. Raises `ContainerError` for damage.
        """

    def name(self, index: int) -> str:
        """`shards/train-000000.tar: 00000042`: the file and the key."""
        opened, key = self._open(), self._key(index)
        return f"{opened.files.paths[int(opened.files_of(np.array([index]))[0])]}: {key}"

    def close(self) -> None:
        """Release all files; they are closed when the last `payloads` block ends."""
        self._opened = None

    def _files(self) -> OpenFiles:
        """The open files. Only `locate` checks for changes: with a check for each slice of a batch, three system calls
        that release the GIL, a loader without any decoding was an eighth slower."""
        return (self._opened or self._open()).files

    def _dense(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return dense(indices, len(self), self.path)

    def _key(self, index: int) -> str:
        return format_key(int(self.positions(np.array([index], np.int64))[0]), self.manifest.key_width)

    def _located(self, indices: NDArray[np.int64], fields: Sequence[str], facts: Sequence[str]) -> Located:
        """The places of the first of `fields` that each record has, checked; columns that are not asked for are 0."""
        opened, indices = self._open(), self._dense(indices)
        columns = opened.index.read([*facts, *(each for name in fields for each in columns_of(name))], indices)
        self._check_facts(columns, indices)
        located, number = locate_in(columns, fields, indices, opened.files_of(indices))
        self._relocate(opened, located, fields, number)
        if (outside := misplaced(located, opened.sizes)) is not None:
            record, place = outside
            raise ContainerError(f"{self.path}: the index puts a payload of record {record} outside: {place}")
        return located

    def _check_facts(self, columns: Mapping[str, NDArray[Any]], indices: NDArray[np.int64]) -> None:
        """Raise `ContainerError` for labels, sizes and orientations that no record has."""
        classes = self.manifest.classes
        top = np.iinfo(np.int32).max if classes is None else len(classes) - 1
        limits = {"label": (-1, top), "width": (0, LONGEST_SIDE), "height": (0, LONGEST_SIDE), "orientation": (1, 8)}
        for name, (least, most) in limits.items():
            column = columns.get(name)
            if column is None or not column.size or least <= column.min() <= column.max() <= most:
                continue
            row = int(np.argmax((column < least) | (column > most)))
            raise ContainerError(f"{self.path}: the {name} {column[row]} of record {indices[row]} is impossible")

    def _relocate(self, opened: OpenedT, located: Located, fields: Sequence[str], number: NDArray[np.intp]) -> None:
        """Correct places that have changed since the container was indexed; row i has `fields[number[i]]`."""

    def _open(self) -> OpenedT:
        opened = self._opened
        if opened is None or opened.is_stale():
            opened = self._open_files()
            if opened.manifest.fingerprint != self.manifest.fingerprint:
                raise ContainerError(f"{self.path} was replaced by another dataset since it was opened")
            self._opened = opened
        return opened
