"""A manifest file as a source: its images, with labels, splits and further fields.

Paths are relative to the manifest's folder; `..`, absolute paths and URLs are allowed, since the file is the user's own
and images are only read. Each further column becomes a field of the records. A column name with an extension is the
field's name (`boxes.json`); otherwise `.txt` is added if all values are text, `.bin` if they are bytes, else `.json`.

Metadata files of Hugging Face's imagefolder are lists beside the images of a folder, or of each of its splits.
"""

import json
import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iofast.containers.manifest import WHOLE, check_split_name
from iofast.errors import ContainerError, OptionError, SourceError
from iofast.option import CLASS_ORDERS
from iofast.record import check_field
from iofast.remote.urls import RemotePath
from iofast.source.arrays import Strings, stable_order
from iofast.source.attached import field_name
from iofast.source.classes import CLASS_FILE
from iofast.source.labels import LABEL_COLUMNS, Labels, are_numbers, class_names, numbers_and_names, read_labels, unused
from iofast.source.listing import (
    FILE,
    MISSING,
    PLAIN,
    Column,
    Listing,
    Versions,
    Watched,
    few,
    printable,
    ranges,
    split_rank,
)
from iofast.source.options import SourceOptions, names_of
from iofast.source.table import (
    BYTES,
    JSON,
    PATH_COLUMNS,
    SUFFIXES,
    TEXT,
    ColumnValues,
    PlacedRow,
    Table,
    printable_column,
    read_table,
    rows_of,
)

__all__ = ["SUFFIXES", "read_manifest"]

SPLIT_COLUMNS = ("split",)

_INDEX_COLUMN = re.compile(r"|__index_level_[0-9]+__", re.ASCII)  # the row index that pandas writes
PATH_COLUMN, SPLIT_COLUMN = "file_name", "split"


def read_manifest(
    path: Path, options: SourceOptions, root: str | None = None, rows: Iterable[PlacedRow] | None = None
) -> Listing:
    """The images of a manifest file, or of `rows`. Raises `SourceError` naming file and line.

    Paths are relative to the URL `root` if that is given. Sizes and versions of objects are asked for; that may raise
    `StorageError`.
    """
    if options.fields:
        raise OptionError(f"fields are files beside images in a folder, found the manifest {path}: name its columns")
    watched = _watch(path, options)
    table = read_table(path, rows)
    path_column = _find(table, "path", options.path_column, PATH_COLUMNS)
    if path_column is None:
        raise SourceError(
            f"{path} has no column {' or '.join(PATH_COLUMNS)}: found {_columns(table)}; without a header, lines must "
            "be `path` or `path label`, and the first path must end like an image"
        )
    label_column = _find(table, "label", options.label_column, LABEL_COLUMNS)
    split_column = _find(table, "split", options.split_column, SPLIT_COLUMNS)
    if len({path_column, label_column, split_column} - {None}) < 3 - (label_column, split_column).count(None):
        raise SourceError(f"{path}: one column cannot be two of path {path_column!r}, label and split")
    paths = _paths(table, table.columns.pop(path_column))
    fields = [(name, _file_field(table, name, mask=True)) for name in names_of(options.mask_column)]
    fields += [(name, _file_field(table, name, mask=False)) for name in names_of(options.file_column)]
    splits, order = _splits(table, None if split_column is None else table.columns.pop(split_column))
    (labels, classes, warnings), class_order = _labels(table, label_column, options.class_order)
    ignored = [name for name in table.columns if _INDEX_COLUMN.fullmatch(name)]
    if ignored:
        warnings.append(f"columns without a name (a row index) left out: {len(ignored)}")
    fields += [(name, _field(table, name)) for name in table.columns if name not in ignored]
    columns = _distinct(path, fields)
    return Listing(
        root=path.parent if root is None else root,
        kind="manifest",
        classes=classes,
        splits=splits,
        paths=paths,
        listed_labels=labels,
        watched=watched,
        class_order=class_order,
        columns=columns,
        order=order,
        objects=_versions(table, root, paths, columns),
        warnings=tuple(warnings),
    )


def _versions(table: Table, root: str | None, paths: Strings, columns: Sequence[Column]) -> dict[str, Versions] | None:
    """`Listing.objects` of the images and of the files beside them; None if all are local. Raises `OptionError`."""
    named = {"": paths} | {column.field: column.values for column in columns if column.has_files}
    if root is None and not any(_has_urls(strings) for strings in named.values()):
        return None
    from iofast.source.objects import look_up  # here: local sources need no object stores

    for column, strings in named.items():
        for row, value in enumerate(strings if _has_urls(strings) else ()):
            if b"://" in value:
                try:
                    RemotePath.of(os.fsdecode(value))
                except OptionError as error:
                    where = f" of {column}" if column else ""
                    raise OptionError(f"{table.path}, line {table.lines[row]}: the path{where}: {error}") from None
    return {name: look_up(root or os.fspath(table.path.parent), strings) for name, strings in named.items()}


def _has_urls(strings: Strings) -> bool:
    return b"://" in bytes(strings.blob)


def _watch(path: Path, options: SourceOptions) -> Watched:
    files = [path, path.parent / CLASS_FILE] if options.class_order == "file" else [path]
    stamps = [file.stat().st_mtime_ns if file.exists() else 0 for file in files]
    return Watched(Strings.gather(bytes(Path(file.name)) for file in files), np.array(stamps, np.int64))


def _find(table: Table, what: str, wanted: str | None, usual: Sequence[str]) -> str | None:
    """The name of the column, None without one. Raises `SourceError` if `wanted` is missing or several are usual."""
    if wanted in table.columns:
        return wanted
    if wanted is not None:
        raise SourceError(f"{table.path} has no {what} column {wanted!r}: found {_columns(table)}")
    names = [name for name in table.columns if name.casefold() in usual]
    if len(names) > 1:
        raise SourceError(f"{table.path} has several {what} columns, choose one: {', '.join(names)}")
    return names[0] if names else None


def _columns(table: Table) -> str:
    return ", ".join(printable_column(name) for name in table.columns)


def _paths(table: Table, cells: ColumnValues) -> Strings:
    for row, (path, kind) in enumerate(cells):
        if not path or kind != TEXT:
            table.fail(row, "the path is empty" if not path else "the path is not text")
        if b"\0" in path:
            table.fail(row, "the path has a NUL byte")
    return cells.strings


def _check_text(table: Table, name: str, cells: ColumnValues) -> None:
    """Raise `SourceError` for text that is not UTF-8, which a CSV file may contain."""
    for row, (value, kind) in enumerate(cells):
        try:
            if kind != BYTES:
                value.decode()
        except UnicodeDecodeError:
            table.fail(row, f"column {name} is not UTF-8")


def _labels(table: Table, column: str | None, class_order: str) -> tuple[Labels, str]:
    """See `read_labels`, and the order of the classes; a list without a column of labels has -1 for all images."""
    pair = numbers_and_names(table.columns, table.columns) if column is None else None
    if pair and not are_numbers(table.columns[pair[0]]):
        pair = None
    column = pair[0] if pair else column
    if column is None:
        return (np.full(len(table), -1, np.int32), None, unused(table.columns, "--label-column")), class_order
    cells = table.columns.pop(column)
    _check_text(table, "label", cells)
    labels, classes, warnings = read_labels(cells, class_order, table.path, table.fail)
    if pair and classes is None:
        classes, told = class_names(labels, table.columns[pair[1]], pair[1])
        warnings += told
        if classes:
            del table.columns[pair[1]]
            class_order = CLASS_ORDERS[-1]
    return (labels, classes, warnings), class_order


def _splits(
    table: Table, cells: ColumnValues | None
) -> tuple[tuple[tuple[str, int, int], ...], NDArray[np.int64] | None]:
    """Split ranges in packing order, and the listing row of each position if that order differs from the rows'."""
    if cells is None or not cells.kinds.any():
        return ((WHOLE, 0, len(table)),), None
    values, rows = [], dict[bytes, int]()  # each split, and the row that names it first
    for row, (value, kind) in enumerate(cells):
        values.append(value.strip())
        if kind != TEXT or values[-1] == WHOLE.encode():
            table.fail(row, f"expected the name of a split, in each row or in none, and not {WHOLE!r}")
        rows.setdefault(values[-1], row)
    for value, row in rows.items():
        try:
            check_split_name(value.decode("utf-8", "backslashreplace"))
        except ContainerError as error:
            table.fail(row, str(error))
    names = sorted((value.decode() for value in rows), key=split_rank)
    ranks = {name.encode(): rank for rank, name in enumerate(names)}
    counts, order = stable_order(np.array([ranks[value] for value in values], np.int32), len(names))
    return ranges(zip(names, counts, strict=True)), order


def _file_field(table: Table, name: str, *, mask: bool) -> Column:
    """A field from a column whose values are paths of files. Raises `SourceError`."""
    if name not in table.columns:
        raise SourceError(f"{table.path} has no column {name!r} for files: found {_columns(table)}")
    cells = table.columns.pop(name)
    values, kinds = cells.strings, cells.kinds
    for row in np.flatnonzero((kinds != TEXT) & (kinds != MISSING))[:1].tolist():
        table.fail(row, f"column {printable_column(name)}: a path must be text")
    suffixes = {os.path.splitext(value)[1].lower() for value in values if value}
    legal = _legal(name)
    if mask:
        legal = f"{legal.removesuffix('.png')}.png"
    elif "." not in legal and suffixes != {b"." + legal.encode()}:  # a column `txt` of .txt files is the field `txt`
        legal += printable(next(iter(suffixes))) if len(suffixes) == 1 and suffixes != {b""} else ".bin"
    try:
        field = field_name(legal, name)
    except OptionError as error:
        raise SourceError(f"{table.path}: column {printable_column(name)}: {error}") from None
    return Column(field, values, np.where(kinds == MISSING, MISSING, FILE).astype(np.uint8))


def _distinct(path: Path, fields: Sequence[tuple[str, Column]]) -> tuple[Column, ...]:
    """The columns of `fields`, pairs with their names. Raises `SourceError` if two become one field."""
    taken: dict[str, str] = {}
    for name, column in fields:
        if column.field in taken:
            names = few((taken[column.field], name))
            raise SourceError(f"{path}: columns {names} would both become the field {column.field!r}")
        taken[column.field] = name
    return tuple(column for _, column in fields)


def _field(table: Table, name: str) -> Column:
    """A field from a column of values. Raises `SourceError`."""
    cells = table.columns[name]
    kinds = {*np.unique(cells.kinds).tolist()} - {MISSING}
    if BYTES in kinds and len(kinds) > 1:
        raise SourceError(f"{table.path}: column {printable_column(name)} mixes bytes with other values")
    _check_text(table, printable_column(name), cells)
    values = cells.strings
    if kinds == {TEXT, JSON}:  # then text is JSON, too
        values = Strings.gather(
            json.dumps(value.decode(), ensure_ascii=False).encode() if kind == TEXT else value for value, kind in cells
        )
    return Column(
        _field_name(table, name, kinds), values, np.where(cells.kinds == MISSING, MISSING, PLAIN).astype(np.uint8)
    )


def _legal(name: str) -> str:
    """A column's name with only characters that the name of a field may have."""
    return re.sub(r"[^0-9a-z_.-]+", "_", name.strip().lower())


def _field_name(table: Table, name: str, kinds: set[int]) -> str:
    legal = _legal(name)
    if "." not in legal:
        legal += ".json" if JSON in kinds else ".bin" if BYTES in kinds else ".txt"
    try:
        if not re.search("[0-9a-z]", legal.rpartition(".")[0]):
            raise ContainerError("it has no letter or digit")
        return check_field(legal)
    except ContainerError as error:
        raise SourceError(f"{table.path}: column {printable_column(name)} cannot become a field: {error}") from None


def read_metadata(root: Path, names: Sequence[str], images: bytes, options: SourceOptions, *, splits: bool) -> Listing:
    """The images of all rows of the metadata files `names` below `root`, and those of `images` without a row.

    `images` are paths relative to `root`, each followed by a NUL. With `splits`, the first folder of each path is its
    split. Raises as `read_manifest` does.
    """
    missing = 0

    def place(path: str) -> dict[str, object]:
        split: dict[str, object] = {SPLIT_COLUMN: path.partition("/")[0]} if splits else {}
        return {PATH_COLUMN: path, **split}

    def rows() -> Iterator[PlacedRow]:
        nonlocal missing
        listed = set[str]()
        for name in names:
            for line, values in rows_of(root / name):
                if isinstance(path := values.get(PATH_COLUMN), str):
                    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
                    listed.add(path)
                    values |= place(path)
                yield root / name, line, values
        unlisted = [path for path in os.fsdecode(images).split("\0")[:-1] if path not in listed]
        missing = len(unlisted)
        yield from ((root, 1, place(path)) for path in unlisted)

    source = read_manifest(root / names[0], options, rows=rows())
    warnings = [f"images without a row in {few(names)}: {missing:,}"] if missing else []
    return replace(source, root=root, kind="metadata", warnings=(*source.warnings, *warnings))


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
