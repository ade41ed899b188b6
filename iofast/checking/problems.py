"""The result of a verification."""

import contextlib
import json
import os
import threading
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from iofast.containers.base import Reader
from iofast.errors import IofastError, one_line
from iofast.record import JSON_FIELD

KEPT = 10_000  # problems with details; a failing disk has millions, all alike
MAX_JSON = 1 << 20  # bytes of a `json` that is searched for a path


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. Members that are unknown, or not about one record, are None."""

    where: str  # the file and its record, or the container
    reason: str
    index: int | None = None  # dense index of the record
    key: str | None = None
    field: str | None = None
    offset: int | None = None  # of the payload's first byte in the file
    path: str | None = None  # of the record's image before it was packed

    def __str__(self) -> str:
        original = "" if self.path is None else f" (from {self.path})"
        return f"{self.where}: {self.reason}{original}"


@dataclass(slots=True)
class Verification:
    """The counts and problems of `verify`; `problems` are in the order of the records.

    `images` were decoded. `checked` payloads were compared with a checksum; `unchecked` payloads have none.
    `duplicates` images have the length and the checksum of an earlier one; `equal` has the keys of the first pairs.
    """

    path: str
    container: str
    records: int = 0
    images: int = 0
    checked: int = 0
    unchecked: int = 0
    bytes: int = 0
    duplicates: int = 0
    equal: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    failed: int = 0  # all problems; only the first 10,000 are in `problems`

    @property
    def whole(self) -> bool:
        """Whether there are no problems."""
        return not self.failed

    def facts(self) -> dict[str, Any]:
        """The members for JSON."""
        return {"version": 1, **asdict(self)}


class Findings:
    """A verification in progress; threads may add to it."""

    def __init__(self, result: Verification, reader: Reader) -> None:
        self.result, self._reader = result, reader
        self._lock = threading.Lock()

    def count(self, **more: int) -> None:
        """Add to counts of the result, by name."""
        with self._lock:
            for name, number in more.items():
                setattr(self.result, name, getattr(self.result, name) + number)

    def add(self, reason: str, index: int | None = None, field: str | None = None, offset: int | None = None) -> None:
        """Add a problem, of one record if there is an `index`."""
        with self._lock:
            self.result.failed += 1
            full = len(self.result.problems) >= KEPT
        if full:
            return
        path = self.result.path
        if index is None:
            problem = Problem(path, reason.removeprefix(f"{path}: ").removeprefix(f"{os.path.abspath(path)}: "))
        else:
            problem = self._about(reason, index, field, offset)
        with self._lock:
            self.result.problems.append(problem)

    def _about(self, reason: str, index: int, field: str | None, offset: int | None) -> Problem:
        reader, key = self._reader, None
        where = f"{self.result.path}: record {index}"
        with contextlib.suppress(IofastError, OSError, KeyError):  # not possible with a damaged index
            where = one_line(reader.name(index))
            key = reader.keys(reader.columns(np.array([index])))[0]
        return Problem(where, reason.removeprefix(f"{where}: "), index, key, field, offset, _path(reader, index))


def _path(reader: Reader, index: int) -> str | None:
    """The member `path` of the record's `json`, or None if it cannot be read."""
    try:
        text = reader.values(np.array([index]), JSON_FIELD)[0] if JSON_FIELD in reader.manifest.fields else None
        path = json.loads(text).get("path") if text and len(text) <= MAX_JSON else None
    except (IofastError, OSError, ValueError, AttributeError, RecursionError):
        return None
    return one_line(path) if isinstance(path, str) else None
