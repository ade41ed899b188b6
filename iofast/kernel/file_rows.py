"""Bytes of a file by position: the Python twin of src/read.c."""

from __future__ import annotations

import os
from itertools import repeat

import numpy as np
from numpy.typing import NDArray


def read_rows(fd: int, offsets: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """Read rows of `size` bytes at `offsets` (int64, (N,)) of an open file, as uint8 (N, size).

    Raises `EOFError` if the file ends inside a row, `OSError` if it cannot be read.
    """
    if size < 1:
        raise ValueError(f"size must be one byte or more, found {size}")
    rows = list(map(os.pread, repeat(fd), repeat(size), offsets.tolist()))
    for row, offset in zip(rows, offsets.tolist(), strict=True):
        if len(row) < size:
            raise EOFError(f"the file ends within {size} bytes from offset {offset} on")
    return np.frombuffer(bytearray().join(rows), np.uint8).reshape(len(rows), size)
