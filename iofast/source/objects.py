"""Images in object stores: a listing of a prefix as a tree of folders, and sizes and versions of single objects."""

import contextlib
import itertools
import os
import tempfile
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from iofast.bars import open_bar
from iofast.errors import ObjectConflictError, ObjectMissingError, OptionError, SourceError, SourceMissingError
from iofast.remote import requests
from iofast.remote.limits import RequestLimits
from iofast.remote.store import Store
from iofast.remote.urls import is_url, join
from iofast.source.arrays import Strings, StringsWriter
from iofast.source.listing import Column, Versions

_FIRST = 30.0  # seconds until a store must have answered for the first time: a wrong name should not take minutes
_REQUESTS = 64  # in flight at once
_SLICE = 1024  # objects asked for between two steps of the bar
_STEP = 8 << 20  # bytes of a file that is copied here


class _Folder:
    """The contents of a folder: names of files, each followed by a NUL, their rows in the listing, and subfolders."""

    __slots__ = ("folders", "names", "rows")

    def __init__(self) -> None:
        self.names = bytearray()
        self.rows = array("Q")
        self.folders: dict[str, None] = {}

    def files(self) -> Iterator[tuple[str, int]]:
        """Name and row of each file."""
        return zip(self.names.decode("utf-8", "surrogateescape").split("\0"), self.rows, strict=False)


class ObjectTree:
    """The objects below a URL as folders and files; see `walk.LocalTree`. Raises `StorageError`, `SourceError`.

    Stores have no folders. An empty object stands for one if other objects lie below it, or if its name has no suffix.
    Memory: the bytes of names and ETags, and 24 bytes for each object.
    """

    def __init__(self, url: str) -> None:
        self.root = url
        self._store = Store.of(url)
        self._folders = {"": _Folder()}
        self._sizes, self._etags, self._ends = array("Q"), bytearray(), array("Q", [0])
        limits = RequestLimits.of_environment()
        next(Store.of(url, replace(limits, patience=min(limits.patience, _FIRST))).list(), None)
        with open_bar(None, " objects", f"listing {url}", delay=1) as bar:
            for number, (key, size, etag) in enumerate(self._store.list()):
                self._add(number, key, size, etag)
                bar.update()

    def status(self, prefix: str) -> tuple[tuple[int, int], int]:
        """See `walk.LocalTree`. No folder contains itself."""
        return (-1, len(prefix)), 0

    def entries(self, prefix: str) -> Iterator[tuple[str, bool]]:
        folder = self._folders[prefix]
        yield from ((name, True) for name in folder.folders)
        for name, row in folder.files():
            is_mark = not self._sizes[row] and (name in folder.folders or not os.path.splitext(name)[1])
            if not is_mark:
                yield name, False

    def beginning(self, path: str, length: int) -> bytes | None:
        size, etag = self._version(next(self._rows([os.fsencode(path)])))
        try:
            return self._store.get_range(path, 0, min(size, length), etag)
        except (ObjectMissingError, ObjectConflictError):
            return None

    def versions(self, paths: Strings, columns: Sequence[Column]) -> dict[str, Versions]:
        named = {"": paths} | {column.field: column.values for column in columns if column.has_files}
        return {name: _versions(map(self._version, self._rows(each)), len(each)) for name, each in named.items()}

    def _add(self, row: int, key: str, size: int, etag: str) -> None:
        self._sizes.append(size)
        self._etags += etag.encode()
        self._ends.append(len(self._etags))
        prefix, _, name = key.rpartition("/")
        folder = self._folder(prefix)
        folder.names += os.fsencode(name) + b"\0"
        folder.rows.append(row)

    def _folder(self, prefix: str) -> _Folder:
        if prefix not in self._folders:
            above, _, name = prefix.rpartition("/")
            self._folder(above).folders[name] = None
            self._folders[prefix] = _Folder()
        return self._folders[prefix]

    def _version(self, row: int) -> tuple[int, str]:
        """(size, ETag) of a row of the listing; of row -1, those of no object."""
        if row < 0:
            return 0, ""
        return self._sizes[row], self._etags[self._ends[row] : self._ends[row + 1]].decode()

    def _rows(self, paths: Iterable[bytes]) -> Iterator[int]:
        """The row of each path in the listing, -1 for an empty path. Paths of one folder should follow each other."""
        present, files = None, dict[str, int]()
        for path in paths:
            prefix, _, name = os.fsdecode(path).rpartition("/")
            if path and prefix != present:
                present, files = prefix, dict(self._folders[prefix].files())
            yield files[name] if path else -1


def look_up(root: str, paths: Strings) -> Versions:
    """Sizes and versions of the objects among `paths`, which are relative to `root` or URLs.

    Those of local files and of objects that do not exist are (0, ""). Raises `StorageError`.
    """

    def found() -> Iterator[tuple[int, str]]:
        with open_bar(len(paths), " objects", "asking for sizes", delay=1) as bar:
            each = iter(paths)
            while part := list(itertools.islice(each, _SLICE)):
                yield from requests.run(_look(root, part))
                bar.update(len(part))

    return _versions(found(), len(paths))


async def _look(root: str, paths: Sequence[bytes]) -> list[tuple[int, str]]:
    async def look(path: bytes) -> tuple[int, str]:
        url = join(root, os.fsdecode(path))
        if not path or not is_url(url):
            return 0, ""
        with contextlib.suppress(ObjectMissingError):
            return (await Store.of(url).look())[1:]
        return 0, ""

    return await requests.each(look, paths, _REQUESTS)


@contextlib.contextmanager
def copies(url: str, names: Collection[str], optional: Collection[str] = ()) -> Iterator[Path]:
    """A temporary folder with copies of objects of a store. Errors of the block name their URLs.

    Raises `SourceError` if one of `names` does not exist; `optional` ones may be missing.
    """
    store = Store.of(url)
    with tempfile.TemporaryDirectory(prefix="iofast-") as folder:
        for name in (*names, *optional):
            try:
                about = store.head(name)
                with Path(folder, name).open("wb") as file:
                    for start in range(0, about.size, _STEP):
                        file.write(store.get_range(name, start, min(start + _STEP, about.size), about.etag))
            except ObjectMissingError:
                if name in names:
                    raise SourceMissingError(f"source not found: {store.url(name)}") from None
        try:
            yield Path(folder)
        except (SourceError, OptionError) as error:
            raise type(error)(str(error).replace(folder, url)) from None


def _versions(found: Iterator[tuple[int, str]], count: int) -> Versions:
    sizes, etags = np.empty(count, np.uint64), StringsWriter()
    for row, (size, etag) in enumerate(found):
        sizes[row] = size
        etags.add(etag.encode())
    return Versions(sizes, etags.finish())
