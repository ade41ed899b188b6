"""The self-check: the first images of a process are made a second time, by the script's own libraries.

The script runs once. Where pixels of a checked image leave the lazy world, Pillow repeats the calls that the script
made; what it asks of a lazy tensor is also asked of torch's. Both are compared. To run `dataset[i]` twice instead would
draw twice from generators of the dataset's own, and count twice what it counts.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.run import notes

FIRST = 16  # images of each process
_COLD = 4  # of them whose time is not counted: libraries import and allocate
TESTED = {"PIL": ("13.0", "12.0"), "torchvision": ("0.28",), "torch": ("2.13",)}  # with other releases twice as many


class DifferenceError(RuntimeError):
    """A checked image differs from what Pillow and torch make of it (only with `--strict`)."""


def wanted() -> bool:
    """Count the next image among the checked ones, if it is one."""
    own = notes.notes()
    if own.counts["checked"] >= FIRST * (2 if own.untested else 1):
        return False
    own.untested = untested()
    own.counts["checked"] += 1
    own.counts["timed"] += own.counts["checked"] > _COLD
    return True


def untested() -> list[str]:
    """Return libraries of the script, with their release, that iofast was not tested with."""
    found = {name: str(getattr(sys.modules.get(name), "__version__", "")) for name in TESTED}
    return [f"{name} {own}" for name, own in found.items() if own and ".".join(own.split(".")[:2]) not in TESTED[name]]


def timed(make: Callable[[], Any]) -> Any:
    """Call what the script's libraries do, and add its processor time to theirs: other processes start meanwhile."""
    begun = time.thread_time_ns()
    try:
        return make()
    finally:
        if notes.notes().counts["timed"]:
            notes.notes().nanoseconds["shadow"] += time.thread_time_ns() - begun


def agree(ours: NDArray[Any], theirs: NDArray[Any], name: str) -> bool:
    """Compare pixels or values; if any differs, everything from here on is left to the script's libraries."""
    if ours.dtype == theirs.dtype and np.array_equal(ours, theirs):
        return True
    reason = f"{name} differs from what Pillow and torch make of it (at {notes.line_of_script()})"
    notes.count("differences")
    notes.leave("all further images", reason)
    if os.environ.get(notes.STRICT):
        raise DifferenceError(reason)
    return False


def failed() -> bool:
    """Whether a check of this process failed."""
    return notes.notes().counts["differences"] > 0
