"""Read a manifest file (CSV, TSV, text, JSON lines, Parquet) into columns of bytes; text is UTF-8."""

import codecs
import contextlib
import csv
import errno
import json
import os
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from iofast.containers.container_suffixes import PARQUET
from iofast.containers.manifest import MAX_FIELDS
from iofast.errors import SourceError, reason_of
from iofast.kernel.strangers import POINTER, is_pointer
from iofast.source.arrays import StringsWriter
from iofast.source.listing import printable
from iofast.source.suffixes import EXTENSIONS

MISSING, TEXT, JSON, BYTES = 0, 1, 2, 3  # kinds of values
MAX_COLUMNS = MAX_FIELDS - 2  # a record also has the fields for image and path
PATH_COLUMNS = ("path", "file", "file_name", "filename", "image")
_NAMELESS = ("path", "label")  # the columns of a list without a header
_DELIMITERS = (",", ";", "\t")
Row = tuple[int, dict[str, object]]  # line (row in Parquet, both from 1), value by column
PlacedRow = tuple[Path, int, dict[str, object]]  # the same, behind the file
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)  # that of UTF-32-LE begins like the first


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# `json.loads` and `json.dumps` with options construct a decoder or encoder per call: 3 of 10 us per line
_decode = json.JSONDecoder(parse_constant=_no_constant).decode
_encode = json.JSONEncoder(ensure_ascii=False, default=str, allow_nan=False).encode


class ColumnValues:
    """The values of one column as UTF-8 text, JSON text or bytes.

    After `finish`, `strings` has the values, missing ones empty, and `kinds` MISSING, TEXT, JSON or BYTES per row.
    """

    def __init__(self) -> None:
        self._values, self._kinds = StringsWriter(), bytearray()

    def __len__(self) -> int:
        return len(self._kinds)

    def add(self, value: object) -> None:
        """Append one value; None and NaN are missing. Raises `ValueError` for text that is not Unicode."""
        kind, data = TEXT, b""
        if type(value) is str:
            data = value.encode("utf-8", "surrogateescape")
        elif value is None or value != value:
            kind = MISSING
        elif isinstance(value, bytes):
            kind, data = BYTES, value
        else:
            kind = JSON
            data = _encode(value).encode()
        self._values.add(data)
        self._kinds.append(kind)

    def pad(self, rows: int) -> None:
        """Append missing values up to `rows`."""
        for _ in range(rows - len(self)):
            self.add(None)

    def finish(self) -> None:
        """Complete `strings` and `kinds`; no value can be added after this."""
        self.strings, self.kinds = self._values.finish(), np.frombuffer(self._kinds, np.uint8)

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        return zip(self.strings, self.kinds.tolist(), strict=True)


@dataclass(slots=True)
class Table:
    """One manifest file, or several as one, column by column."""

    path: Path
    columns: dict[str, ColumnValues] = field(default_factory=dict)
    lines: "array[int]" = field(default_factory=lambda: array("Q"))  # of each row
    files: dict[int, Path] = field(default_factory=dict)  # by the first row of each

    def __len__(self) -> int:
        return len(self.lines)

    def append(self, place: Path, line: int, values: dict[str, object]) -> None:
        """Add a row. Raises `SourceError` for too many columns, and for values that cannot be stored."""
        for name, value in values.items():
            cells = self.columns.get(name)
            if cells is None:
                if len(self.columns) >= MAX_COLUMNS:  # each takes memory for every row, even without a value
                    fail(self.path, line, f"more than {MAX_COLUMNS} different columns")
                cells = self.columns[name] = ColumnValues()
            if len(cells) < len(self):
                cells.pad(len(self))
            try:
                cells.add(value)
            except (ValueError, TypeError, RecursionError) as error:
                fail(place, line, f"column {printable_column(name)}: {error}")
        if not self.files or self.files[next(reversed(self.files))] != place:
            self.files[len(self)] = place
        self.lines.append(line)

    def fail(self, row: int, message: str) -> NoReturn:
        """Raise `SourceError` about one row."""
        fail(self.files[max(first for first in self.files if first <= row)], self.lines[row], message)


def fail(path: Path, line: int, message: str) -> NoReturn:
    """Raise `SourceError` about one line of a manifest (one row of a Parquet file)."""
    raise SourceError(f"{path}, {'row' if path.suffix.lower() == PARQUET else 'line'} {line}: {message}")


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of one manifest file. Raises `SourceError`, and what reading text raises."""
    check_file(path)
    return _READERS[path.suffix.lower()](path)


def read_table(path: Path, rows: Iterable[PlacedRow] | None = None) -> Table:
    """Read a manifest whole, or `rows` instead of its own. Raises `SourceError` naming file and line."""
    table = Table(path)
    try:
        for place, line, values in rows or ((path, *row) for row in rows_of(path)):
            table.append(place, line, values)
    except OSError as error:
        raise SourceError(f"cannot read manifest {path}: {error.strerror or error}") from None
    except UnicodeError as error:
        raise SourceError(f"cannot read manifest {path}: its text is damaged ({error})") from None
    for cells in table.columns.values():
        cells.pad(len(table))
        cells.finish()
    if not len(table):
        raise SourceError(f"manifest {path} has no rows")
    return table


def printable_column(name: str) -> str:
    """A column's name in quotes, whatever its characters."""
    try:
        return repr(name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))
    except UnicodeEncodeError:  # half a surrogate pair, which JSON may contain
        return ascii(name)


def _read_delimited(path: Path, usual: str) -> Iterator[Row]:
    """Rows of text with a header, or of `path` and `label` without one.

    The delimiter is the first of `usual`, comma, semicolon and tab in the first line; without a header also a space.
    """
    check_text(path)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:  # a path may have any bytes
        first = next(filter(str.strip, file), "")
        file.seek(0)
        delimiter = next((each for each in (usual, *_DELIMITERS) if each in first), "")
        reader = csv.reader(file, delimiter=delimiter or usual, strict=True)
        rows = ((reader.line_num, row) for row in reader if row)
        if not delimiter and _is_image(_path_and_label(first)[0]):
            rows = ((line, _path_and_label(text)) for line, text in enumerate(file, 1) if text.strip())
        header: list[str] | None = None
        try:
            for line, row in rows:
                if header is None and not _is_headless(row):
                    header = [name.strip() for name in row]
                    if twice := next((name for name in header if name and header.count(name) > 1), None):
                        raise SourceError(f"{path} has two columns {printable_column(twice)}")
                    continue
                if header is None and len(row) > len(_NAMELESS):
                    fail(path, line, f"expected a path and a label, or names of columns, found {len(row)} values")
                header = header or list(_NAMELESS[: len(row)])
                if len(row) != len(header):
                    fail(path, line, f"expected {len(header)} columns as in the first line, found {len(row)}")
                yield line, {name: value or None for name, value in zip(header, row, strict=True)}
        except csv.Error as error:
            fail(path, reader.line_num, str(error))


def _path_and_label(line: str) -> list[str]:
    """The cells of a line `path label`; a path may have spaces, a label has none."""
    path, label = line.strip(), ""
    if not _is_image(path) and len(words := path.rsplit(None, 1)) == 2:
        path, label = words
    return [path, label]


def _is_image(cell: str) -> bool:
    return cell.strip().lower().endswith(EXTENSIONS)


def _is_headless(row: list[str]) -> bool:
    """Whether the first row of a list begins with an image. A name such as `mask.png` may stand beside `path`."""
    return _is_image(row[0]) and not any(name.strip().lower() in PATH_COLUMNS for name in row)


def _read_jsonl(path: Path) -> Iterator[Row]:
    for line, text in enumerate(lines(path), 1):
        if text.isspace():
            continue
        try:
            values = _decode(text.rstrip().decode("utf-8", "surrogatepass"))
        except json.JSONDecodeError as error:
            fail(path, line, f"not a JSON object: {error.msg} at column {error.colno}")
        except (ValueError, RecursionError) as error:
            fail(path, line, f"not a JSON object: {error}")
        if not isinstance(values, dict):
            fail(path, line, f"expected a JSON object, found {type(values).__name__}")
        yield line, values


def arrow(path: Path | str) -> Any:
    """The module pyarrow, which `path` needs. Raises `SourceError` if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SourceError(f"{path} needs pyarrow: pip install pyarrow") from None
    return pyarrow


@contextlib.contextmanager
def opened(path: Path | str, **options: Any) -> Iterator[Any]:
    """A `ParquetFile` with `options`. Raises `SourceError`, also for damage that is found within the block."""
    pyarrow = arrow(path)
    try:
        with pyarrow.parquet.ParquetFile(path, **options) as file:
            yield file
    except pyarrow.ArrowException as error:
        raise SourceError(f"{path} is not a Parquet file that can be read: {printable(reason_of(error))}") from None


def row_batches(file: Any, rows: int) -> Iterator[Any]:
    """Batches of up to `rows` rows of a `ParquetFile`."""
    for group in range(file.num_row_groups):  # one request for all groups keeps what was read of each
        yield from file.iter_batches(batch_size=rows, row_groups=[group])


def _read_parquet(path: Path) -> Iterator[Row]:
    """Number (from 1) and values of each row. Raises `SourceError`."""
    before = 0
    with opened(path) as file:
        if len(set(file.schema_arrow.names)) < len(file.schema_arrow.names):
            raise SourceError(f"{path} has two columns of the same name: {', '.join(file.schema_arrow.names):.200}")
        for batch in row_batches(file, 4096):
            try:
                rows: list[dict[str, object]] = batch.to_pylist()
            except (ValueError, ArithmeticError) as error:  # values without a Python type: years, text, nanoseconds
                raise SourceError(
                    f"{path} has a value that cannot be read from row {before + 1} on: {printable(reason_of(error))}"
                ) from None
            yield from enumerate(rows, before + 1)
            before += len(rows)


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise `OSError` unless this is a regular file and no Git LFS pointer. A pipe without a writer would block."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))
    if is_pointer(path, status.st_size):
        raise OSError(errno.EINVAL, f"it is {POINTER}", os.fspath(path))


def check_text(path: Path) -> None:
    """Raise `OSError` unless this is a regular file whose text can be UTF-8."""
    check_file(path)
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(_MARKS) or b"\0" in start:  # every second byte of ASCII characters in UTF-16
        raise OSError(errno.EINVAL, "its text is UTF-16 or UTF-32: save it as UTF-8", os.fspath(path))


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a text file, without byte order marks: joined files have one at the start of each.

    Raises `OSError`.
    """
    check_text(path)
    with path.open("rb") as file:
        yield from (line.removeprefix(codecs.BOM_UTF8) for line in file)


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": partial(_read_delimited, usual=","),
    ".tsv": partial(_read_delimited, usual="\t"),
    ".txt": partial(_read_delimited, usual="\t"),
    ".jsonl": _read_jsonl,
    PARQUET: _read_parquet,
}
SUFFIXES = tuple(_READERS)
