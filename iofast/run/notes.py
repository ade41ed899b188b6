"""What this process did, and its file in the folder of the run, from which `iofast run` makes the report.

A file is written when the process starts, at most ten times a second while it works (0.1 ms each), and at its end.
Workers may be killed, as persistent ones of DataLoader are where the script ends, so their end alone is not enough.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import time

TYPE_CHECKING = False  # typing's own would import typing: this module is part of the start of every process
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

FOLDER = "IOFAST_RUN_FOLDER"  # the variable with the folder of a run's reports
STRICT = "IOFAST_RUN_STRICT"  # the variable that makes a difference an error
_EVERY = 0.1  # seconds

_LIBRARIES = ("PIL", "torch", "torchvision", "timm", "numpy", "multiprocessing", "threading", "iofast")


class Notes:
    """What the report has of this process, under the same names. A forked child begins anew."""

    def __init__(self) -> None:
        from collections import Counter

        self.pid, self.parent = os.getpid(), os.getppid()
        self.arguments = sys.orig_argv[:8]
        self.counts: Counter[str] = Counter()
        self.nanoseconds: Counter[str] = Counter()
        self.decoded_whole_by_line: Counter[str] = Counter()  # images, by the script's line
        self.left_alone: dict[str, str] = {}  # what was left to the libraries, and why
        self.untested: list[str] = []  # libraries that iofast was not tested with, with their release
        self.loaders: dict[str, dict[str, Any]] = {}  # loops over DataLoaders, by the script's line


_notes: Notes | None = None
_written_at_end_of = 0  # the process whose end writes its file
_written = 0.0
_writing = _thread.allocate_lock()  # a thread writes now and then, the process at its end


def notes() -> Notes:
    """Return the notes of this process."""
    global _notes, _written, _writing
    if _notes is None or _notes.pid != os.getpid():
        _notes = Notes()
        _written, _writing = 0.0, _thread.allocate_lock()  # at a fork a thread of the parent may have had it
        _write_at_end()
    return _notes


def count(what: str, number: int = 1) -> None:
    """Add to a count."""
    notes().counts[what] += number


def leave(what: str, why: str) -> None:
    """Note that something is left to the libraries of the script."""
    notes().left_alone.setdefault(what, why)
    write()


def line_of_script(*, installed: bool = True) -> str:
    """Return file and line of the innermost frame that is of no library that iofast knows, or of no `installed` one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        known = str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES
        if not known and (installed or "-packages" not in frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "code of a library"


def start() -> None:
    """Report that this process runs: an empty file, which is written at its end, too."""
    if folder := os.environ.get(FOLDER):
        _replace(os.path.join(folder, f"{os.getpid()}.json"), "{}")
        _write_at_end()


def _write_at_end() -> None:
    global _written_at_end_of
    if _written_at_end_of == os.getpid():
        return
    _written_at_end_of = os.getpid()
    atexit.register(write)
    if (util := sys.modules.get("multiprocessing.util")) is not None:  # its children skip atexit
        util.Finalize(None, write, exitpriority=0)


def write_sometimes() -> None:
    """Write the file if the last time is long enough ago."""
    if time.monotonic() - _written > _EVERY:
        write()


def write() -> None:
    """Write this process's file; nothing outside of a run. Never raises: a full disk must not end a training."""
    global _written
    folder = os.environ.get(FOLDER)
    if not folder or _notes is None:  # nothing to note
        return
    own = notes()
    _written = time.monotonic()
    import json

    with _writing:
        _replace(os.path.join(folder, f"{own.pid}.json"), json.dumps(vars(own)))


def _replace(path: str, text: str) -> None:
    try:
        with open(f"{path}.new", "w") as file:
            file.write(text)
        os.replace(f"{path}.new", path)
    except OSError:
        return
