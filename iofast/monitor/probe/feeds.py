"""Where a stack of the training thread gets its batch, by the source of its functions.

The program's source is read as text and never run.
"""

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from iofast.monitor.probe.calls import Call
from iofast.monitor.probe.loops import Loop, Loops
from iofast.monitor.snapshot import WaitSite, WaitSource

_ITERATES = re.compile(r"\s*(async\s+)?for\b|.*\b(next|anext)\(")
_NEXT = frozenset({"__next__", "__anext__"})
_LARGEST = 4 << 20
_FILES = 64  # that are kept


class Feeds:
    """The source of one process, by the paths that the process knows: which functions train, where they get batches.

    A file is read once: when it is edited later, the program still runs what it read.
    """

    def __init__(self, pid: int) -> None:
        self._root = f"/proc/{pid}/root"  # the program may live in a container with files of its own
        try:
            self._root = "" if os.path.samestat(os.stat(self._root), os.stat("/")) else self._root
        except OSError:
            self._root = ""
        self._lines = lru_cache(_FILES)(self.read)
        self._loops = lru_cache(_FILES)(lambda path: Loops("\n".join(self._lines(path))))

    def line(self, call: Call) -> str:
        """The line that a call is at; "" where it cannot be read."""
        lines = self._lines(call.path)
        return lines[call.line - 1] if 0 < call.line <= len(lines) else ""

    def read(self, path: str) -> list[str]:
        """The lines of a file; none where it cannot be read, is no regular file, or is too large."""
        if not path.startswith("/"):
            return []
        try:  # a path may name a pipe, which must not block
            file = os.open(self._root + path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError):
            return []
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
                return []
            return os.read(file, _LARGEST).decode("utf-8", "replace").split("\n")
        except OSError:
            return []
        finally:
            os.close(file)

    def trains(self, calls: Sequence[Call], wait: WaitSite) -> bool:
        """Whether one of these functions is in a training loop, or runs an asyncio loop for one."""
        return bool(self._asyncio_loops(wait)) or any(
            loop.first <= call.line <= loop.last for call in calls for loop in self._loops_of(call)
        )

    def entry(self, calls: Sequence[Call], wait: WaitSite | None) -> int | None:
        """The place of the outermost function that is at a line where it gets its batch; None where there is none."""
        return next((place for place in range(len(calls) - 1, -1, -1) if self._gets(calls, place, wait)), None)

    def _gets(self, calls: Sequence[Call], place: int, wait: WaitSite | None) -> bool:
        call, callee, loops = calls[place], calls[place - 1].name if place else "", self._loops_of(calls[place])
        if any(call.line in loop.head for loop in loops):
            return True
        waits = (wait is not None and wait.source is not WaitSource.NONE) or callee in _NEXT
        gets = any(call.line in loop.gets for loop in loops)
        return gets and (waits or _ITERATES.match(self.line(call)) is not None)

    def _loops_of(self, call: Call) -> list[Loop]:
        """The training loops of the user's function that a call is in; none where its file cannot be read."""
        return self._loops(call.path).of(call.name) if call.user else []

    def awaits(self, wait: WaitSite) -> WaitSite | None:
        """The line at which an asyncio training waits for its batch while all its tasks sleep.

        No stack shows it, as a sleeping task is on none. None where the training may wait for something else as well.
        """
        loop = next(iter(self._asyncio_loops(wait)), None)
        if loop is None or not loop.fed:
            return None
        return replace(wait, line=loop.awaits[0], function=loop.function, call="asyncio")

    def _asyncio_loops(self, wait: WaitSite) -> list[Loop]:
        return self._loops(wait.file).run_at(wait.line) if wait.source is WaitSource.EVENTS else []
