"""Images that cannot be packed: counted against the budget, and written where the user finds them."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from iofast.errors import ErrorBudgetError, TargetError
from iofast.record import format_key


class Failure(NamedTuple):
    """One image that failed: its position in the packing order, its path as `os.fsdecode` gives it, and why."""

    position: int
    path: str
    reason: str

    @property
    def cause(self) -> str:
        """The reason without its details, so that alike failures can be counted together."""
        return self.reason.split(" (", 1)[0]


class Failures:
    """The failures of one run, at most `allowed`; `limit` is how the user wrote that."""

    def __init__(self, images: int, allowed: int, limit: int | str, file: Path) -> None:
        self._images, self._allowed, self._limit, self.file = images, allowed, limit, file
        self._found: dict[int, Failure] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, failure: Failure) -> None:
        """Count one. Raises `ErrorBudgetError` when it is one too many, after the file of errors was written."""
        self._found[failure.position] = failure
        if len(self._found) <= self._allowed:
            return
        self.save()
        raise ErrorBudgetError(
            f"{len(self._found)} of {self._images} images failed, max_errors {self._limit} allows {self._allowed}; "
            f"{failure.path!r}: {failure.reason}; see {self.file}"
        )

    def load(self) -> None:
        """Take what a finished run has saved."""
        with contextlib.suppress(FileNotFoundError):
            for line in self.file.read_text().splitlines():
                value = json.loads(line)
                self._found[int(value["key"])] = Failure(int(value["key"]), value["path"], value["reason"])

    def causes(self) -> Mapping[str, int]:
        """How many images failed for each cause, most first."""
        return dict(Counter(self._found[position].cause for position in sorted(self._found)).most_common())

    def save(self) -> Path | None:
        """Write one JSON object per failed image, in packing order, or remove what an earlier run left; the file."""
        if not self._found:
            self.file.unlink(missing_ok=True)
            return None
        temporary = self.file.with_name(self.file.name + ".tmp")
        try:
            with open(temporary, "w", encoding="ascii") as file:
                for position in sorted(self._found):
                    file.write(_line(self._found[position]))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.file)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise TargetError(f"the file of errors {self.file} cannot be written: {error.strerror}") from error
        return self.file


def _line(failure: Failure) -> str:
    return json.dumps({"key": format_key(failure.position), "path": failure.path, "reason": failure.reason}) + "\n"
