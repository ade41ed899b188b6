"""Tar shards that iofast did not write, WebDataset's above all, as a Reader."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Located, dense
from iofast.containers.index import ABSENT
from iofast.containers.manifest import WHOLE, Manifest, Shard
from iofast.containers.open_files import OpenFiles
from iofast.errors import ContainerError, SourceError
from iofast.record import IMAGE_FIELDS, LABEL_FIELD, RAW_FIELDS
from iofast.source.foreign import ForeignOptions, ForeignReader, may_be_there, missing, unlabelled
from iofast.source.tar_index import NOWHERE, TarIndex, open_tar_index, reopen_tar_index
from iofast.source.tar_names import TarNames


class WebDatasetReader(ForeignReader):
    """Random access to the records of tar shards, in the order of `paths`; `name` is what messages call them.

    The first opening reads the headers of all members; the result is kept in the cache folder
    (`$XDG_CACHE_HOME/iofast`) and used again until a shard changes. A key is the member's name up to the first dot
    behind the last slash, and need not be unique. Labels are the decimal in `cls`, else the integer `label` in `json`,
    else -1, unless `options` say otherwise: then `cls` is what they make of it, and lies in no file. `jpeg` is read as
    the field `jpg`. There are no classes, splits or checksums. Members whose names make no key or no field, or that
    the options replace, are left out (`left_out` says how many). Raises `SourceError` where a shard is missing,
    `ContainerError` where its bytes are no tar.
    """

    def __init__(
        self, paths: Sequence[str | os.PathLike[str]], name: str, options: ForeignOptions | None = None
    ) -> None:
        self.options = options or ForeignOptions()
        self.unplaced = (LABEL_FIELD,) if TarNames.of(self.options).says_label else ()
        self.paths = [os.path.abspath(path) for path in paths]
        self.path = name
        for path in self.paths:
            if not os.path.isfile(path):
                raise SourceError(f"{path} is not a file, so {name} cannot be read")
        self._index: TarIndex | None = open_tar_index(self.paths, self.options)
        lost = self._index.left_out
        said = [f"members whose names make no key and field: {lost:,} left out"] if lost else []
        if replaced := self._index.replaced:
            said.append(f"members that names replace by others: {replaced:,} left out")
        self.manifest = _manifest(self._index, self.unplaced)
        if "label" in self.options.names and LABEL_FIELD not in self.manifest.fields:
            said.append(unlabelled(self.options.names["label"]))
        self.left_out = tuple(said)
        self._check_names()
        self._check_base(self.options.label_base)

    def __getstate__(self) -> dict[str, object]:
        members = {**self.__dict__, "_index": None}
        if self._index is not None and self._index.file is None:  # not in the cache: it would have to be built again
            members["_index"] = self._index
        return members

    def locate(self, indices: NDArray[np.int64], field: str | None = None) -> Located:
        """Where the payloads lie; see `Reader.locate`. A record without the field has `file` 0xFFFFFFFF."""
        fields = self._open().fields
        if field is not None and field not in fields:
            known = field in self.manifest.fields
            what = f"no field {field!r}, only {', '.join(self.manifest.fields)}"
            raise KeyError(f"{self.path}: field {field!r} lies in no file" if known else f"{self.path} has {what}")
        names = self._images() if field is None else [field]
        if not names:
            raise KeyError(f"{self.path} has no image field, only {', '.join(fields)}")
        return self._located(indices, names)

    def columns(self, indices: NDArray[np.int64]) -> Located:
        """What the index says of these records; see `Reader.columns`."""
        return self._located(indices, self._images())

    def keys(self, located: Located) -> list[str]:
        """The keys of the records in `located`, as the shards have them."""
        index = self._open()
        return [index.key(row) for row in located.indices.tolist()]

    def name(self, index: int) -> str:
        """`train-000000.tar: n01440764/0001`."""
        shard = int(self._open().arrays["shard"][index])
        return f"{self.paths[shard] if 0 <= shard < len(self.paths) else self.path}: {self._key(index)}"

    def close(self) -> None:
        """Let go of the index and all files, unless it is not in the cache and would have to be built again."""
        if self._index is not None and self._index.file is not None:
            self._index = None

    def _check_names(self) -> None:
        """Raise `OptionError` for a name in the options that no record knows."""
        images, there, index = self._images(), self.manifest.fields, self._open()
        for ours, theirs in self.options.names.items() if len(self) else ():
            if ours == "label":
                member = "json" if theirs.lower().startswith("json/") else theirs.lower()
                found = LABEL_FIELD in there or may_be_there(member, index.names)
            else:
                found = bool(images) if ours == "image" else ours in there
            if not found:
                raise missing(self.path, ours, theirs, "a label in" if ours == "label" else "a member", index.names)

    def _labelled(self) -> bool:
        return bool((self._open().arrays["label"] >= 0).any())  # also where it is in a JSON field

    def _images(self) -> list[str]:
        return [name for name in (*IMAGE_FIELDS, *RAW_FIELDS) if name in self._open().fields]

    def _located(self, indices: NDArray[np.int64], names: Sequence[str]) -> Located:
        index = self._open()
        arrays, fields = index.arrays, index.fields
        indices = dense(indices, len(self), self.path)
        offset, length = np.full(len(indices), NOWHERE, np.uint64), np.zeros(len(indices), np.uint64)
        kind = np.zeros(len(indices), np.uint8)
        for name in reversed(names):  # the first that a record has counts
            place = arrays[f"offset.{fields.index(name)}"][indices]
            there = place != NOWHERE
            offset[there] = place[there]
            length[there] = arrays[f"length.{fields.index(name)}"][indices][there]
            kind[there] = 1 + RAW_FIELDS.index(name) if name in RAW_FIELDS else 0
        absent = offset == NOWHERE
        shard = arrays["shard"][indices]
        located = Located(
            indices=indices,
            position=indices.astype(np.uint64),
            label=arrays["label"][indices],
            width=arrays["width"][indices],
            height=arrays["height"][indices],
            orientation=arrays["orientation"][indices],
            file=np.where(absent, ABSENT, shard).astype(np.uint32),
            offset=np.where(absent, 0, offset).astype(np.uint64),
            length=length,
            kind=kind,
            crc=None,
            strips=None,
        )
        self._check(index, shard, located)
        return located

    def _open(self) -> TarIndex:
        if self._index is None:
            index = reopen_tar_index(self.paths, self.options, self.manifest.fingerprint)
            if index.fingerprint != self.manifest.fingerprint:
                raise ContainerError(f"the shards of {self.path} have changed since they were opened")
            self._index = index
        return self._index

    def _files(self) -> OpenFiles:
        return self._open().files

    def _there(self, index: int) -> list[str]:
        arrays, fields = self._open().arrays, self._open().fields
        placed = [name for i, name in enumerate(fields) if arrays[f"offset.{i}"][index] != NOWHERE]
        return sorted([*placed, *self._said(index)])

    def _said(self, index: int) -> dict[str, bytes]:
        label = int(self._open().arrays["label"][index])
        return {LABEL_FIELD: b"%d" % label} if self.unplaced and label >= 0 else {}

    def _key(self, index: int) -> str:
        return self._open().key(index)

    def _check(self, index: TarIndex, shard: NDArray[np.int32], located: Located) -> None:
        """Refuse what no index of ours says: the cache is a file like any other."""
        wrong = (shard < 0) | (shard >= len(self.paths))
        size = index.stamps[0][np.where(wrong, 0, shard)].astype(np.uint64)
        wrong |= (located.offset > size) | (located.length > size - np.minimum(located.offset, size))
        wrong |= (located.orientation - 1 > 7) | (located.label < -1) | (located.width < 0) | (located.height < 0)
        if wrong.any():
            i = int(np.argmax(wrong))
            place = f"file {located.file[i]}, offset {located.offset[i]}, {located.length[i]} bytes"
            raise ContainerError(f"{index.file}: the index is damaged in row {located.indices[i]} ({place}): delete it")


def _manifest(index: TarIndex, unplaced: Sequence[str]) -> Manifest:
    said = unplaced if (index.arrays["label"] >= 0).any() else ()
    return Manifest(
        count=len(index),
        fields=tuple(sorted({*index.fields, *said})),
        splits={WHOLE: ((0, len(index)),)},
        fingerprint=index.fingerprint,
        shards=(Shard("", len(index), int(index.stamps[0].sum())),),
    )
