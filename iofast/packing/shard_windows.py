"""Shards whose bytes lie in an object store, read through sparse local files of the same size.

Joining parts reads payloads only to compare images that may be equal, and to write shards again without duplicates. The
bytes of one payload, or some megabytes of a shard that is read in order, are fetched into the local file just before.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from iofast.containers.base import Located
from iofast.containers.index import ABSENT
from iofast.containers.shard_reader import ShardReader
from iofast.containers.tar import TarReader
from iofast.containers.tfrecord import TfrecordReader
from iofast.kernel import Payloads
from iofast.packing.store_target import SMALL, StoreTarget

_SHARDS = 8  # whose bytes may be here at once
_GAP = 1 << 18  # bytes between payloads that are read in order, at most


@dataclass(slots=True)
class ShardWindows:
    """The bytes of stored shards that local files have now: one window for each of a few shards. For one thread.

    `etags` are the versions of the stored shards, by name.
    """

    target: StoreTarget
    etags: dict[str, str] = field(default_factory=dict)
    _here: OrderedDict[str, tuple[int, int]] = field(default_factory=OrderedDict)  # by path, least recently used first

    def keep(self, path: Path) -> None:
        """See `Backing.keep`."""
        self.etags[path.name] = self.target.send(path)
        _empty(path)

    def fetch(self, path: str | os.PathLike[str], start: int, stop: int) -> None:
        """See `Backing.fetch`. Raises `ObjectConflictError` if the stored shard has changed."""
        place = os.fspath(path)
        low, high = self._here.get(place, (0, 0))
        if low <= start and stop <= high:
            return
        if high and low <= start <= high + _GAP:  # probably read in order
            stop = min(max(stop, start + SMALL), os.stat(place).st_size)
        self._drop(place)
        while len(self._here) >= _SHARDS:
            self._drop(next(iter(self._here)))
        name = os.path.basename(place)
        data = self.target.store.get_range(f"{self.target.prefix}/{name}", start, stop, self.etags.get(name, ""))
        with open(place, "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), data, start)
        self._here[place] = start, stop

    def _drop(self, place: str) -> None:
        if self._here.pop(place, None) is not None:
            _empty(Path(place))


class _Windowed(ShardReader):
    """A reader that fetches payloads before it reads them."""

    windows: ShardWindows

    @contextlib.contextmanager
    def payloads(self, located: Located, start: int, stop: int) -> Iterator[Payloads]:
        """See `Reader.payloads`."""
        file, offset, length = (column[start:stop] for column in (located.file, located.offset, located.length))
        for number in np.unique(file[file != ABSENT]).tolist():
            own = file == number
            low, high = int(offset[own].min()), int((offset[own] + length[own]).max())
            self.windows.fetch(self._files().paths[number], low, high)
        with super().payloads(located, start, stop) as payloads:
            yield payloads


class _WindowedTar(_Windowed, TarReader):
    pass


class _WindowedTfrecord(_Windowed, TfrecordReader):
    pass


def open_windowed(path: Path, windows: ShardWindows) -> ShardReader:
    """The reader of a set of shards that lie in a store."""
    reader = (_WindowedTar if path.suffix == ".tar" else _WindowedTfrecord)(path)
    reader.windows = windows
    return reader


def _empty(path: Path) -> None:
    """Free the bytes of a file, which keeps its size."""
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        file.truncate(0)
        file.truncate(size)
