"""Output that nobody takes any more: a pipe whose reader has seen enough, a terminal whose window was closed."""

from __future__ import annotations

import contextlib
import os
from typing import IO


def give_up(stream: IO[str]) -> None:
    """Let go of what `stream` could not be given: left in its buffer it would end Python with a status of its own."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
