"""Images that cannot be packed: counted against the error budget and listed in a file."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from iofast import owned
from iofast.errors import ErrorBudgetError, TargetError
from iofast.record import format_key

ERRORS = ".errors.jsonl"  # the suffix of the list, beside the container


class FailedImages:
    """The failures of the run that packs the container at `path`, at most `allowed` of its `images`."""

    def __init__(self, images: int, allowed: int, path: Path) -> None:
        self.allowed, self._images, self._path = allowed, images, path
        self.file = beside(path, ERRORS)
        self._found: dict[int, tuple[str, str]] = {}  # position -> path as `printable` gives it, reason

    def __len__(self) -> int:
        return len(self._found)

    def add(self, position: int, path: str, reason: str) -> None:
        """Count one. Raises `ErrorBudgetError` above the budget, after writing the file."""
        self._found[position] = path, reason
        if len(self._found) > self.allowed:
            self.save()
            raise ErrorBudgetError(
                f"{len(self._found):,} of {self._images:,} images failed: expected at most {self.allowed:,}, found "
                f"{path!r}: {reason} (all are listed in {self.file})"
            )

    def load(self) -> None:
        """Load the list that a finished run has saved."""
        for value in read_lines(self.file):
            self._found[value["key"]] = str(value.get("path")), str(value.get("reason"))

    def causes(self) -> Mapping[str, int]:
        """Numbers of failed images by cause (the reason without details in brackets), most frequent first."""
        return dict(Counter(reason.split(" (", 1)[0] for _, (_, reason) in sorted(self._found.items())).most_common())

    def save(self) -> Path | None:
        """Replace the file by one JSON object per failed image, in packing order; return it. Without any, remove it.

        It is drafted in the run's folder, which a killed run leaves anyway. Raises `TargetError`.
        """
        try:
            if not self._found:
                self.file.unlink(missing_ok=True)
                return None
            with owned.writing(self.file, drafts=beside(self._path, ".partial")) as draft:
                for position, (path, reason) in sorted(self._found.items()):
                    line = {"key": format_key(position), "path": path, "reason": reason}
                    draft.write(json.dumps(line).encode("ascii") + b"\n")
        except OSError as error:
            raise TargetError(f"the list {self.file} cannot be written: {error.strerror or error}") from error
        return self.file


def beside(path: Path, suffix: str) -> Path:
    """The file beside a container whose name ends in `suffix`."""
    return path.with_name(path.name + suffix)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file of `FailedImages.save`, `key` as a number. Other lines are ignored."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            value = json.loads(line)
            yield {**value, "key": int(value["key"])}
