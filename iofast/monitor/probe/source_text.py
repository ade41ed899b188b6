"""The watched program's source, read as text and never run: a stack does not name the C function that it is in."""

from __future__ import annotations

import os
import stat
from functools import lru_cache

from iofast.monitor.probe.calls import Call
from iofast.monitor.probe.loops import Loops

_LARGEST = 4 << 20
_LARGEST_PARSED = 1 << 20  # characters; 100,000 take 10 ms
_FILES = 64  # that are kept


class SourceText:
    """The source of one process, by the paths that the process knows.

    A file is read once: when it is edited later, the program still runs what it read.
    """

    def __init__(self, pid: int) -> None:
        self._root = f"/proc/{pid}/root"  # the program may live in a container with files of its own
        try:
            self._root = "" if os.path.samestat(os.stat(self._root), os.stat("/")) else self._root
        except OSError:
            self._root = ""
        self._lines = lru_cache(_FILES)(self.read)
        self._loops = lru_cache(_FILES)(self._parse)

    def line(self, call: Call) -> str:
        """The line that a call is at; "" where it cannot be read."""
        lines = self._lines(call.path)
        return lines[call.line - 1] if 0 < call.line <= len(lines) else ""

    def loops(self, call: Call) -> Loops:
        """The training loops of the file that a call is in; none where it cannot be read."""
        return self._loops(call.path)

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

    def _parse(self, path: str) -> Loops:
        text = "\n".join(self._lines(path))
        return Loops(text if len(text) <= _LARGEST_PARSED else "")
