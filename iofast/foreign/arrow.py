"""Tables with images as a Reader: Arrow files, as `datasets` saves them, and Parquet files, as on the Hugging Face Hub.

Images are a column of structs with the member `bytes`, or a binary column. Values of an uncompressed Arrow file are
read where they are, compressed ones are refused; of a Parquet file a copy is made, see `plain_copies`.
"""

from __future__ import annotations

import datetime
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from iofast.containers.columns import ABSENT
from iofast.containers.manifest import CLASS_ORDERS, MAX_FIELDS
from iofast.containers.open_files import OpenFiles
from iofast.errors import ContainerError, OptionError
from iofast.foreign.cached_index import MAX_RECORDS, ForeignIndex, Format, Same
from iofast.foreign.columns import LABEL_NAMES, TableColumn, fetch_from, index_of
from iofast.foreign.options import ForeignOptions
from iofast.foreign.plain_copies import is_plain, plain_copies, plain_table, read_instead
from iofast.foreign.table_files import TableFile, has_bytes, is_binary, is_image
from iofast.record import JSON_FIELD
from iofast.source.arrays import Strings
from iofast.source.labels import read_labels, unused
from iofast.source.listing import few
from iofast.source.table import Cells

Kind = Literal["image", "text", "bytes", "number"]


class Leaf(NamedTuple):
    """A column of values that each have a place in the file. `member`: of a struct, or empty."""

    name: str
    kind: Kind
    column: str
    member: str = ""
    dtype: str = "|u1"


@dataclass(frozen=True, slots=True)
class TableSchema:
    """What becomes of the columns of a table.

    `label` has class indices, `classes` their names; or it has text (`is_text`). Each of `leaves` becomes a field, and
    `others` members of the field `json`; `left_out` are sentences.
    """

    label: str | None
    is_text: bool
    classes: tuple[str, ...] | None
    leaves: tuple[Leaf, ...]
    others: tuple[str, ...]
    left_out: tuple[str, ...]


class ArrowTables(Format):
    """The rows of Arrow or Parquet files with one schema, in the order of the files."""

    name = "arrow"

    def __init__(self, files: Sequence[TableFile], options: ForeignOptions) -> None:
        if (others := sorted(set(options.names) - {"label"})) or options != ForeignOptions(dict(options.names)):
            found = f"names {others[0]}" if others else "others"
            raise OptionError(f"options of Arrow and Parquet: expected names label=COLUMN, found {found}")
        self.file_splits = [file.split for file in files]
        super().__init__([file.path for file in files], options)

    def words(self) -> list[bytes]:
        """See `Format.words`."""
        return [*super().words(), *map(os.fsencode, self.file_splits)]

    def is_readable(self, stamped: NDArray[np.int64]) -> bool:
        """Whether no copy is gone."""
        return all(map(os.path.exists, read_instead(self.paths, stamped)))

    def files(self, stamped: NDArray[np.int64]) -> OpenFiles:
        """The files that are read: these, or their copies."""
        return OpenFiles(read_instead(self.paths, stamped), SameOrCopy(self.paths, stamped))

    def scan(self, stamped: NDArray[np.int64]) -> ForeignIndex:
        """Copy what must be, and note the place of every value."""
        read = plain_copies(self.paths, stamped)
        schema = _schema(self.paths, read, self.options.names.get("label"))
        parts = [_read_file(read[number], number, schema, path) for number, path in enumerate(self.paths)]
        counts = np.array([part.rows for part in parts], np.int64)
        if counts.sum() > MAX_RECORDS:
            raise ContainerError(f"{self.paths[0]} …: {counts.sum()} rows, more than {MAX_RECORDS}")
        columns = [_column(leaf, [part.places[number] for part in parts]) for number, leaf in enumerate(schema.leaves)]
        for column in columns:
            if column.kind == "image" and len(column.file) and (column.file == ABSENT).all():
                raise ContainerError(
                    f"{self.paths[0]}: column {column.name!r} has no bytes of images, only paths: `push_to_hub` and "
                    "`save_to_disk` of `datasets` store the bytes"
                )
        labels, classes, warnings = _all_labels(schema, [part.labels for part in parts], self.paths[0])
        fetch, splits = fetch_from(self.files(stamped)), _splits(self.file_splits, counts)
        index = index_of(columns, np.cumsum(counts) - counts, fetch, splits, (*schema.left_out, *warnings), labels)
        texts = Strings.gather(text for part in parts for text in part.others) if schema.others else None
        return replace(index, classes=classes, class_order=CLASS_ORDERS[0 if schema.is_text else -1], json=texts)


class SameOrCopy(Same):
    """Compare an opened file with its stamp, unless it is a copy: its name has the stamp of its original."""

    def __call__(self, number: int, status: os.stat_result) -> None:
        if is_plain(self._paths[number]):
            super().__call__(number, status)


Places = tuple[NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint64]]  # file, offset, length of each value


class TablePart(NamedTuple):
    """What one file has: places by leaf, class indices, and the field `json` of each row."""

    rows: int
    places: list[Places]
    labels: list[Any]  # see `_labels`, one of each batch
    others: list[bytes]


def _schema(paths: Sequence[str], read: Sequence[str], label: str | None) -> TableSchema:
    """The meaning of the columns, which must be the same in all files. Raises `ContainerError`."""
    first, with_nulls = None, set[str]()
    for path, place in zip(paths, read, strict=True):
        with plain_table(place, path) as (schema, _, batches):
            if first is None:
                first = schema
            elif not schema.equals(first):
                raise ContainerError(f"{path} has other columns than {paths[0]}: open them as two data sets")
            for batch in batches:
                with_nulls |= {name for name in schema.names if batch.column(name).null_count}
    names = [] if first is None else first.names
    if len(set(names)) < len(names) or not 0 < len(names) <= MAX_FIELDS:
        raise ContainerError(f"{paths[0]} must have 1 to {MAX_FIELDS} columns, found {len(names)}, or two of one name")
    return _meaning(first, with_nulls, paths[0], label)


def _meaning(schema: Any, with_nulls: set[str], shown: str, label: str | None) -> TableSchema:
    classes = _classes(schema)
    numbers, texts = _label_columns(schema)
    if label is not None and label not in (*numbers, *texts):
        there = few((*numbers, *texts), 20) or "none"
        raise OptionError(f"{shown}: names label={label}: expected a column of text or whole numbers, found {there}")
    label = label or _label(numbers, texts, classes)
    leaves, others, left_out = list[Leaf](), list[str](), list[str]()
    for column in schema:
        found = _leaves(column, column.name in with_nulls)
        if column.name == label:
            continue
        if found is None:
            left_out.append(f"column {column.name!r} ({column.type}) is left out: bytes within other values")
        elif found:
            leaves += found
        else:
            others.append(column.name)
    if not leaves:
        raise ContainerError(f"{shown}: no column can be read, only {', '.join(schema.names):.200}")
    if label is None:
        left_out += unused((*numbers, *texts), "--names label=COLUMN")
    leaves.sort(key=lambda leaf: leaf.kind != "image")  # stable: the first image is the record's
    return TableSchema(label, label in texts, classes.get(label or ""), tuple(leaves), tuple(others), tuple(left_out))


def _leaves(column: Any, has_nulls: bool) -> list[Leaf] | None:
    """The values of an Arrow field that have places; empty if it has none, None for bytes that JSON cannot have."""
    import pyarrow

    name, kind, types = column.name, column.type, pyarrow.types
    if has_bytes(kind):
        path = kind.get_field_index("path")
        is_named = path >= 0 and types.is_string(kind.field(path).type)
        image = Leaf(name, "image", name, "bytes")
        return [image, Leaf(f"{name}_path", "text", name, "path")] if is_named else [image]
    if is_binary(kind):
        return [Leaf(name, "image" if is_image(column) else "bytes", name)]
    if types.is_string(kind) or types.is_large_string(kind):
        return [Leaf(name, "text", name)]
    is_number = types.is_integer(kind) or types.is_floating(kind)
    if is_number and not has_nulls and name.lower() != JSON_FIELD:  # that field has the other columns
        return [Leaf(name, "number", name, dtype=np.dtype(kind.to_pandas_dtype()).str)]
    return None if _has_binary(kind) else []


def _has_binary(kind: Any) -> bool:
    import pyarrow

    if pyarrow.types.is_dictionary(kind):
        return _has_binary(kind.value_type)
    within = [kind.field(number).type for number in range(kind.num_fields)]
    return is_binary(kind) or pyarrow.types.is_fixed_size_binary(kind) or any(map(_has_binary, within))


def _classes(schema: Any) -> dict[str, tuple[str, ...]]:
    """Names of classes by column, as `datasets` stores them in the schema's metadata."""
    try:
        told = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = {name: each for name, each in told.items() if isinstance(each, dict) and each["_type"] == "ClassLabel"}
        return {name: tuple(map(str, each["names"])) for name, each in found.items() if each.get("names")}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}  # written by another program


def _label_columns(schema: Any) -> tuple[list[str], list[str]]:
    """The columns of whole numbers, and those of text, perhaps by a dictionary."""
    import pyarrow

    types, numbers, texts = pyarrow.types, list[str](), list[str]()
    for column in schema:
        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        numbers += [column.name] if types.is_integer(column.type) else []
        texts += [column.name] if types.is_string(kind) or types.is_large_string(kind) else []
    return numbers, texts


def _label(numbers: Sequence[str], texts: Sequence[str], classes: Mapping[str, Sequence[str]]) -> str | None:
    """The column of labels: numbers with names of classes, else those with a usual name, else text with one."""
    named = [name for name in numbers if name in classes]
    usual = [name for name in named or numbers if name.lower() in LABEL_NAMES]
    return next(iter(usual or named or [name for name in texts if name.lower() in LABEL_NAMES]), None)


def _read_file(path: str, number: int, schema: TableSchema, shown: str) -> TablePart:
    """Note the places in file `number`."""
    places: list[list[tuple[NDArray[Any], NDArray[Any]]]] = [[] for _ in schema.leaves]
    labels, others, count = list[Any](), list[bytes](), 0
    size = os.path.getsize(path)
    with plain_table(path, shown) as (_, address, batches):
        for batch in batches:
            batch.validate(full=True)  # offsets that rise within their buffers, text that is UTF-8
            for leaf, found in zip(schema.leaves, places, strict=True):
                offset, length = _places(batch, leaf, address)
                if ((offset < 0) | (offset + length > size)).any():
                    raise ContainerError(f"{shown}: column {leaf.column!r} is compressed: save it without compression")
                found.append((offset, length))
            if schema.label is not None:
                labels.append(_labels(batch.column(schema.label), schema, shown))
            if schema.others:
                others += _as_json(batch, schema.others, shown, count)
            count += batch.num_rows
    joined = []
    for found in places:
        offset = np.concatenate([each for each, _ in found] or [np.empty(0, np.int64)])
        length = np.concatenate([each for _, each in found] or [np.empty(0, np.int64)])
        file = np.where(length < 0, np.uint32(ABSENT), np.uint32(number))
        joined.append((file, offset.astype(np.uint64), np.maximum(length, 0).astype(np.uint64)))
    return TablePart(count, joined, labels, others)


def _places(batch: Any, leaf: Leaf, address: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offset in the file and length of each value of a leaf, int64 (rows,) each; length -1 where there is none."""
    import pyarrow

    values = batch.column(leaf.column)
    there = _valid(values)
    if leaf.member:
        values = values.field(values.type.get_field_index(leaf.member))
        there &= _valid(values)
    buffers, rows = values.buffers(), np.arange(len(values) + 1, dtype=np.int64) + values.offset
    if leaf.kind == "number":
        size = np.dtype(leaf.dtype).itemsize
        starts, length = buffers[-1].address - address + size * rows[:-1], np.full(len(values), size, np.int64)
    else:
        is_large = pyarrow.types.is_large_binary(values.type) or pyarrow.types.is_large_string(values.type)
        bounds = np.frombuffer(buffers[1], np.int64 if is_large else np.int32)[rows].astype(np.int64)
        starts, length = bounds[:-1] + (buffers[2].address - address if buffers[2] else 0), np.diff(bounds)
    length = np.where(there, length, -1)
    return np.where(length > 0, starts, 0), length


def _valid(values: Any) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _all_labels(
    schema: TableSchema, parts: Sequence[Sequence[Any]], shown: str
) -> tuple[NDArray[np.int32] | None, tuple[str, ...] | None, list[str]]:
    """Labels of all rows, None without any; names of classes, and warnings. Raises `SourceError`, `ContainerError`."""
    batches = [batch for part in parts for batch in part]
    if schema.label is None:
        return None, None, []
    if not schema.is_text:
        return np.concatenate([*batches, np.empty(0, np.int32)]), schema.classes, []
    cells = Cells()
    for value in (each for batch in batches for each in batch):
        cells.add(value)
    cells.finish()

    def fail(row: int, message: str) -> NoReturn:
        raise ContainerError(f"{shown} …: row {row} of column {schema.label!r}: {message}")

    return read_labels(cells, CLASS_ORDERS[0], Path(shown), fail)


def _labels(values: Any, schema: TableSchema, shown: str) -> Any:
    """Class indices, -1 for none; of text the texts.

    Raises `ContainerError` for a number without a class.
    """
    if schema.is_text:
        return values.cast("large_string").to_pylist()
    numbers = values.cast("int64", safe=False).fill_null(-1).to_numpy(zero_copy_only=False)
    most = len(schema.classes) if schema.classes else 1 << 31
    if len(numbers) and (numbers.min() < -1 or numbers.max() >= most):
        raise ContainerError(
            f"{shown}: column {schema.label!r} must have class indices from 0 to {most - 1}, or -1 for none, found "
            f"{numbers.min()} to {numbers.max()}"
        )
    return np.asarray(numbers, np.int32)


def _as_json(batch: Any, columns: Sequence[str], shown: str, before: int) -> Iterator[bytes]:
    """The field `json` of each row: its columns that are no text, bytes or plain numbers."""
    try:
        rows = batch.select(list(columns)).to_pylist()
    except (ValueError, ArithmeticError) as error:  # values without a Python type
        raise ContainerError(f"{shown}: rows from {before} on have a value that cannot be read: {error}") from None
    for row in rows:
        yield json.dumps(_plain(row), ensure_ascii=False, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """A value as JSON has it: NaN and infinity become null, times and decimals text."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int) else str(value)


def _column(leaf: Leaf, parts: Sequence[Places]) -> TableColumn:
    """The places in several files as one column."""
    file, offset, length = (np.concatenate(each) for each in zip(*parts, strict=True))
    return TableColumn(leaf.name, leaf.kind, file, offset, length, leaf.dtype)


def _splits(names: Sequence[str], counts: NDArray[np.int64]) -> list[tuple[str, int, int]]:
    """Name, first row and end of each split; the files of a split follow each other."""
    ends, found = np.cumsum(counts).tolist(), dict[str, tuple[int, int]]()
    for name, count, end in zip(names, counts.tolist(), ends, strict=True):
        found[name] = (found.get(name, (end - count, 0))[0], end)
    return [(name, *bounds) for name, bounds in found.items()]
