"""A part of a packing run that is finished: a container in `<DST>.partial/`, and a list beside it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from iofast import owned
from iofast.containers.base import Reader
from iofast.errors import TargetError, because
from iofast.opening import open_reader
from iofast.packing.failures import Failures, PackFailure, beside

TOTALS = ".totals.json"  # what the container and the lists do not say; the suffix of the file beside it


@dataclass(frozen=True, slots=True)
class FinishedPart:
    """The container at `path`: what became of `images` images, whose files have `bytes_in` bytes."""

    path: Path
    images: int
    bytes_in: int
    failures: tuple[PackFailure, ...]

    @classmethod
    def load(cls, path: Path, images: int) -> Self:
        """The part of `images` images whose container is at `path`."""
        failures = Failures(images, images, path)
        failures.load()
        return cls(path, images, bytes_read(path) or 0, tuple(failures))

    def open(self) -> Reader:
        """Open the container."""
        return open_reader(self.path)


def note_bytes(path: Path, bytes_in: int) -> None:
    """Store the bytes of the image files beside the container of a part."""
    try:
        with owned.writing(beside(path, TOTALS), 0o600) as file:
            file.write(json.dumps({"bytes_in": bytes_in}).encode())
    except OSError as error:
        raise TargetError(f"{beside(path, TOTALS)} cannot be written: {because(error)}") from None


def bytes_read(path: Path) -> int | None:
    """What `note_bytes` stored; None if it did not."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(beside(path, TOTALS).read_bytes())["bytes_in"])
    return None
