"""Progress bars: tqdm's, on stderr where that is a terminal."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tqdm import tqdm


def open_bar(total: int, unit: str, desc: str | None = None, **options: Any) -> tqdm[NoReturn]:
    """A bar that vanishes when it is closed; nothing where stderr is no terminal. `options` are tqdm's own.

    Each has a lock of its own: a Ctrl-C that comes while tqdm takes the one that all of its bars share leaves that one
    taken, and whoever makes a bar later in the process waits for ever. None starts a thread; a user's bars keep theirs.
    """
    from tqdm import tqdm  # costs 30 ms, and what is in a cache needs none

    kind: type[tqdm[NoReturn]] = type("Bar", (tqdm,), {"monitor_interval": 0, "_lock": threading.RLock()})
    # miniters: tqdm would wait for as many as came between two redraws so far, and without its thread nobody tells it
    # that they come slower now
    return kind(total=total, unit=unit, desc=desc, miniters=1, leave=False, dynamic_ncols=True, disable=None, **options)
