"""Read a manifest file (CSV, TSV, JSON lines, Parquet) into columns of bytes."""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from iofast.containers.manifest import MAX_FIELDS
from iofast.errors import SourceError
from iofast.source.listing import Strings, printable
from iofast.source.text_files import check_file, encoding_of, lines

MISSING, TEXT, JSON, BYTES = 0, 1, 2, 3  # ColumnText.kinds
MAX_COLUMNS = MAX_FIELDS - 2  # a record also has the fields for image and path

Row = tuple[int, dict[str, object]]  # line (row in Parquet, both from 1), value by column


@dataclass(slots=True)
class ColumnText:
    """The values of one column: UTF-8 text, JSON text or bytes, each followed by a NUL."""

    blob: bytearray = field(default_factory=bytearray)
    ends: array[int] = field(default_factory=lambda: array("Q", [0]))
    kinds: bytearray = field(default_factory=bytearray)

    def add(self, value: object) -> None:
        """Append one value; None and NaN are missing. Raises `ValueError` for text that is not Unicode."""
        kind = TEXT
        if type(value) is str:
            self.blob += value.encode("utf-8", "surrogateescape")
        elif value is None or value != value:
            kind = MISSING
        elif isinstance(value, bytes):
            kind = BYTES
            self.blob += value
        else:
            kind = JSON
            self.blob += json.dumps(value, ensure_ascii=False, default=str, allow_nan=False).encode()
        self.blob.append(0)
        self.ends.append(len(self.blob))
        self.kinds.append(kind)

    def pad(self, rows: int) -> None:
        """Append missing values up to `rows`."""
        for _ in range(rows - len(self.kinds)):
            self.add(None)

    def strings(self) -> Strings:
        """The values; missing ones are empty."""
        return Strings(bytes(self.blob), np.array(self.ends, np.uint64))

    def states(self) -> NDArray[np.uint8]:
        """MISSING, TEXT, JSON or BYTES per row."""
        return np.frombuffer(bytes(self.kinds), np.uint8)


@dataclass(slots=True)
class Table:
    """One manifest file, column by column; `lines` has the line of each row in the file."""

    path: Path
    columns: dict[str, ColumnText] = field(default_factory=dict)
    lines: array[int] = field(default_factory=lambda: array("L"))

    def __len__(self) -> int:
        return len(self.lines)

    def fail(self, row: int, message: str) -> NoReturn:
        """Raise `SourceError` about one row."""
        fail(self.path, self.lines[row], message)


def fail(path: Path, line: int, message: str) -> NoReturn:
    """Raise `SourceError` about one line of a manifest (one row of a Parquet file)."""
    raise SourceError(f"{path}, {'row' if path.suffix.lower() == '.parquet' else 'line'} {line}: {message}")


def read_table(path: Path) -> Table:
    """Read a manifest whole. Raises `SourceError` naming file and line."""
    table = Table(path)
    try:
        check_file(path)
        for line, values in _READERS[path.suffix.lower()](path):
            _append(table, line, values)
    except OSError as error:
        raise SourceError(f"cannot read manifest {path}: {error.strerror or error}") from None
    except UnicodeError as error:
        raise SourceError(f"cannot read manifest {path}: its text is damaged ({error})") from None
    for cells in table.columns.values():
        cells.pad(len(table))
    if not len(table):
        raise SourceError(f"manifest {path} has no rows")
    return table


def _append(table: Table, line: int, values: dict[str, object]) -> None:
    for name, value in values.items():
        cells = table.columns.get(name)
        if cells is None:
            if len(table.columns) >= MAX_COLUMNS:  # each takes memory for every row, even without a value
                fail(table.path, line, f"more than {MAX_COLUMNS} different columns")
            cells = table.columns[name] = ColumnText()
        if len(cells.kinds) < len(table):
            cells.pad(len(table))
        try:
            cells.add(value)
        except (ValueError, TypeError, RecursionError) as error:
            fail(table.path, line, f"column {printable_column(name)}: {error}")
    table.lines.append(line)


def printable_column(name: str) -> str:
    """A column's name in quotes, whatever its characters."""
    try:
        return repr(name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))
    except UnicodeEncodeError:  # half a surrogate pair, which JSON may contain
        return ascii(name)


def _read_delimited(path: Path, delimiter: str) -> Iterator[Row]:
    encoding = encoding_of(path)
    errors = "surrogateescape" if encoding == "utf-8-sig" else "strict"  # a path may have any bytes
    with path.open(encoding=encoding, errors=errors, newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        try:
            for row in filter(None, reader):
                if header is None:
                    header = _checked_header(path, row)
                    continue
                if len(row) != len(header):
                    fail(path, reader.line_num, f"expected {len(header)} columns as in the header, found {len(row)}")
                yield reader.line_num, {name: value or None for name, value in zip(header, row, strict=True)}
        except csv.Error as error:
            fail(path, reader.line_num, str(error))


def _checked_header(path: Path, names: list[str]) -> list[str]:
    names = [name.strip() for name in names]
    seen: set[str] = set()
    for name in filter(None, names):
        if name in seen:
            raise SourceError(f"{path} has two columns {printable_column(name)}")
        seen.add(name)
    return names


def _read_jsonl(path: Path) -> Iterator[Row]:
    for line, text in enumerate(lines(path), 1):
        if text.isspace():
            continue
        try:
            values = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            fail(path, line, f"not a JSON object: {error}")
        if not isinstance(values, dict):
            fail(path, line, f"expected a JSON object, found {type(values).__name__}")
        yield line, values


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SourceError(f"{path} needs pyarrow: pip install pyarrow") from None
    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                for values in batch.to_pylist():
                    row += 1
                    yield row, values
    except pyarrow.ArrowException as error:
        raise SourceError(f"{path} is not a Parquet file that can be read: {_first_line(error)}") from None
    except (ValueError, ArithmeticError) as error:  # values without a Python type: years, text, nanoseconds
        raise SourceError(
            f"{path} has a value that cannot be read from row {row + 1} on: {_first_line(error)}"
        ) from None


def _first_line(error: Exception) -> str:
    return printable(next(iter(str(error).splitlines()), type(error).__name__))


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": partial(_read_delimited, delimiter=","),
    ".tsv": partial(_read_delimited, delimiter="\t"),
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
SUFFIXES = tuple(_READERS)
