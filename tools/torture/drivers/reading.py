"""What must hold for any file: everything that can be reached is read, and only errors of ours are raised.

An error is one line that names a file of the set. A payload with a checksum is right or an error. `verify` finds every
error that reading found.
"""

import contextlib
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iofast import kernel, open_reader
from iofast.checking import verify
from iofast.containers.base import Failures, Located, Reader
from iofast.errors import IofastError
from iofast.record import IMAGE_FIELDS, RAW_FIELDS

LONGEST = 2000  # characters of a message
ROWS = 12  # of one container that a step reads
MAX_PIXELS = 1 << 20

_PLACE = re.compile(r"offset \d|page \d|piece \d|record \d|\d{8}")
Right = Callable[[int, str, bytes | None], bool]  # dense index, field, payload


def look_at(
    folder: Path,
    files: dict[str, bytes],
    name: str,
    chance: random.Random,
    right: Right | None = None,
    options: dict[str, object] | None = None,
) -> str:
    """Install `files` in `folder` and read the container `name` of it; return how that ended."""
    install(folder, files)
    return WholeRead(folder / name, chance, right).run(options)


class WholeRead:
    """Reads everything in a container; each error must name one of `names`, the files' names."""

    def __init__(self, path: Path, chance: random.Random, right: Right | None = None) -> None:
        self.path, self.chance, self.right = path, chance, right
        self.names = {path.name, path.stem, path.parent.name} | {each.name for each in path.parent.iterdir()}
        if path.is_dir():
            self.names |= {each.name for each in path.rglob("*")}
        self.errors = 0

    def take(self, error: IofastError) -> None:
        """Count an expected error, after a check of its message."""
        check_message(error, self.names)
        self.errors += 1

    @contextlib.contextmanager
    def ours(self) -> Iterator[None]:
        """Take an error of ours that the block raises."""
        try:
            yield
        except IofastError as error:
            self.take(error)

    def run(self, foreign: dict[str, object] | None = None) -> str:
        """Read everything; return how it ended."""
        reader = None
        with self.ours():
            reader = open_reader(self.path, foreign)
        if reader is None:
            return "refused"
        with reader:
            count = len(reader)
            rows = sorted({0, count - 1, *(self.chance.randrange(count) for _ in range(ROWS))}) if count else []
            indices = np.array(rows[:ROWS], np.int64)
            with self.ours():
                reader.keys(reader.columns(indices))
            for field in reader.manifest.fields:
                with self.ours():
                    self._field(reader, indices, field)
            with self.ours():
                self._images(reader, indices)
            for index in rows[:4]:
                with self.ours():
                    record = reader.record(index)
                    assert self.right is None or all(self.right(index, *field) for field in record.fields.items())
                    reader.name(index)
        return self._verify(foreign)

    def _field(self, reader: Reader, indices: NDArray[np.int64], field: str) -> None:
        failed: Failures = {}
        values = reader.values(indices, field, failed=failed)
        for error in failed.values():
            self.take(error)
            assert self.right is None or _PLACE.search(str(error)), f"no place in: {error}"
        for row, payload in enumerate(values):
            if self.right is not None and row not in failed:
                index = int(indices[row])
                assert self.right(index, field, payload), f"record {index}: wrong {field}: {payload!r:.80}"

    def _images(self, reader: Reader, indices: NDArray[np.int64]) -> None:
        """Decode as a loader does, into 16 x 16 pixels."""
        try:
            located = reader.locate(indices)
        except KeyError:
            assert not set(reader.manifest.fields) & {*IMAGE_FIELDS, *RAW_FIELDS}, "images, but none to be located"
            return
        decode(reader, located)

    def _verify(self, foreign: dict[str, object] | None) -> str:
        result = verify(self.path, decode=False, workers=1, foreign=foreign)  # opens as before, and lists problems
        for problem in result.problems:
            assert "\n" not in str(problem), f"a problem of several lines: {problem}"
            assert len(str(problem)) <= 4 * LONGEST, f"a problem of {len(str(problem))} characters"
        assert not (self.errors and result.whole), f"{self.errors} errors, but verify finds it whole"
        return "whole" if result.whole else "damaged"


def decode(reader: Reader, located: Located) -> None:
    """Decode the located rows, whatever sizes the index has; a failed slot is zero."""
    count = len(located.indices)
    boxes = np.zeros((count, 8), np.int32)
    boxes[:, 2], boxes[:, 3] = np.maximum(located.width, 1), np.maximum(located.height, 1)
    boxes[:, 4:6] = 16
    out, status = np.full((count, 16, 16, 3), 7, np.uint8), np.zeros(count, np.int32)
    context = kernel.Context(kernel.DecodeOptions(max_pixels=MAX_PIXELS))
    try:
        with reader.payloads(located, 0, count) as source:
            kernel.decode_batch(context, source, boxes, np.zeros(count, np.uint8), out, status, 0, count)
    finally:
        context.close()
    assert not out[status != 0].any(), "a failed slot is not zero"


def check_message(error: IofastError, names: set[str]) -> None:
    """Check that a message is one line that names one of the files."""
    text = str(error)
    assert text, "an error without a message"
    assert "\n" not in text, f"a message of several lines: {text!r}"
    assert len(text) <= LONGEST, f"a message of {len(text)} characters: {text[:200]}"
    assert any(name in text for name in names), f"a message without a file: {text}"
    text.encode()  # a terminal must be able to show it


def install(folder: Path, files: dict[str, bytes]) -> None:
    """Make a folder hold these files and no others."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in os.listdir(folder):
        if name not in files:
            (folder / name).unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
