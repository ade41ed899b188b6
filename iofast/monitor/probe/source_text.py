"""Lines of the watched program's source, read as text and never run: a stack does not name the C function it is in."""

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
    """The lines of one process's files, by the paths that it knows them by."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._root = f"/proc/{pid}/root"  # it may live in a container with files of its own
        try:
            self._root = "" if os.path.samestat(os.stat(self._root), os.stat("/")) else self._root
        except OSError:
            self._root = ""

    def __call__(self, call: Call) -> str:
        """The line that a call is at; "" where it cannot be read."""
        if not call.path.startswith("/"):
            return ""
        lines = _lines(self._root + call.path, self._pid)
        return lines[call.line - 1] if 0 < call.line <= len(lines) else ""

    def loops(self, call: Call) -> Loops:
        """The training loops of the file that a call is in; none where it cannot be read."""
        return _loops(self._root + call.path if call.path.startswith("/") else "", self._pid)


@lru_cache(maxsize=_FILES)
def _loops(path: str, pid: int) -> Loops:
    text = "\n".join(_lines(path, pid))
    return Loops(text if len(text) <= _LARGEST_PARSED else "")


@lru_cache(maxsize=_FILES)
def _lines(path: str, pid: int) -> tuple[str, ...]:  # noqa: ARG001 (a program that is started again reads again)
    """As they are when first asked for: a file that is edited meanwhile still reads as its program has it."""
    try:
        file = os.open(
            path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
        )  # a path may name a pipe, which must not hold us
    except (OSError, ValueError):
        return ()
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return ()
        with os.fdopen(os.dup(file), "rb") as opened:
            return tuple(opened.read(_LARGEST).decode("utf-8", "replace").split("\n"))
    except OSError:
        return ()
    finally:
        os.close(file)
