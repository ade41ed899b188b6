"""Random access to records in files of other programs, by their index."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Failures, Located, dense
from iofast.containers.columns import columns_of
from iofast.containers.located import locate_in
from iofast.containers.open_files import FilesReader, OpenFiles
from iofast.errors import ContainerError, OptionError
from iofast.foreign.cached_index import ForeignIndex, Format, open_index, reopen_index
from iofast.record import JSON_FIELD, KINDS, LABEL_FIELD, Record, format_key
from iofast.remote.urls import is_url
from iofast.source.image_files import named_by_format
from iofast.source.listing import few, printable


class ForeignReader(FilesReader):
    """The records of a format's files, in file order. `path` names the data set in messages.

    The first opening scans the files. The cache folder (`$XDG_CACHE_HOME/iofast`) keeps the index until a file changes.
    `cls` and `json` may be in no file; they come from the index. A record without an image has `file` 0xFFFFFFFF.
    `left_out` describes contents of the files that no record has. Raises the errors of `open_index`, and `OptionError`
    for a name in the options that no record has.
    """

    def __init__(self, path: str, data: Format) -> None:
        self.path, self.paths, self.format, self.container = path, data.paths, data, data.name
        self._opened: OpenFiles | None = None
        self._index: ForeignIndex | None = open_index(data)
        index = self._index
        self.unplaced, self.left_out = index.unplaced, index.left_out
        self.has_paths = JSON_FIELD in index.unplaced
        self.renames = data.renames
        self.manifest = index.manifest(int(index.stamps[: len(data.paths), 0].sum()))
        self._check_options(index)

    def __getstate__(self) -> dict[str, object]:
        index = self._index if self._index is None or self._index.file is None else None  # a cached one is loaded again
        return {**self.__dict__, "_index": index, "_opened": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def is_stored(self) -> bool:
        return is_url(self.paths[0])

    def locate(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """See `Reader.locate`. Raises `KeyError` for fields that are in no file: use `values` or `view` for them."""
        if self._is_made(field):
            raise KeyError(f"{self.path}: field {field!r} lies in no file")
        return self._located(self._named(field), indices)

    def columns(self, indices: NDArray[np.int64]) -> Located:
        return self._located([name for name in KINDS if name in self._open().fields], indices)

    def _values(
        self, indices: NDArray[np.int64], field: str | None, check: bool, wrong: Failures
    ) -> list[bytes | None]:
        if self._is_made(field):
            index, rows = self._open(), dense(indices, len(self), self.path).tolist()
            return [self._unplaced_fields(index, row).get(str(field)) for row in rows]
        return super()._values(indices, field, check, wrong)

    def keys(self, located: Located) -> list[str]:
        """Return the keys of the records in `located`. A byte that is not UTF-8 is written as in `\\xe9`."""
        return [self._key(row) for row in located.indices.tolist()]

    def record(self, index: int) -> Record:
        """See `Reader.record`. An encoded image is named by its format."""
        row = int(dense(np.array([index]), len(self), self.path)[0])
        fields = self.all_values(np.array([row]))[0]
        return Record(self._key(row), named_by_format(fields) if self.renames else dict(sorted(fields.items())))

    def name(self, index: int) -> str:
        """`train-000000.tar: n01440764/0001`, or `train-00000-of-00008: record 17` of that file."""
        opened = self._open()
        file = int(opened.files_of(np.array([index]))[0])
        own = self._key(index) if opened.keys is not None else f"record {index - int(opened.arrays['starts'][file])}"
        return f"{self.paths[file]}: {own}"

    def close(self) -> None:
        """Close the files, and free the index if it is in the cache."""
        self._opened = None
        if self._index is not None and self._index.file is not None:
            self._index = None

    def _check_options(self, index: ForeignIndex) -> None:
        """Raise `OptionError` for a name or a label base that fits no record."""
        if not len(self):
            return
        for ours, theirs in self.format.options.names.items() if index.names_seen else ():
            if not index.has_named(ours, theirs):
                role = {"label": "a label in", "path": "text in"}.get(ours, "bytes in")
                words = f"no record has {role} {theirs!r} (names: {ours}={theirs})"
                raise OptionError(f"{self.path}: {words}; they have {few(index.names_seen, 20)}")
        base = self.format.options.label_base
        if base and not index.labelled:
            raise OptionError(f"{self.path}: no record has a label, so none counts from {base} (labels-from)")

    def _located(self, fields: Sequence[str], indices: NDArray[np.int64]) -> Located:
        """Return each record's place of the first of `fields` that it has."""
        index, indices = self._open(), dense(indices, len(self), self.path)
        names = ("label", "width", "height", "orientation", *(each for name in fields for each in columns_of(name)))
        columns = {name: index.arrays[name][indices] for name in names}
        located, _ = locate_in(columns, fields, indices, index.files_of(indices))
        return located if self.format.has_checksums else located._replace(crc=None)

    def _is_made(self, field: str | None) -> bool:
        """Whether a field is made from the index."""
        return field in self.unplaced and field in self.manifest.fields

    def _unplaced_fields(self, index: ForeignIndex, row: int) -> dict[str, bytes]:
        """The fields of one record that are made from the index."""
        label, text = int(index.arrays["label"][row]), index.json[row] if index.json is not None else b""
        fields = {LABEL_FIELD: b"%d" % label} if index.label_from_index and label >= 0 else {}
        return fields | ({JSON_FIELD: text} if text else {})

    def _key(self, index: int) -> str:
        keys = self._open().keys
        return format_key(index, self.manifest.key_width) if keys is None else printable(keys[index])

    def _files(self) -> OpenFiles:
        opened = self._opened
        if opened is None:
            opened = self._opened = self.format.files(self._open().stamps)
        return opened

    def _open(self) -> ForeignIndex:
        index = self._index
        if index is None:
            index = reopen_index(self.format, self.manifest.fingerprint)
            if index.fingerprint != self.manifest.fingerprint:
                raise ContainerError(f"{self.path}: records have changed since it was opened")
            self._index = index
        return index
