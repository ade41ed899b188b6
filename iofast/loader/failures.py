"""Samples that cannot be made: what becomes of them, who hears of it, and how many are too many."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

from iofast.errors import ErrorBudgetError

REMEMBERED = 1000  # failures kept with name and reason; all are counted

OnError = Literal["raise", "replace", "drop"]

_log = logging.getLogger("iofast")


class Failure(NamedTuple):
    """One sample that could not be made. `name` is file and key; `attempt` counts the replacements before it."""

    epoch: int
    position: int
    attempt: int
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Ledger:
    """The failures of the batches that a loader has returned: each is counted, logged and held against the budget once.

    What was made ahead and never returned is not in it. `max_errors` is how many one epoch may have.
    """

    def __init__(self, action: OnError, max_errors: int | None) -> None:
        self.errors = 0
        self.recent: deque[Failure] = deque(maxlen=REMEMBERED)
        self._action, self._max_errors = action, max_errors

    def add(self, failures: Sequence[Failure], before: int) -> int:
        """Take those of one batch; `before` is how many the epoch had. How many it has now.

        Raises `ErrorBudgetError` where these are too many.
        """
        done = "replaced" if self._action == "replace" else "dropped"
        for failure in failures:
            _log.warning("%s (%s at position %d of epoch %d)", failure, done, failure.position, failure.epoch)
        self.errors += len(failures)
        self.recent.extend(failures)
        total = before + len(failures)
        if failures and self._max_errors is not None and total > self._max_errors:
            raise ErrorBudgetError(
                f"{total} samples of epoch {failures[-1].epoch} could not be made, max_errors allows "
                f"{self._max_errors}; the last was {failures[-1]}"
            )
        return total
