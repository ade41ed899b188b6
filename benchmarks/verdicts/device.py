"""The simulated device: runs launches one after the other, each for the time it was given, and publishes its busy time.

    python -m benchmarks.verdicts.device FOLDER MICROSECONDS    (of a utilisation sample)

A launch starts at the end of the one before it, or when it was launched if that was later, and ends its duration after
that: the timeline follows from the launches alone, however late this process wakes up. `FOLDER/busy.bin` gets the
timeline, pairs of monotonic nanoseconds; the stand-in NVML reads the busy share of each period from `FOLDER/ring.bin`.
Launches come through `FOLDER/queue.bin`, which the training process maps too (host.py).
"""

import contextlib
import ctypes
import mmap
import os
import platform
import struct
import sys
import time
from array import array
from collections import deque
from pathlib import Path
from typing import Final

import psutil

SLOTS: Final = 8192  # launches whose end is still known: more than any queue holds
LAUNCHED, COMPLETED, WAITERS, CLOSING, HOST, READY = range(6)  # words of the header
_HEADER: Final = 512
_SLOT: Final = 3  # words: launched at, duration, ended at; monotonic nanoseconds
_WAIT, _WAKE = 0, 1
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_RING: Final = 1024  # samples
_ENTRY: Final = struct.Struct("<QII")
_HEAD: Final = struct.Struct("<8sIIQ")


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_SYSCALL = ctypes.CDLL(None, use_errno=True).syscall  # releases the GIL, as a driver's call does


class Shared:
    """The launch queue, counters and a futex in the file `path`, which the training process makes."""

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


class Ring:
    """The samples that the stand-in NVML reads."""

    def __init__(self, path: Path, period_us: int) -> None:
        path.write_bytes(_HEAD.pack(b"NVMLRING", _RING, period_us, 0).ljust(_HEAD.size + _RING * _ENTRY.size, b"\0"))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.count = 0

    def add(self, end_us: int, busy: float) -> None:
        """One period that ended at `end_us` of the wall clock."""
        percent = min(100, max(0, round(100 * busy)))
        _ENTRY.pack_into(self._map, _HEAD.size + self.count % _RING * _ENTRY.size, end_us, percent, 0)
        self.count += 1
        struct.pack_into("<Q", self._map, 16, self.count)


class Timeline:
    """The busy intervals, and the periods that are full."""

    def __init__(self, ring: Ring, period_us: int) -> None:
        self.busy = array("Q")
        self._ring, self._period = ring, 1000 * period_us
        self._recent: deque[tuple[int, int]] = deque()
        self._to_wall = time.time_ns() - time.monotonic_ns()
        self.boundary = time.monotonic_ns() + self._period

    def add(self, start: int, end: int) -> None:
        """The device is, or will be, busy from `start` to `end`."""
        self._recent.append((start, end))
        if self.busy and self.busy[-1] == start:
            self.busy[-1] = end
        else:
            self.busy.extend((start, end))

    def publish(self, now: int) -> None:
        """Add the samples of all periods that have ended."""
        while self.boundary <= now:
            since, until = self.boundary - self._period, self.boundary
            busy = sum(max(0, min(end, until) - max(start, since)) for start, end in self._recent)
            self._ring.add((until + self._to_wall) // 1000, busy / self._period)
            while self._recent and self._recent[0][1] <= until:
                self._recent.popleft()
            self.boundary += self._period


def run(folder: Path, period_us: int) -> None:
    """Run launches until the host closes the queue or ends."""
    shared = Shared(folder / "queue.bin")
    timeline = Timeline(Ring(folder / "ring.bin", period_us), period_us)
    words, end, done = shared.words, 0, 0
    words[READY] = 1
    while psutil.pid_exists(words[HOST]):
        now = time.monotonic_ns()
        if words[LAUNCHED] == done:
            timeline.publish(now)  # a launch that comes now begins later
            if words[CLOSING]:
                break
            shared.wait(LAUNCHED, done, max(0.0, (timeline.boundary - now) / 1e9))
            continue
        slot = shared.slot(done)
        start = max(end, words[slot])
        end = start + words[slot + 1]
        if end > start:
            timeline.add(start, end)
        while (now := time.monotonic_ns()) < end:
            timeline.publish(now)
            time.sleep((min(end, timeline.boundary) - now) / 1e9)
        words[slot + 2] = end
        done += 1
        words[COMPLETED] = done
        if words[WAITERS]:
            shared.wake(COMPLETED)
    with (folder / "busy.part").open("wb") as file:
        timeline.busy.tofile(file)
    (folder / "busy.part").rename(folder / "busy.bin")


def main() -> None:
    folder, period_us = Path(sys.argv[1]), int(sys.argv[2])
    if os.fork():  # a monitor looks through the children of the training process
        sys.exit()
    os.setsid()
    with contextlib.suppress(OSError):
        os.nice(-15)  # a real device does not wait for a processor
    run(folder, period_us)


if __name__ == "__main__":
    main()
