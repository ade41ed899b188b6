"""Images that cannot be packed: counted against the budget, and written where the user finds them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
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
    """The failures of one run, at most `allowed`; `limit` is how the user wrote that.

    `first` is the position of the run's first image: what `file` says of images before it stays.
    """

    def __init__(self, images: int, allowed: int, limit: int | str, file: Path, first: int = 0) -> None:
        self._images, self._allowed, self._limit, self.file = images, allowed, limit, file
        self._first = first
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
                if int(value["key"]) >= self._first:
                    self._found[int(value["key"])] = Failure(int(value["key"]), value["path"], value["reason"])

    def causes(self) -> Mapping[str, int]:
        """How many images failed for each cause, most first."""
        return dict(Counter(self._found[position].cause for position in sorted(self._found)).most_common())

    def save(self) -> Path | None:
        """Write one JSON object per failed image, in packing order, or remove what an earlier run left; the file."""
        lines = (_line(self._found[position]) for position in sorted(self._found))
        return self.file if write_lines(self.file, "file of errors", self._first, lines) else None


def write_lines(file: Path, kind: str, first: int, lines: Iterable[str]) -> bool:
    """Write `lines` behind what the file says of images before position `first`, whole or not at all.

    A file that would have no line is removed; gives whether there is one. Raises `TargetError`, which calls it `kind`.
    """
    every = itertools.chain(_lines_before(file, first), lines)
    head = next(every, None)
    if head is None:
        file.unlink(missing_ok=True)
        return False
    temporary = file.with_name(file.name + ".tmp")
    try:
        with open(temporary, "w", encoding="ascii") as draft:
            draft.write(head)
            draft.writelines(every)
            draft.flush()
            os.fsync(draft.fileno())
        os.replace(temporary, file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TargetError(f"the {kind} {file} cannot be written: {error.strerror}") from error
    return True


def _lines_before(file: Path, first: int) -> list[str]:
    """What a file of one JSON object a line says of images before position `first`, which an earlier run packed."""
    if not first:
        return []
    try:
        lines = file.read_text("ascii").splitlines()
        return [f"{line}\n" for line in lines if int(json.loads(line)["key"]) < first]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _line(failure: Failure) -> str:
    return json.dumps({"key": format_key(failure.position), "path": failure.path, "reason": failure.reason}) + "\n"
