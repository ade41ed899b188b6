"""Read text files of users (manifests, class names) in UTF-8."""

from __future__ import annotations

import codecs
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from iofast.kernel.strangers import POINTER, is_pointer

_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)  # that of UTF-32-LE begins like the first


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise `OSError` unless this is a regular file and no Git LFS pointer. A pipe without a writer would block."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))
    if is_pointer(path, status.st_size):
        raise OSError(errno.EINVAL, f"it is {POINTER}", os.fspath(path))


def check_text(path: Path) -> None:
    """Raise `OSError` unless this is a regular file whose text can be UTF-8."""
    check_file(path)
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(_MARKS) or b"\0" in start:  # every second byte of ASCII characters in UTF-16
        raise OSError(errno.EINVAL, "its text is UTF-16 or UTF-32: save it as UTF-8", os.fspath(path))


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a text file, without byte order marks: joined files have one at the start of each.

    Raises `OSError`.
    """
    check_text(path)
    with path.open("rb") as file:
        yield from (line.removeprefix(codecs.BOM_UTF8) for line in file)
