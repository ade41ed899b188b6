"""Images that cannot be packed: counted against the budget and listed in a file."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from iofast import owned
from iofast.errors import ErrorBudgetError, TargetError
from iofast.record import format_key


class PackFailure(NamedTuple):
    """One image that failed: its position in the packing order, its path as `os.fsdecode` gives it, and why."""

    position: int
    path: str
    reason: str

    @property
    def cause(self) -> str:
        """The reason without details, for counting."""
        return self.reason.split(" (", 1)[0]


class Failures:
    """The failures of one run, at most `allowed` of its `images`.

    `first` is the position of the run's first image: what `file` says of images before it stays.
    """

    def __init__(self, images: int, allowed: int, file: Path, first: int = 0) -> None:
        self._images, self._allowed, self.file, self._first = images, allowed, file, first
        self._found: dict[int, PackFailure] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, failure: PackFailure) -> None:
        """Count one. Raises `ErrorBudgetError` above the budget, after writing the file."""
        self._found[failure.position] = failure
        if len(self._found) <= self._allowed:
            return
        self.save()
        raise ErrorBudgetError(
            f"{len(self._found):,} of {self._images:,} images failed: expected at most {self._allowed:,}, found "
            f"{failure.path!r}: {failure.reason} (all are listed in {self.file})"
        )

    def load(self) -> None:
        """Load what a finished run has saved."""
        for value in read_lines(self.file):
            failure = PackFailure(value["key"], str(value.get("path")), str(value.get("reason")))
            if failure.position >= self._first:
                self._found[failure.position] = failure

    def causes(self) -> Mapping[str, int]:
        """Numbers of failed images by cause, most frequent first."""
        return dict(Counter(self._found[position].cause for position in sorted(self._found)).most_common())

    def save(self) -> Path | None:
        """Write one JSON object per failed image, in packing order, or remove an old file. Return the file."""
        lines = (_line(self._found[position]) for position in sorted(self._found))
        return self.file if write_lines(self.file, "file of errors", self._first, lines) else None


def write_lines(file: Path, kind: str, first: int, lines: Iterable[str]) -> bool:
    """Write `lines` behind what the file says of images before position `first`, whole or not at all.

    A file that would have no line is removed; gives whether there is one. Raises `TargetError`, which calls it `kind`.
    """
    before = (value for value in read_lines(file) if value["key"] < first) if first else ()
    kept = (json_line({**value, "key": format_key(value["key"])}) for value in before)
    every = itertools.chain(kept, lines)
    try:
        head = next(every, None)
        if head is None:
            file.unlink(missing_ok=True)
            return False
        with owned.writing(file) as draft:
            draft.writelines(line.encode("ascii") for line in itertools.chain([head], every))
    except OSError as error:
        raise TargetError(f"the {kind} {file} cannot be written: {error.strerror or error}") from error
    return True


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file of `write_lines`, `key` as a number. Other lines are ignored."""
    try:
        lines = owned.read(file, own=False).splitlines()  # in a shared folder it may belong to a colleague
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            value = json.loads(line)
            yield {**value, "key": int(value["key"])}


def json_line(value: Mapping[str, object]) -> str:
    """A JSON object on a line of its own, in ASCII."""
    return json.dumps(value) + "\n"


def _line(failure: PackFailure) -> str:
    return json_line({"key": format_key(failure.position), "path": failure.path, "reason": failure.reason})
