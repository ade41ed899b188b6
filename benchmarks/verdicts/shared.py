"""The memory that the training process and the simulated device share: a launch queue, counters, and a futex."""

import ctypes
import mmap
import os
import platform
from pathlib import Path
from typing import Final

SLOTS: Final = 8192  # launches whose end is still known: more than any queue holds
LAUNCHED, COMPLETED, WAITERS, CLOSING, HOST, READY = range(6)  # words of the header
_HEADER: Final = 512
_SLOT: Final = 3  # words: launched at, duration, ended at; monotonic nanoseconds
_WAIT, _WAKE = 0, 1
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}[platform.machine()]


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_SYSCALL = ctypes.CDLL(None, use_errno=True).syscall  # releases the GIL, as a driver's call does


class Shared:
    """The mapped file `path`, created by the training process and opened by the device."""

    def __init__(self, path: Path, *, make: bool = False) -> None:
        size = 8 * (_HEADER + _SLOT * SLOTS)
        if make:
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self.words = memoryview(self._map).cast("Q")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        if make:
            self.words[HOST] = os.getpid()

    def slot(self, number: int) -> int:
        """The first word of launch `number`."""
        return _HEADER + _SLOT * (number % SLOTS)

    def wait(self, word: int, value: int, seconds: float) -> None:
        """Sleep while `word` is `value`, at most `seconds`. Only the low half is compared: counters stay below 2^32."""
        limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        _SYSCALL(_FUTEX, ctypes.c_void_p(self.address + 8 * word), _WAIT, ctypes.c_uint32(value), ctypes.byref(limit))

    def wake(self, word: int) -> None:
        """Wake all that sleep on `word`."""
        _SYSCALL(_FUTEX, ctypes.c_void_p(self.address + 8 * word), _WAKE, 2**31 - 1, None)
