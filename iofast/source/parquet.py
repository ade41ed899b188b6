"""Read a Parquet file in batches of rows."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iofast.errors import SourceError, reason_of
from iofast.source.listing import printable

_ROWS = 4096  # of a batch


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


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Number (from 1) and values of each row. Raises `SourceError`."""
    before = 0
    with opened(path) as file:
        if len(set(file.schema_arrow.names)) < len(file.schema_arrow.names):
            raise SourceError(f"{path} has two columns of the same name: {', '.join(file.schema_arrow.names):.200}")
        for batch in row_batches(file, _ROWS):
            try:
                rows: list[dict[str, object]] = batch.to_pylist()
            except (ValueError, ArithmeticError) as error:  # values without a Python type: years, text, nanoseconds
                raise SourceError(
                    f"{path} has a value that cannot be read from row {before + 1} on: {printable(reason_of(error))}"
                ) from None
            yield from enumerate(rows, before + 1)
            before += len(rows)
