"""The native kernel's `part_batch`: arguments, results and errors are the twin's (parts.py)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError
from iofast.kernel import _native
from iofast.kernel.contract import Parts, Source, by_check
from iofast.kernel.native import Context
from iofast.kernel.parts import check_parts

_DTYPES = (np.int32, np.uint64, np.uint64, np.uint32, np.uint8, np.int32, np.uint32)


def part_batch(
    context: Context,
    source: Source,
    boxes: NDArray[np.int32],
    size: tuple[int, int],
    parts: Parts,
    status: NDArray[np.int32],
    start: int,
    stop: int,
) -> None:
    """Rows [start, stop) in one call without the GIL."""
    check_parts(source, boxes, parts, status, start, stop)
    for part, first, last in by_check(source, start, stop):
        columns = (*part, boxes, parts.out, parts.places, parts.table, status)
        dtypes = (*_DTYPES, np.int32, np.uint8, np.int64, np.int32, np.int32)
        for column, dtype in zip(columns, dtypes, strict=True):
            if column is not None and column.dtype != dtype:
                raise OptionError(f"part_batch wants an array of {np.dtype(dtype)}, found {column.dtype}")
        height, width = size
        _native.part_batch(context.handle, *columns, width, height, first, last)
