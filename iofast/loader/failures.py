"""Samples that cannot be made: what becomes of them, who hears of it, and how many are too many."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from iofast.errors import ErrorBudgetError

REMEMBERED = 1000  # failures kept with name and reason; all are counted
EPOCHS = 8  # whose budgets are kept: iterators of as many may be in use at once

OnError = Literal["raise", "replace", "drop"]

_log = logging.getLogger("iofast")


@contextlib.contextmanager
def noted(where: str) -> Iterator[None]:
    """What a user's function raises in here gets a note that says where."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


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

    What was made ahead and never returned is not in it. `max_errors` is how many an epoch may have on this rank; an
    epoch that is gone on with goes on counting.
    """

    def __init__(self, action: OnError, max_errors: int | None) -> None:
        self.errors = 0
        self.recent: deque[Failure] = deque(maxlen=REMEMBERED)
        self._action, self._max_errors = action, max_errors
        self._epochs: dict[int, int] = {}  # the newest few

    def check(self, failures: Sequence[Failure]) -> None:
        """Raise `ErrorBudgetError` where a batch with these would be one too many."""
        if not failures or self._max_errors is None:
            return
        total = self._epochs.get(failures[0].epoch, 0) + len(failures)
        if total > self._max_errors:
            raise ErrorBudgetError(
                f"{total} samples of epoch {failures[-1].epoch} could not be made, max_errors allows "
                f"{self._max_errors}; the last was {failures[-1]}"
            )

    def add(self, failures: Sequence[Failure]) -> None:
        """Take those of a batch that is handed over."""
        done = "replaced" if self._action == "replace" else "dropped"
        for failure in failures:
            _log.warning("%s (%s at position %d of epoch %d)", failure, done, failure.position, failure.epoch)
            self._epochs[failure.epoch] = self._epochs.get(failure.epoch, 0) + 1
        while len(self._epochs) > EPOCHS:
            del self._epochs[min(self._epochs)]
        self.errors += len(failures)
        self.recent.extend(failures)
