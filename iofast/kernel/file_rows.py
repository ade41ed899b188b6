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


def cached(fds: NDArray[np.int32], offsets: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether the bytes at `offsets` (N,) of open files `fds` (N,) are in the page cache: bool (N,). Does not block.

    True for fd -1, which is memory. False if the system or file system cannot report it. Only the native kernel
    detects files on a tmpfs.
    """
    return np.fromiter(map(_is_cached, fds.tolist(), offsets.tolist()), np.bool_, len(fds))


def _is_cached(fd: int, offset: int) -> bool:
    try:
        return fd == -1 or os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except (OSError, AttributeError):  # BlockingIOError, or no such file, flag or call
        return False
