"""TFRecord files of other programs as a Reader: Examples with an encoded image, as TensorFlow's converters make."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Located, dense
from iofast.containers.index import ABSENT
from iofast.containers.open_files import OpenFiles
from iofast.errors import ContainerError
from iofast.record import JSON_FIELD, LABEL_FIELD, Record, format_key
from iofast.source.foreign import ForeignReader, may_be_there, missing, unlabelled
from iofast.source.listing import few
from iofast.source.tfrecord_index import IMAGE_FIELD, TfrecordIndex, open_index, reopen_index
from iofast.source.tfrecord_records import TfrecordOptions
from iofast.source.tfrecord_scan import FORMATS


class ForeignTfrecordReader(ForeignReader):
    """Random access to the records of TFRecord files without a manifest of ours.

    `paths` are the files, in their order; `name` is what messages call them. The first opening reads every record
    once; places, checksums and image sizes are kept in the cache folder (`$XDG_CACHE_HOME/iofast`) until a file is
    changed. A record without an image has none (`file` 0xFFFFFFFF), one whose data is damaged fails when it is read.
    The image field is `jpg` whatever its format; only `record` names it by its real one. Fields beside it: `cls` and
    `json` (path and key), which lie in no file, and those of the options. Keys are the places in the order.

    Raises `SourceError` where a file is missing, `ContainerError` where one is compressed, cut off or not of Examples.
    """

    def __init__(
        self, paths: Sequence[str | os.PathLike[str]], name: str, options: TfrecordOptions | None = None
    ) -> None:
        self.paths = [os.path.abspath(path) for path in paths]
        self.path = name
        self.options = options or TfrecordOptions()
        self._index: TfrecordIndex | None = open_index(self.paths, self.options)
        self._opened: OpenFiles | None = None
        self.manifest = self._index.manifest
        self._check_names(self._index)
        self._check_base(self.options.label_base)
        unread = [name for name in self._index.features if name not in self.options.known]
        said = [f"features that no field takes: {few(unread, 8)} (--names FIELD=FEATURE takes bytes)"] if unread else []
        if self.options.label is not None and LABEL_FIELD not in self.manifest.fields:
            said.append(unlabelled(self.options.label))
        self.left_out = tuple(said)

    def __getstate__(self) -> dict[str, object]:
        index = self._index if self._index is None or self._index.file is None else None
        return {**self.__dict__, "_index": index, "_opened": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)

    def locate(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """Where the payloads lie; see `Reader.locate`. `cls` and `json` lie in no file: use `values` or `view`."""
        if field not in (None, IMAGE_FIELD, *self._mapped) or (field or IMAGE_FIELD) not in self.manifest.fields:
            known = field in self.manifest.fields
            fields = ", ".join(self.manifest.fields)
            what = f"field {field!r} lies in no file" if known else f"no field {field or IMAGE_FIELD!r}, only {fields}"
            raise KeyError(f"{self.path}: {what}")
        return self._located(indices, 0 if field in (None, IMAGE_FIELD) else 1 + self._mapped.index(str(field)))

    def columns(self, indices: NDArray[np.int64]) -> Located:
        """What the index says of these records; see `Reader.columns`."""
        located = self._located(indices, 0)
        return located if IMAGE_FIELD in self.manifest.fields else located.nowhere()

    def record(self, index: int) -> Record:
        """One record whole, the image under the name of its real format."""
        fields = dict(super().record(index).fields)
        if IMAGE_FIELD in fields:
            fields[FORMATS[int(self._open().columns["format"][index])]] = fields.pop(IMAGE_FIELD)
        return Record(format_key(index), dict(sorted(fields.items())))

    def name(self, index: int) -> str:
        """`train-00000-of-00008: record 17`: the file, and the record's number in it."""
        first = np.searchsorted(self._open().starts, index, "right") - 1
        return f"{self.paths[int(first)]}: record {index - int(self._open().starts[first])}"

    def _check_names(self, index: TfrecordIndex) -> None:
        """Raise `OptionError` for a name in the options that no record knows."""
        options, there = self.options, self.manifest.fields
        asked = [
            ("image", options.image, "bytes in", IMAGE_FIELD in there),
            ("label", options.label, "a label in", LABEL_FIELD in there or may_be_there(options.label, index.features)),
            ("path", options.path, "text in", re.search(b'"path":', index.json.blob) is not None),
            *((ours, theirs, "bytes in", ours in there) for ours, theirs in options.fields),
        ]
        for ours, theirs, what, found in asked if len(self) else ():
            if theirs is not None and not found:
                raise missing(self.path, ours, theirs, what, index.features)

    def close(self) -> None:
        """Let go of the files, and of the index unless it is not in the cache and would have to be built again."""
        self._opened = None
        if self._index is not None and self._index.file is not None:
            self._index = None

    @property
    def _mapped(self) -> list[str]:
        return [name for name, _ in self.options.fields]

    def _located(self, indices: NDArray[np.int64], place: int) -> Located:
        columns = self._open().columns
        indices = dense(indices, len(self), self.path)
        file = columns[f"file.{place}"][indices]
        if ((file >= len(self.paths)) & (file != ABSENT)).any():
            raise ContainerError(f"the cached index of {self.path} is damaged: it knows a file {file.max()}")
        return Located(
            indices=indices,
            position=indices.astype(np.uint64),
            label=columns["label"][indices],
            width=columns["width"][indices],
            height=columns["height"][indices],
            orientation=columns["orientation"][indices],
            file=file,
            offset=columns[f"offset.{place}"][indices],
            length=columns[f"length.{place}"][indices],
            kind=np.zeros(len(indices), np.uint8),
            crc=columns[f"crc.{place}"][indices],
            strips=None,
        )

    def _said(self, index: int) -> dict[str, bytes]:
        """The fields that lie in no file."""
        opened = self._open()
        label, text = int(opened.columns["label"][index]), opened.json[index]
        return ({LABEL_FIELD: b"%d" % label} if label >= 0 else {}) | ({JSON_FIELD: text} if text else {})

    def _files(self) -> OpenFiles:
        opened = self._opened
        if opened is None:
            stamps = self._open().stamps
            paths = self.paths

            def check(number: int, status: os.stat_result) -> None:
                if (status.st_size, status.st_mtime_ns) != tuple(stamps[number].tolist()):
                    raise ContainerError(f"{paths[number]} was changed since it was opened")

            opened = self._opened = OpenFiles(paths, check)
        return opened

    def _there(self, index: int) -> list[str]:
        columns = self._open().columns
        places = [name for n, name in enumerate((IMAGE_FIELD, *self._mapped)) if columns[f"file.{n}"][index] != ABSENT]
        return sorted([*places, *self._said(index)])

    def _key(self, index: int) -> str:
        return format_key(index)

    def _open(self) -> TfrecordIndex:
        index = self._index
        if index is None:
            index = reopen_index(self.paths, self.options, self.manifest.fingerprint)
            if index.manifest.fingerprint != self.manifest.fingerprint:
                raise ContainerError(f"{self.path}: records were changed since it was opened")
            self._index = index
        return index
