"""What this process did, and its file in the folder of the run, from which `iofast run` makes the report.

A file is written when the process starts, at most once a second while it works, and at its end. DataLoader may kill
its workers, so their end alone is not enough.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections import Counter
from contextlib import suppress
from types import FrameType
from typing import Any

FOLDER = "IOFAST_RUN_FOLDER"  # the variable with the folder of a run's reports
STRICT = "IOFAST_RUN_STRICT"  # the variable that makes a difference an error
_EVERY = 1.0  # seconds

_LIBRARIES = ("PIL", "torch", "torchvision", "timm", "numpy", "multiprocessing", "threading", "iofast")


class Notes:
    """Counts of this process. A forked child begins anew."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.counts: Counter[str] = Counter()
        self.nanoseconds: Counter[str] = Counter()
        self.whole: Counter[str] = Counter()  # images decoded as a whole, by the script's line
        self.left: dict[str, str] = {}  # what was left to the libraries, and why
        self.role = "process"
        self.written = 0.0


_notes = Notes()


def notes() -> Notes:
    """Return the notes of this process."""
    global _notes
    if _notes.pid != os.getpid():
        _notes = Notes()
        _write_at_end()
    return _notes


def count(what: str, number: int = 1) -> None:
    """Add to a count."""
    notes().counts[what] += number


def leave(what: str, why: str) -> None:
    """Note that something is left to the libraries of the script."""
    notes().left.setdefault(what, why)
    write()


def line_of_script() -> str:
    """Return file and line of the innermost frame that is not of a library: what asked for the pixels."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _LIBRARIES:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"


def start() -> None:
    """Report that this process runs; the end of it is noted, too."""
    write()
    _write_at_end()


def _write_at_end() -> None:
    atexit.register(write)
    if (util := sys.modules.get("multiprocessing.util")) is not None:  # its children skip atexit
        util.Finalize(None, write, exitpriority=0)


def write_sometimes() -> None:
    """Write the file if the last time is long enough ago."""
    if time.monotonic() - notes().written > _EVERY:
        write()


def write() -> None:
    """Write this process's file; nothing outside of a run. Never raises: a full disk must not end a training."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    own = notes()
    own.written = time.monotonic()
    path = os.path.join(folder, f"{own.pid}.json")
    with suppress(OSError):
        with open(f"{path}.new", "w") as file:
            json.dump(facts(own), file)
        os.replace(f"{path}.new", path)


def facts(own: Notes) -> dict[str, Any]:
    """Return what the report has of a process, as JSON types."""
    return {
        "pid": own.pid,
        "parent": os.getppid(),
        "arguments": sys.orig_argv[:8],
        "role": own.role,
        "counts": dict(own.counts),
        "nanoseconds": dict(own.nanoseconds),
        "decoded_whole_by_line": dict(own.whole.most_common(8)),
        "left_alone": own.left,
    }
