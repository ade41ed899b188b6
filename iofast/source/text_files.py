"""Text files of users: manifests, class names, lists of labels. Whatever encoding a program or a shell gave them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_START = 64  # bytes that tell an encoding
_MARKS = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),  # what Excel calls Unicode text, and what PowerShell writes
    (b"\xfe\xff", "utf-16"),
)


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise `OSError` where there is no file. A pipe that nobody writes would be waited for without end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))


def encoding_of(path: Path) -> str:
    """The encoding of a text file, by its first bytes. Raises `OSError`."""
    check_file(path)
    with path.open("rb") as file:
        return _encoding(file.read(_START))


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a text file in UTF-8, without a byte order mark. Raises `OSError`, `UnicodeError`."""
    encoding = encoding_of(path)
    if encoding != "utf-8-sig":
        with path.open(encoding=encoding, newline="\n") as text:
            yield from (line.encode() for line in text)
        return
    with path.open("rb") as file:
        for number, line in enumerate(file):
            yield line if number else line.removeprefix(b"\xef\xbb\xbf")


def _encoding(start: bytes) -> str:
    for mark, name in _MARKS:
        if start.startswith(mark):
            return name
    if len(start) >= 4 and start[0] and start[2] and not start[1] and not start[3]:
        return "utf-16-le"
    if len(start) >= 4 and start[1] and start[3] and not start[0] and not start[2]:
        return "utf-16-be"
    return "utf-8-sig"
