"""The listing of the images of a source: paths, labels, splits and further columns, without a Python object for each.

A million images take the bytes of their paths plus 13 bytes each: one blob, u64 bounds, i32 labels.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iofast.order.permutation import permuted
from iofast.remote.urls import is_url, join
from iofast.source.arrays import Strings, steps

SPLIT_ORDER = ("train", "val", "valid", "validation", "test")  # packed in this order, other names follow sorted

MISSING, PLAIN, FILE = 0, 1, 2  # Column.states: no value, the stored value, the path of a file that contains it


@dataclass(frozen=True, slots=True)
class Column:
    """A field of the records that is not the image: a column of a manifest, or files beside the images."""

    field: str
    values: Strings
    states: NDArray[np.uint8]  # MISSING, PLAIN or FILE per row

    def at(self, row: int, state: int) -> bytes | None:
        """The value of one listing row if it has this state. The path of a file has the form of `Listing.path`."""
        return self.values[row] if self.states[row] == state else None

    @property
    def has_files(self) -> bool:
        """Whether any value is the path of a file."""
        return bool((self.states == FILE).any())


@dataclass(frozen=True, slots=True)
class Watched:
    """The folders and files that decided the listing, with modification times (ns) from just before each was read."""

    paths: Strings
    stamps: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ContainerRows:
    """A container whose records, in its order, are the images of a source.

    `fields` maps each field beside an image to the field that it becomes; `upright` are those of the latter that belong
    to upright pixels already. `state` changes when the container does. `sizes`: bytes of each image.
    """

    fields: Mapping[str, str]
    upright: tuple[str, ...]
    state: str
    sizes: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Versions:
    """Sizes in bytes and versions of objects as they were listed, by listing row; a local file has the version ""."""

    sizes: NDArray[np.uint64]
    etags: Strings

    def of(self, row: int) -> tuple[int, str]:
        """(size, version) of one object."""
        return int(self.sizes[row]), self.etags[row].decode()


@dataclass(frozen=True)
class Listing:
    """The images to pack or read, in packing order: split by split, inside a split in listing order.

    Indices count in packing order. Arrays are in listing order, except properties. `order` maps an index to its listing
    row; None means that both orders are equal. The files may have vanished. `objects` are those in object stores: of
    the images under the name "", and of files beside them by field.
    """

    root: Path | str  # a URL as text
    kind: str  # classes | flat | manifest | records
    classes: tuple[str, ...] | None
    splits: tuple[tuple[str, int, int], ...]  # (name, start, stop) in packing order; only "all" without splits
    paths: Strings  # of records: their keys
    listed_labels: NDArray[np.int32]
    watched: Watched
    class_order: str = "lexicographic"
    columns: tuple[Column, ...] = ()
    order: NDArray[np.int64] | None = None
    container: ContainerRows | None = None
    objects: Mapping[str, Versions] | None = None
    warnings: tuple[str, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)  # about left-out files that are usual beside images

    def __len__(self) -> int:
        return len(self.paths if self.order is None else self.order)

    def row(self, index: int) -> int:
        """The listing row of the image at `index`. Raises `IndexError`."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)} in {self.root}")
        return index if self.order is None else int(self.order[index])

    def path(self, index: int) -> bytes:
        """The path relative to `root`, in the file system's bytes; an absolute path of a manifest stays absolute."""
        return self.paths[self.row(index)]

    def file(self, index: int) -> bytes:
        """The path or URL to open."""
        return os.fsencode(join(os.fspath(self.root), os.fsdecode(self.path(index))))

    def size(self, index: int) -> int:
        """The size of the image in bytes. Raises `OSError` for an unreadable file."""
        if self.container is not None:
            return int(self.container.sizes[self.row(index)])
        if self.objects is not None and is_url(self.file(index)):
            return self.objects[""].of(self.row(index))[0]
        return os.stat(self.file(index)).st_size

    def label(self, index: int) -> int:
        """The class number, -1 without a label."""
        return int(self.listed_labels[self.row(index)])

    @property
    def unlabelled(self) -> int:
        """The number of images without a label."""
        labels = self.listed_labels if self.order is None else self.listed_labels[self.order]
        return int((labels < 0).sum())

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields beside the image: those that `extra` and `files` may return, or those of records."""
        return tuple(
            dict.fromkeys(self.container.fields.values()) if self.container else (each.field for each in self.columns)
        )

    def extra(self, index: int) -> dict[str, bytes]:
        """Fields of the record with values from the manifest's further columns; missing values have none."""
        if not self.columns:
            return {}
        row = self.row(index)
        values = ((column.field, column.at(row, PLAIN)) for column in self.columns)
        return {name: value for name, value in values if value is not None}

    @property
    def has_payloads(self) -> bool:
        """Whether samples may have more than an image: files beside it, or further fields of its record."""
        return bool(self.container and self.container.fields) or any(column.has_files for column in self.columns)

    def files(self, index: int) -> list[tuple[str, bytes]]:
        """(field, path) of each file beside the image; paths in the form of `path`."""
        row = self.row(index)
        paths = ((column.field, column.at(row, FILE)) for column in self.columns)
        return [(field, path) for field, path in paths if path is not None]

    def versions(self, index: int) -> list[tuple[int, str]]:
        """(size, version) of the image and of each of `files`, if any lie in object stores."""
        if self.objects is None:
            return []
        row = self.row(index)
        return [self.objects[name].of(row) for name in ("", *(field for field, _ in self.files(index)))]

    def shuffled(self, seed: int) -> Listing:
        """The same images with each split permuted; the order depends only on `seed` and the names of splits.

        Inside a split, `order.permutation.permuted` says which image comes at which place.
        """
        order = np.empty(len(self), np.int64)
        for name, start, stop in self.splits:
            for rows in steps(stop - start):
                places = np.arange(rows.start, rows.stop, dtype=np.int64)
                moved = start + permuted(stop - start, f"iofast shuffle {seed} {name}", places)
                order[start + rows.start : start + rows.stop] = moved if self.order is None else self.order[moved]
        return replace(self, order=order)

    def only(self, wanted: Collection[str]) -> Listing:
        """The images whose `printable` paths are `wanted`, with the same listing, classes and splits."""
        listed = np.array([printable(path) in wanted for path in self.paths], np.bool_)
        order = np.arange(len(self), dtype=np.int64) if self.order is None else self.order
        taken = listed[order]
        counts = ((name, int(taken[start:stop].sum())) for name, start, stop in self.splits)
        return replace(self, order=order[taken], splits=ranges(each for each in counts if each[1]))

    def fingerprint(self) -> str:
        """`sha256:<hex>` over the listing in this order, without the root and the contents of files.

        Of objects in stores it covers sizes and versions.
        """
        members: dict[str, object] = {
            "classes": self.classes,
            "splits": self.splits,
            "fields": self.fields,
            "order": self.order is not None,
        }
        members |= {} if self.container is None else {"held": [self.container.state, dict(self.container.fields)]}
        digest = hashlib.sha256(json.dumps(members).encode())
        for column in (self.listed_labels, self.order):
            digest.update(b"" if column is None else np.ascontiguousarray(column).data)
        for strings, states in ((self.paths, None), *((column.values, column.states) for column in self.columns)):
            digest.update(len(strings).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(strings.bounds).data)
            digest.update(strings.blob)
            digest.update(b"" if states is None else np.ascontiguousarray(states).data)
        for name, versions in sorted((self.objects or {}).items()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(versions.sizes).data)
            digest.update(versions.etags.blob)
        return f"sha256:{digest.hexdigest()}"


def split_rank(name: str) -> tuple[int, str]:
    """Sort key of splits in packing order."""
    return (SPLIT_ORDER.index(name) if name in SPLIT_ORDER else len(SPLIT_ORDER), name)


def printable(name: str | bytes) -> str:
    """A file name as text that can be printed and stored: bytes that are not UTF-8 become `\\xe9`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def few(names: Iterable[str], most: int = 5) -> str:
    """Names for a message: the first ones, and how many more there are."""
    names = [repr(printable(name))[1:-1] for name in names]
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def ranges(counts: Iterable[tuple[str, int]]) -> tuple[tuple[str, int, int], ...]:
    """(name, start, stop) of splits that follow each other, from their names and counts."""
    splits, start = [], 0
    for name, count in counts:
        splits.append((name, start, start + count))
        start += count
    return tuple(splits)
