"""Having the disk begin with what was written while more is written, so that little is left when it must be durable."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Final

STEP: Final = 16 << 20  # bytes
_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h: begin with what is not being written yet, and do not wait


class Writeback:
    """The file of a descriptor, of which the first bytes, up to a place that rises, have been written.

    Nothing is promised: durable is what was fsynced. It only gives the disk something to do meanwhile: of 6,000 kept
    photographs a tar is made in 3.4 s instead of 3.8 (medians of 7 in turn on a noisy machine; TFRecord 3.8 and 3.9).
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._begun = fd, 0

    def wrote(self, end: int) -> None:
        """The file has so many bytes now."""
        if end - self._begun >= STEP:
            begin = _begin()
            if begin is not None:
                begin(self._fd, self._begun, end - self._begun, _WRITE)  # an error is fsync's to tell
            self._begun = end


@functools.cache
def _begin() -> Callable[[int, int, int, int], int] | None:
    """The system call, which only Linux has; None elsewhere."""
    if sys.platform != "linux":
        return None
    import ctypes

    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call
