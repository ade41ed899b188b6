"""Output that nobody reads any more: a pipe whose reader has ended, a terminal whose window was closed."""

from __future__ import annotations

import contextlib
import os
from typing import IO


def give_up(stream: IO[str]) -> None:
    """Discard the unwritten text of `stream`: left in its buffer, it would end Python with another exit status."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
