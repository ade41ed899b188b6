"""Which folders are trusted with all files in them, and how to write a file whole.

In a shared folder (/tmp) another user may have made the folder that we expect. One is trusted only if it belongs to
this user and nobody else may write to it. Root is a user like any other.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from iofast.errors import TargetError

_BY_OTHERS = 0o022  # may be written to


def trust(folder: Path) -> None:
    """Raise `TargetError` unless this is a folder of this user's, no link, that nobody else may write to.

    Raises `FileNotFoundError` if it does not exist.
    """
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise TargetError(f"{folder} is not a folder; remove it, or choose another place")
    if status.st_uid == os.geteuid() and not status.st_mode & _BY_OTHERS:
        return
    own = _status_of_own_file(folder)
    if own is not None and status.st_uid == own.st_uid and not status.st_mode & ~own.st_mode & _BY_OTHERS:
        return
    raise TargetError(
        f"{folder} may be another user's work: expected a folder of user {os.geteuid()} that only they may write to, "
        f"found user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}; remove it, or choose another place"
    )


def _status_of_own_file(folder: Path) -> os.stat_result | None:
    """Owner and mode of a private file that this process makes in `folder`; None if it cannot make one.

    They differ from the requested ones on servers that map users (root on NFS is usually nobody), and on file systems
    without owners or modes (FAT).
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno())
    except OSError:
        return None


@contextlib.contextmanager
def writing(path: Path, mode: int = 0o666, *, drafts: Path | None = None, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write that is made durable and renamed to `path` at the end. On an exception it is removed.

    A file or link called `path` is replaced; no link is followed. The umask applies to `mode`. Until it is renamed the
    file is in the folder `drafts`, or if there is none in that of `path`: a killed process leaves it there. Raises
    `OSError`.
    """
    draft = (path.parent if drafts is None or not drafts.is_dir() else drafts) / f".iofast-{os.urandom(8).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(draft, flags, mode)
    except OSError as error:
        error.filename = os.fspath(path)  # nobody knows the draft's name
        raise
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def sync(path: Path) -> None:
    """Make a file, or the list of names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_folder() -> Path | None:
    """`$XDG_CACHE_HOME/iofast`, by default `~/.cache/iofast`.

    None without a home, or if the folder cannot be created or another user may write to it.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(base if os.path.isabs(base) else Path.home() / ".cache") / "iofast"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        trust(folder)
    except (OSError, RuntimeError):
        return None
    return folder
