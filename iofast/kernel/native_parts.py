"""The native kernel's `part_batch`: arguments, results and errors are the twin's (parts.py)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iofast.kernel import _native
from iofast.kernel.contract import Parts, Payloads, by_check
from iofast.kernel.native_batch import SOURCE_DTYPES, Context, check_dtypes
from iofast.kernel.parts import check_parts


def part_batch(
    context: Context,
    source: Payloads,
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
        dtypes = (*SOURCE_DTYPES, np.int32, np.uint8, np.int64, np.int32, np.int32)
        check_dtypes("part_batch", columns, dtypes)
        height, width = size
        _native.part_batch(context.handle, *columns, width, height, first, last)
