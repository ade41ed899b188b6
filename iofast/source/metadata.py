"""Metadata files of Hugging Face's imagefolder: lists beside the images of a folder, or of each of its splits."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from iofast.source.labels import LABEL_COLUMNS
from iofast.source.listing import Listing, SourceOptions, few
from iofast.source.manifest_file import read_manifest
from iofast.source.table import PlacedRow, rows_of

PATH_COLUMN, SPLIT_COLUMN = "file_name", "split"


@dataclass(slots=True)
class Metadata:
    """The metadata files `names` below `root`. Their rows describe some of `images`, each path followed by a NUL.

    Paths are relative to `root`. With `splits`, the first folder of each path is its split.
    """

    root: Path
    names: Sequence[str]
    images: bytes
    splits: bool
    unlisted: int = 0

    def read(self, options: SourceOptions) -> Listing:
        """The images of all rows, and those without a row. Raises as `read_manifest` does."""
        source = read_manifest(self.root / self.names[0], options, rows=self.rows)
        missing = [f"images without a row in {few(self.names)}: {self.unlisted:,}"] if self.unlisted else []
        return replace(source, root=self.root, kind="metadata", warnings=(*source.warnings, *missing))

    def rows(self) -> Iterator[PlacedRow]:
        """The rows of all files, and one for each image without."""
        listed = set[str]()
        for name in self.names:
            for line, values in rows_of(self.root / name):
                if isinstance(path := values.get(PATH_COLUMN), str):
                    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
                    listed.add(path)
                    values |= self._place(path)
                yield self.root / name, line, values
        unlisted = [path for path in os.fsdecode(self.images).split("\0")[:-1] if path not in listed]
        self.unlisted = len(unlisted)
        yield from ((self.root / path, 1, self._place(path)) for path in unlisted)

    def _place(self, path: str) -> dict[str, object]:
        split: dict[str, object] = {SPLIT_COLUMN: path.partition("/")[0]} if self.splits else {}
        return {PATH_COLUMN: path, **split}


def usable(
    root: Path, names: Sequence[str], splits: Collection[str], options: SourceOptions, *, labelled: bool
) -> list[str]:
    """Those of the files `names` that lie at the root or in a split, and name images.

    If class folders give the labels (`labelled`), only files with a column of labels count.
    """
    found = []
    for name in names:
        if posixpath.dirname(name) in ("", *splits):
            columns = next((set(values) for _, values in rows_of(root / name)), set[str]())
            labels = any(column.casefold() in LABEL_COLUMNS or column == options.label_column for column in columns)
            found += [name] if PATH_COLUMN in columns and (labels or not labelled) else []
    return found
