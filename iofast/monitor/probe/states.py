"""What the kernel reports of processes and threads, from files in /proc.

An open file in /proc belongs to the thread that it was opened for: it never answers for a later thread with the same
number. Reading it again costs 2 µs, less than opening it by name.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from iofast.errors import IofastError
from iofast.monitor.snapshot import Doing, Looks

PROC = Path("/proc")  # tests have another one
TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

Kind = TypeVar("Kind")

_DEAD: Final = "ZXx"
_BY_LETTER: Final = {"R": Doing.RUNNING, "D": Doing.DISK, "T": Doing.STOPPED, "t": Doing.STOPPED}
# Parts of the names of the functions that a thread sleeps in, in kernels 4.15 to 6.18; anon_pipe_read since 6.15.
_QUEUES: Final = ("poll", "select", "unix_stream", "pipe_read", "pipe_wait")


class Gone(IofastError, ProcessLookupError):  # noqa: N818 (no failure: threads and jobs end)
    """The thread or process has ended, is a zombie, or its number belongs to another one now."""


class Stat(NamedTuple):
    """The part of a `stat` file that the monitor uses, of a thread or of a whole process."""

    name: str
    state: str
    parent: int
    major_faults: int
    cpu_s: float
    ended_cpu_s: float  # of its children that ended
    start_time: int
    processor: int | None


def folder(pid: int) -> Path:
    """Of a process in /proc."""
    return PROC / str(pid)


def parse_stat(raw: bytes) -> Stat:
    """Raises Gone for anything but a whole line."""
    try:
        end = raw.rindex(b")")  # a name may contain anything, also blanks and parentheses
        fields = raw[end + 2 :].split()
        return Stat(
            name=raw[raw.index(b"(") + 1 : end].decode(errors="replace"),
            state=chr(fields[0][0]),
            parent=int(fields[1]),
            major_faults=int(fields[9]),
            cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
            ended_cpu_s=(int(fields[13]) + int(fields[14])) / TICKS,
            start_time=int(fields[19]),
            processor=int(fields[36]) if len(fields) > 36 else None,
        )
    except (ValueError, IndexError):
        raise Gone(f"a process has ended while it was read: {raw[:64]!r}") from None


def read_stat(pid: int) -> Stat:
    """Raises Gone when there is no such process, and for zombies."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb", buffering=0) as file:  # half the price of Path.read_bytes()
            stat = parse_stat(file.read())
    except OSError:
        raise Gone(f"process {pid} has ended") from None
    if stat.state in _DEAD:
        raise Gone(f"process {pid} has ended")
    return stat


def process_table() -> dict[int, Stat]:
    """All processes, of every user, by pid."""
    table: dict[int, Stat] = {}
    for pid in (int(name) for name in os.listdir(PROC) if name.isdigit()):
        with contextlib.suppress(Gone):
            table[pid] = read_stat(pid)
    return table


def below(table: Mapping[int, Stat], roots: Collection[int]) -> set[int]:
    """All descendants of these processes."""
    found, grown = set[int](), set(roots)
    while grown:
        grown = {pid for pid, stat in table.items() if stat.parent in grown} - found
        found |= grown
    return found


def command_line(pid: int) -> bytes:
    """The words of a process's command, each ended by a zero; b"" where it has none or it cannot be read."""
    with contextlib.suppress(OSError):
        return (folder(pid) / "cmdline").read_bytes()
    return b""


def interpreted(words: list[str]) -> str:
    """What an interpreter runs, by the words of its command: a script, a module, or the text after -c."""
    rest = iter(words[1:])
    for word in rest:
        if word in ("-m", "-c"):
            return next(rest, "")
        if not word.startswith("-"):
            return word
        if word in ("-W", "-X"):
            next(rest, "")
    return words[0]


def doing_by_function(function: str) -> Doing:
    """What a sleep in this function of the kernel means."""
    if "futex" in function:
        return Doing.FUTEX
    return Doing.QUEUE if any(part in function for part in _QUEUES) else Doing.ASLEEP


class Thread:
    """A thread, and what its looks since the last `take` found.

    A file of its folder in /proc is opened by its first read and stays open as long as this object lives.
    """

    def __init__(self, tid: int, folder: Path, *, new: bool = False) -> None:
        """`new`: the thread began after the last `take`. Raises Gone."""
        self.tid, self.folder = tid, folder
        self._open: dict[str, int] = {}
        self._stat = self.read("stat")
        self._seconds = self._read()
        if new:
            self._seconds = dict.fromkeys(self._seconds, 0.0)
        self.states: Counter[str] = Counter()
        self.doings: Counter[Doing] = Counter()
        self.told = False  # whether the kernel ever said what it sleeps in

    def read(self, name: str) -> bytes:
        """Raises Gone when the thread has ended, PermissionError when this user may not read, other OSError."""
        try:
            if name not in self._open:
                self._open[name] = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
            raw = os.pread(self._open[name], 4096, 0)
        except (FileNotFoundError, ProcessLookupError):
            raise Gone(f"{self.folder} has ended") from None
        if not raw and name == "stat":
            raise Gone(f"{self.folder} has ended")
        return raw

    def __del__(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _read(self) -> dict[str, float]:
        """Seconds since its start; of an ended thread as they were at the last look."""
        with contextlib.suppress(Gone):
            self._stat = self.read("stat")
        seconds = {"ticks_s": parse_stat(self._stat).cpu_s}
        with contextlib.suppress(OSError, ValueError):
            ran, waited, *_ = self.read("schedstat").split()
            seconds |= {"cpu_s": int(ran) / 1e9, "runnable_s": int(waited) / 1e9}
        return seconds

    def state(self) -> str:
        """Look once: return the letter of its state. Raises Gone."""
        self._stat = raw = self.read("stat")
        letter = chr(raw[raw.rindex(b")") + 2])
        if letter in _DEAD:
            raise Gone(f"{self.tid} has ended")
        self.states[letter] += 1
        return letter

    def look(self) -> Doing:
        """Look once: return what it is doing. Raises Gone."""
        doing = _BY_LETTER.get(self.state()) or self._asleep()
        self.doings[doing] += 1
        return doing

    def _asleep(self) -> Doing:
        with contextlib.suppress(OSError):  # not allowed, or no descriptor left
            function = self.read("wchan").decode(errors="replace")
            if function not in ("0", ""):
                self.told = True
                return doing_by_function(function)
        # It woke up between the two files, or was about to sleep.
        awake = self.told or parse_stat(self.read("stat")).state == "R"
        return Doing.RUNNING if awake else Doing.UNSEEN

    def take(self) -> Looks:
        """What was found since the last call. Also for an ended thread."""
        before, self._seconds = self._seconds, self._read()
        seconds = grown(self._seconds, before)
        taken = Looks(self.doings.total(), shares(self.doings), states=shares(self.states), **seconds)
        self.states.clear()
        self.doings.clear()
        return taken


def grown(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Differences of the counts that were read both times; 0 for those that fell."""
    return {name: max(0, count - before[name]) for name, count in now.items() if name in before}


def ptrace_scope() -> str:
    """Yama's setting for reading another process's memory, 0 to 3; "" without Yama."""
    with contextlib.suppress(OSError):
        return (PROC / "sys/kernel/yama/ptrace_scope").read_text().strip()
    return ""


def shares(counts: Mapping[Kind, int]) -> dict[Kind, float]:
    """Each count divided by their sum; empty where all are 0."""
    total = sum(counts.values())
    return {kind: count / total for kind, count in counts.items()} if total else {}
