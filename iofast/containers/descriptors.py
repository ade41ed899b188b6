"""Descriptors, where a process may have few: 256 in some containers and on macOS, shared by all that it has open.

What a reader keeps open for later takes a bounded part of them, and makes room where none is left.
"""

from __future__ import annotations

import errno
import os
import resource
import weakref
from typing import Protocol

_PART = 8  # readers that may keep as many as they like at the same time
_TRIES = 3  # another thread may take what was just given back


class Keeper(Protocol):
    """Has files open that nobody uses at the moment."""

    def let_go(self) -> None:
        """Close them."""


_keepers: dict[int, weakref.ref[Keeper]] = {}  # by identity; changed in one step each, for there is no lock


def keep(keeper: Keeper) -> None:
    """Have `keeper.let_go` called where this process has no descriptor left, as long as it lives."""
    number = id(keeper)
    _keepers[number] = weakref.ref(keeper, lambda _: _keepers.pop(number, None))


def bounded(most: int) -> int:
    """`most` descriptors, or an eighth of what the process may have; 1 at least unless `most` is 0."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if soft == resource.RLIM_INFINITY else min(most, max(1, soft // _PART))


def opened(path: str | bytes, flags: int) -> int:
    """`os.open`. Where no descriptor is left, what is kept for later is closed first."""
    for _ in range(_TRIES):
        try:
            return os.open(path, flags)
        except OSError as error:
            if not none_left(error):
                raise
            for each in list(_keepers.values()):
                if (keeper := each()) is not None:
                    keeper.let_go()
    return os.open(path, flags)


def none_left(error: OSError) -> bool:
    """Whether this process, or the machine, has no descriptor left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def advice(error: OSError) -> str:
    """What to do about it, to put behind the reason; nothing where it is something else."""
    if not none_left(error):
        return ""
    return f" (this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}: ulimit -n)"
