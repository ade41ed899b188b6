"""What the kernel says a thread is at, from files in /proc that stay open.

A file in /proc belongs to the thread it was opened for, so an open one can never answer for another thread that was
given the same number; and reading it again costs 2 µs, opening it by name costs more than that by itself.
"""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from iofast.monitor.snapshot import Doing

PROC: Final = Path("/proc")
TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

Kind = TypeVar("Kind")

_GONE: Final = "ZXx"
_BY_LETTER: Final = {"R": Doing.RUNNING, "D": Doing.DISK, "T": Doing.STOPPED, "t": Doing.STOPPED}
# What a thread sleeps in, by parts of the names of functions in kernels 4.15 to 6.18.
_BY_FUNCTION: Final = (
    ("futex", Doing.FUTEX),
    ("poll", Doing.QUEUE),  # poll_schedule_timeout, ep_poll, do_epoll_wait
    ("select", Doing.QUEUE),
    ("unix_stream", Doing.QUEUE),
    ("pipe_read", Doing.QUEUE),  # anon_pipe_read since 6.15
    ("pipe_wait", Doing.QUEUE),
)
# The same by the number of the system call, for kernels that do not tell the function. Reading is not here: what is
# read from, a pipe or a file, the number does not say.
_CALLS: Final = {
    "x86_64": {202: Doing.FUTEX, 449: Doing.FUTEX, **dict.fromkeys((7, 23, 232, 270, 271, 281, 441), Doing.QUEUE)},
    "aarch64": {98: Doing.FUTEX, 449: Doing.FUTEX, **dict.fromkeys((22, 72, 73, 441), Doing.QUEUE)},
}.get(platform.machine(), {})
_READS: Final = {"x86_64": (0, 19), "aarch64": (63, 65)}.get(platform.machine(), ())


class Gone(Exception):  # noqa: N818 (no failure: threads end)
    """The thread or process has ended, or is a zombie."""


class Stat(NamedTuple):
    """What the monitor uses of a `stat` file, of a thread or of a whole process."""

    name: str
    state: str
    parent: int
    major_faults: int
    cpu_s: float
    threads: int
    start_time: int
    processor: int | None


def parse_stat(raw: bytes) -> Stat:
    """Raises Gone for what is not a whole line."""
    try:
        end = raw.rindex(b")")  # a name may hold anything, also blanks and parentheses
        fields = raw[end + 2 :].split()
        return Stat(
            name=raw[raw.index(b"(") + 1 : end].decode(errors="replace"),
            state=chr(fields[0][0]),
            parent=int(fields[1]),
            major_faults=int(fields[9]),
            cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
            threads=int(fields[17]),
            start_time=int(fields[19]),
            processor=int(fields[36]) if len(fields) > 36 else None,
        )
    except (ValueError, IndexError):
        raise Gone from None


def read_stat(pid: int, proc: Path = PROC) -> Stat:
    """Of a process. Raises Gone where there is none, and for zombies."""
    try:
        found = parse_stat((proc / str(pid) / "stat").read_bytes())
    except OSError:
        raise Gone from None
    if found.state in _GONE:
        raise Gone
    return found


def sleeping_in(function: str) -> Doing:
    """What a sleep in this function of the kernel means."""
    return next((doing for part, doing in _BY_FUNCTION if part in function), Doing.ASLEEP)


def called(syscall: str, thread: Path) -> Doing | None:
    """The same from a line of `/proc/PID/syscall`; None where the line tells nothing. `thread`: its folder in /proc."""
    number, *arguments = syscall.split()
    if not number.isdigit():
        return Doing.RUNNING if number == "running" else None
    if int(number) in _READS and arguments:
        with contextlib.suppress(OSError, ValueError):
            if os.readlink(thread / "fd" / str(int(arguments[0], 16))).startswith("pipe:"):
                return Doing.QUEUE
    return _CALLS.get(int(number), Doing.ASLEEP)


class ProcFiles:
    """Files of one folder in /proc, opened when first read and then kept open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, int] = {}

    def read(self, name: str) -> bytes:
        """Raises Gone where the thread has ended, PermissionError where this user may not, other OSError."""
        try:
            file = self._open.get(name)
            if file is None:
                file = self._open[name] = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
            raw = os.pread(file, 4096, 0)
        except (FileNotFoundError, ProcessLookupError):
            raise Gone from None
        if not raw and name == "stat":
            raise Gone
        return raw

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def __del__(self) -> None:
        self.close()


class Thread:
    """A thread that is looked at again and again, and how often it was found in which state since the last `take`."""

    def __init__(self, tid: int, folder: Path, *, new: bool = False) -> None:
        """`new`: it began since the last take. Raises Gone."""
        self.tid = tid
        self.files = ProcFiles(folder)
        self.blind = False  # in its last look it slept, and nobody would say in what
        self._last = self.files.read("stat")
        self._cpu_s = 0.0 if new else parse_stat(self._last).cpu_s
        self.states: dict[str, int] = {}
        self.doings: dict[Doing, int] = {}

    def state(self) -> str:
        """One look: the letter of its state. Raises Gone."""
        self._last = raw = self.files.read("stat")
        letter = chr(raw[raw.rindex(b")") + 2])
        if letter in _GONE:
            raise Gone
        self.states[letter] = self.states.get(letter, 0) + 1
        return letter

    def look(self) -> Doing:
        """One look: what it is at. Raises Gone."""
        doing = _BY_LETTER.get(self.state()) or self._asleep()
        self.doings[doing] = self.doings.get(doing, 0) + 1
        return doing

    def _asleep(self) -> Doing:
        self.blind = False
        with contextlib.suppress(OSError):  # not allowed, or no descriptor left for it
            function = self.files.read("wchan").decode(errors="replace")
            if function not in ("0", ""):
                return sleeping_in(function)
        raw = self.files.read("stat")
        if raw[raw.rindex(b")") + 2] == ord("R"):  # woken up between the two files
            return Doing.RUNNING
        with contextlib.suppress(OSError):  # needs the right to trace
            doing = called(self.files.read("syscall").decode(errors="replace"), self.files.folder)
            if doing is not None:
                return doing
        self.blind = True
        return Doing.ASLEEP

    def take(self) -> tuple[float, dict[str, float], dict[Doing, float]]:
        """CPU seconds and shares of looks since the last `take`, by state and by what it was at. Also of one gone."""
        with contextlib.suppress(Gone):
            self._last = self.files.read("stat")
        before, self._cpu_s = self._cpu_s, parse_stat(self._last).cpu_s
        states, self.states = shares(self.states), {}
        doings, self.doings = shares(self.doings), {}
        return max(0.0, self._cpu_s - before), states, doings

    def scheduled(self) -> tuple[float, float] | None:
        """Seconds on a processor and waiting for one, since it began; None where the kernel does not count them."""
        try:
            ran, waited, *_ = self.files.read("schedstat").split()
            return int(ran) / 1e9, int(waited) / 1e9
        except (OSError, ValueError, Gone):
            return None

    def close(self) -> None:
        self.files.close()


def shares(counts: dict[Kind, int]) -> dict[Kind, float]:
    """Of the sum."""
    total = sum(counts.values())
    return {kind: count / total for kind, count in counts.items()} if total else {}
