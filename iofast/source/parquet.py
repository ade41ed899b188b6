"""Read a Parquet file in batches of rows, and its columns of text and integers without a Python object each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.errors import SourceError, reason_of
from iofast.source.listing import printable

SUFFIX = ".parquet"
MISSING, TEXT, JSON, BYTES = 0, 1, 2, 3  # kinds of a manifest's values

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


def batches(path: Path) -> Iterator[Any]:
    """Batches of rows. Raises `SourceError`."""
    with opened(path) as file:
        if len(set(file.schema_arrow.names)) < len(file.schema_arrow.names):
            raise SourceError(f"{path} has two columns of the same name: {', '.join(file.schema_arrow.names):.200}")
        yield from row_batches(file, _ROWS)


def rows_of(path: Path, batch: Any, before: int) -> list[dict[str, object]]:
    """The rows of a batch, which follows `before` rows. Raises `SourceError`."""
    try:
        rows: list[dict[str, object]] = batch.to_pylist()
    except (ValueError, ArithmeticError) as error:  # values without a Python type: years, text, nanoseconds
        raise SourceError(
            f"{path} has a value that cannot be read from row {before + 1} on: {printable(reason_of(error))}"
        ) from None
    return rows


def texts(column: Any) -> tuple[memoryview, NDArray[np.uint64], NDArray[np.uint8]] | None:
    """The arguments of `ColumnText.extend` for an Arrow array of text or integers; None for other types."""
    import pyarrow
    import pyarrow.compute

    is_text = pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)
    if not is_text and not pyarrow.types.is_integer(column.type):
        return None
    empty, end = (pyarrow.scalar(text, pyarrow.large_string()) for text in ("", "\0"))
    values = column.cast(pyarrow.large_string()).fill_null("")
    joined = pyarrow.compute.binary_join_element_wise(values, empty, end)
    _, ends, blob = joined.buffers()
    bounds = np.frombuffer(ends, np.int64, len(joined) + 1, 8 * joined.offset)
    there = np.where(column.is_valid().to_numpy(zero_copy_only=False), np.uint8(TEXT if is_text else JSON), MISSING)
    return (
        memoryview(blob)[bounds[0] : bounds[-1]],
        (bounds[1:] - bounds[0]).astype(np.uint64),
        there.astype(np.uint8),
    )
