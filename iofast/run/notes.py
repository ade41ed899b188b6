"""What this process did, and its file in the folder of the run, from which `iofast run` makes the report.

A file is written when the process starts, at most ten times a second while it works (0.1 ms each), and at its end.
Workers may be killed, as persistent ones of DataLoader are where the script ends, so their end alone is not enough.
"""

import _thread
import atexit
import os
import sys
import time
from collections import Counter
from contextlib import suppress
from types import FrameType
from typing import Any

FOLDER = "IOFAST_RUN_FOLDER"  # the variable with the folder of a run's reports
STRICT = "IOFAST_RUN_STRICT"  # the variable that makes a difference an error
_EVERY = 0.1  # seconds

_LIBRARIES = ("PIL", "torch", "torchvision", "timm", "numpy", "multiprocessing", "threading", "iofast")


class Notes:
    """What the report has of this process, under the same names. A forked child begins anew."""

    def __init__(self) -> None:
        self.pid, self.parent = os.getpid(), os.getppid()
        self.arguments = sys.orig_argv[:8]
        self.counts: Counter[str] = Counter()
        self.nanoseconds: Counter[str] = Counter()
        self.decoded_whole_by_line: Counter[str] = Counter()  # images, by the script's line
        self.left_alone: dict[str, str] = {}  # what was left to the libraries, and why
        self.untested: list[str] = []  # libraries that iofast was not tested with, with their release
        self.loaders: dict[str, dict[str, Any]] = {}  # loops over DataLoaders, by the script's line


_notes: Notes | None = None
_written = 0.0


def notes() -> Notes:
    """Return the notes of this process."""
    global _notes
    if _notes is None or _notes.pid != os.getpid():
        _notes = Notes()
        atexit.register(write)
        if (util := sys.modules.get("multiprocessing.util")) is not None:  # its children skip atexit
            util.Finalize(None, write, exitpriority=-10)  # behind the end of the threads that send batches
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


def write_sometimes() -> None:
    """Write the file if the last time is long enough ago."""
    if time.monotonic() - _written > _EVERY:
        write()


def write() -> None:
    """Write this process's file; nothing outside of a run. Never raises: a full disk must not end a training."""
    global _written
    _written = time.monotonic()
    if folder := os.environ.get(FOLDER):
        import json

        own = notes()
        path = os.path.join(folder, f"{own.pid}.json")
        with suppress(OSError, RuntimeError):  # another thread may be counting
            text = json.dumps(vars(own))
            with open(f"{path}.{_thread.get_ident()}", "w") as file:
                file.write(text)
            os.replace(file.name, path)
