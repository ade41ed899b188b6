"""Locks on single bytes of a file that belong to one opening of it: the kernel frees them when its process dies.

They exclude other openings, also those of this process, but not other threads with the same descriptor. A locked byte
need not exist.
"""

import errno
import fcntl
import struct

END = 1 << 62  # beyond all bytes that are locked

_FLOCK = struct.Struct("hhqqi4x")  # l_type, l_whence, l_start, l_len, l_pid


def try_lock(fd: int, byte: int) -> bool:
    """Lock a byte; False if another opening has it. Raises `OSError` where the file system has no locks."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock(fd: int, byte: int) -> None:
    """Unlock a byte."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, byte, 1, 0))


def locked_elsewhere(fd: int, start: int, stop: int = END) -> set[int]:
    """The bytes in [start, stop) that other openings have locked."""
    found, ranges = set[int](), [(start, stop)]
    while ranges:
        start, stop = ranges.pop()
        if start >= stop:
            continue
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, start, stop - start, 0))
        kind, _, first, length, _ = _FLOCK.unpack(answer)
        if kind != fcntl.F_UNLCK:  # the kernel tells any one of them; an opening's neighbouring bytes are one
            first, last = max(start, first), min(stop, first + length)
            found.update(range(first, last))
            ranges += [(start, first), (last, stop)]
    return found
