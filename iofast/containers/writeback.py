"""`Writeback`: start writing to the disk early, so that the final fsync has little left to do."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Final

STEP: Final = 16 << 20  # bytes
_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h: start writing dirty pages, and do not wait


class Writeback:
    """A file that grows at its end. Only fsync makes it durable.

    A tar of 6,000 kept photographs takes 3.4 s instead of 3.8 (medians of 7 in turn on a noisy machine; TFRecord 3.8
    and 3.9).
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._begun = fd, 0

    def wrote(self, end: int) -> None:
        """Note that the file has `end` bytes now."""
        if end - self._begun >= STEP:
            begin = _begin()
            if begin is not None:
                begin(self._fd, self._begun, end - self._begun, _WRITE)  # fsync reports errors
            self._begun = end


@functools.cache
def _begin() -> Callable[[int, int, int, int], int] | None:
    """Linux's system call `sync_file_range`; None elsewhere."""
    if sys.platform != "linux":
        return None
    import ctypes

    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call
