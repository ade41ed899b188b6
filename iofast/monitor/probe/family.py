"""The processes below a training process, and which of them make batches.

torch names a worker's process pt_data_worker since 2.5. Where nobody is named so, a worker is what multiprocessing
started: a child with its parent's command line (fork), or with the start-up command of spawn or forkserver.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from iofast.monitor.probe.states import PROC, Gone, read_stat

WORKER: Final = "pt_data_worker"
_COMPILING: Final = (b"_inductor/compile_worker", b"torch._inductor.compile_worker")
_SPAWN: Final = b"from multiprocessing.spawn import spawn_main"
_FORKSERVER: Final = b"from multiprocessing.forkserver import main"
_STEADY: Final = 3  # reads of a command line after which it is not read again: an exec comes right after the fork
_MOST: Final = 4096  # processes below one


class Kin(NamedTuple):
    """A process below the training process. `role` as in ProcessFigures."""

    pid: int
    parent: int
    start_time: int
    name: str
    role: str


class Family:
    """Who is below `pid`. Command lines are remembered: reading one can wait for a process that waits for a disk."""

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self.pid = pid
        self._proc = proc
        self._lines: dict[tuple[int, int, str], tuple[bytes, int]] = {}
        self._seen: set[tuple[int, int, str]] = set()
        self._parents: dict[int, list[int]] | None = None

    def kin(self) -> list[Kin]:
        """Everybody below, parents first. Raises Gone where the process itself is gone."""
        own = read_stat(self.pid, self._proc)
        self._seen = set()
        line = self._line(self.pid, own.start_time, own.name)
        self._parents = (
            None if (self._proc / str(self.pid) / "task" / str(self.pid) / "children").exists() else self._all()
        )
        found: dict[int, Kin] = {}
        servers: set[int] = set()
        likely: set[int] = set()
        compiling: set[int] = set()
        queue = list(self._children(self.pid))
        for pid in queue:  # grows while it is walked
            if pid in found or len(found) >= _MOST:
                continue
            try:
                stat = read_stat(pid, self._proc)
            except Gone:
                continue
            words = self._line(pid, stat.start_time, stat.name)
            if stat.parent in compiling or any(part in words for part in _COMPILING):
                compiling.add(pid)
            elif _FORKSERVER in words and stat.parent not in servers:
                servers.add(pid)
            elif stat.parent in servers or (stat.parent == self.pid and (_SPAWN in words or words == line != b"")):
                likely.add(pid)
            role = "worker" if stat.name == WORKER and pid not in compiling else "other"
            found[pid] = Kin(pid, stat.parent, stat.start_time, stat.name, role)
            queue += self._children(pid)
        self._lines = {key: kept for key, kept in self._lines.items() if key in self._seen}
        if not any(kin.role == "worker" for kin in found.values()):
            found.update({pid: found[pid]._replace(role="worker") for pid in likely})
        return list(found.values())

    def _children(self, pid: int) -> Iterator[int]:
        """Of all threads: a child belongs to the thread that forked it."""
        if self._parents is not None:
            yield from self._parents.get(pid, ())
            return
        tasks = self._proc / str(pid) / "task"
        with contextlib.suppress(OSError):
            for task in tasks.iterdir():
                with contextlib.suppress(OSError, ValueError):
                    yield from map(int, (task / "children").read_bytes().split())

    def _all(self) -> dict[int, list[int]]:
        """Children of everybody, for a kernel that does not list them."""
        parents: dict[int, list[int]] = {}
        for entry in self._proc.iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(Gone):
                    parents.setdefault(read_stat(int(entry.name), self._proc).parent, []).append(int(entry.name))
        return parents

    def _line(self, pid: int, start_time: int, name: str) -> bytes:
        key = pid, start_time, name
        self._seen.add(key)
        line, count = self._lines.get(key, (b"", 0))
        if count < _STEADY:
            line = command_line(pid, self._proc)
            self._lines[key] = line, count + 1
        return line


def command_line(pid: int, proc: Path = PROC) -> bytes:
    """The words of a process's command, each ended by a zero; b"" where it has none or it may not be read."""
    with contextlib.suppress(OSError):
        return (proc / str(pid) / "cmdline").read_bytes()
    return b""
