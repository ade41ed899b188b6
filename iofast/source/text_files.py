"""Read text files of users (manifests, class names, lists of labels) in UTF-8, UTF-16 or UTF-32."""

from __future__ import annotations

import codecs
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from iofast.kernel.strangers import POINTER, is_pointer

_START = 64  # bytes that identify an encoding
_MARKS = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),  # Excel's "Unicode text", and PowerShell's output
    (b"\xfe\xff", "utf-16"),
)


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise `OSError` unless this is a regular file and no Git LFS pointer. A pipe without a writer would block."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))
    if is_pointer(path, status.st_size):
        raise OSError(errno.EINVAL, f"it is {POINTER}", os.fspath(path))


def encoding_of(path: Path) -> str:
    """The encoding of a text file, by its first bytes. Raises `OSError`."""
    check_file(path)
    with path.open("rb") as file:
        start = file.read(_START)
    for mark, name in _MARKS:
        if start.startswith(mark):
            return name
    nul = [byte == 0 for byte in start[:4]]  # every second byte of ASCII characters in UTF-16
    if nul == [False, True, False, True]:
        return "utf-16-le"
    return "utf-16-be" if nul == [True, False, True, False] else "utf-8-sig"


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a text file in UTF-8, without byte order marks: joined files have one at the start of each.

    Raises `OSError`, `UnicodeError`.
    """
    encoding = encoding_of(path)
    if encoding != "utf-8-sig":
        with path.open(encoding=encoding, newline="\n") as text:
            yield from (line.encode().removeprefix(codecs.BOM_UTF8) for line in text)
        return
    with path.open("rb") as file:
        yield from (line.removeprefix(codecs.BOM_UTF8) for line in file)
