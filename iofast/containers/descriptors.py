"""Descriptors: a process may have few (256 in some containers and on macOS).

Readers keep a bounded number of files open for later, and close them when no descriptor is left.
"""

from __future__ import annotations

import errno
import os
import resource
import weakref
from typing import Protocol

_PART = 8  # one reader gets this part of the process's descriptors
_TRIES = 3  # another thread may take a descriptor that was just closed


class Keeper(Protocol):
    """An object with open files that are not in use."""

    def let_go(self) -> None:
        """Close these files."""


_keepers: dict[int, weakref.ref[Keeper]] = {}  # by `id`; every change is one step, because there is no lock


def keep(keeper: Keeper) -> None:
    """Call `keeper.let_go`, as long as it lives, when this process has no descriptor left."""
    number = id(keeper)
    _keepers[number] = weakref.ref(keeper, lambda _: _keepers.pop(number, None))


def bounded(most: int) -> int:
    """`most` descriptors, or an eighth of the process's limit; at least 1 unless `most` is 0."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if soft == resource.RLIM_INFINITY else min(most, max(1, soft // _PART))


def opened(path: str | bytes, flags: int) -> int:
    """`os.open`. If no descriptor is left, close the files kept for later and try again."""
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
    """Advice to append to a message if no descriptor is left, otherwise empty."""
    if not none_left(error):
        return ""
    return f" (this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}: ulimit -n)"
