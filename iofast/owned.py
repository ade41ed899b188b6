"""Files in folders that other users may write to: which files are trusted, and how to write one safely.

In such a folder (/tmp) any name may be another user's file, link or pipe. A file is trusted only if it belongs to this
user and nobody else may write to it. A file is written under a name that did not exist, and then renamed. Root is a
user like any other, because planted files are aimed at root first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from iofast.errors import TargetError

LARGEST = 1 << 30  # bytes of a file that `read` accepts

_WRITABLE_BY_OTHERS = 0o022
_OPEN_TO_OTHERS = 0o077
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # NONBLOCK: a pipe without a writer


def check(status: os.stat_result, path: Path, *, private: bool = False) -> None:
    """Raise `TargetError` unless the file or folder is this user's and nobody else may write to it.

    With `private` nobody else may even read it.
    """
    refused = _OPEN_TO_OTHERS if private else _WRITABLE_BY_OTHERS
    if status.st_uid == os.geteuid() and not status.st_mode & refused:
        return
    is_folder = stat.S_ISDIR(status.st_mode)
    own = _status_of_own_file(path if is_folder else path.parent)
    if own is not None and status.st_uid == own.st_uid and not status.st_mode & ~own.st_mode & refused:
        return
    raise TargetError(
        f"{path} may be another user's work: expected a {'folder' if is_folder else 'file'} of user {os.geteuid()} "
        f"that only they may {'open' if private else 'write to'}, found user {status.st_uid}, "
        f"mode {stat.S_IMODE(status.st_mode):04o}; remove it, or choose another place"
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


def open_folder(path: Path, *, private: bool = False) -> int:
    """Open a folder that passes `check`; returns a descriptor. Raises `OSError`; a link is `NotADirectoryError`."""
    try:
        descriptor = os.open(path, _READ | os.O_DIRECTORY)
    except PermissionError:
        check(os.lstat(path), path, private=private)  # a better message for another user's folder
        raise
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path)) from None
    try:
        check(os.fstat(descriptor), path, private=private)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_file(path: Path, *, own: bool = True) -> int:
    """Open a regular file for reading; returns a descriptor. Raises `OSError` for links, and does not wait for pipes.

    With `own` the file must pass `check`.
    """
    try:
        descriptor = os.open(path, _READ)
    except PermissionError:
        if own:
            check(os.lstat(path), path)
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise TargetError(f"{path} is not a regular file; remove it, or choose another place")
        if own:
            check(status, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read(path: Path, *, own: bool = True) -> bytes:
    """The bytes of a file, opened by `open_file`. Raises `OSError`, also for more than `LARGEST` bytes."""
    with os.fdopen(open_file(path, own=own), "rb") as file:
        if os.fstat(file.fileno()).st_size > LARGEST:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), os.fspath(path))
        return file.read()


@contextlib.contextmanager
def writing(
    path: Path, mode: int = 0o666, *, folder: int | None = None, drafts: Path | None = None
) -> Iterator[BinaryIO]:
    """A file to write that is made durable and renamed to `path` at the end. On an exception it is removed.

    A file or link called `path` is replaced; no link is followed. The umask applies to `mode`. With `folder`, a
    descriptor, `path` is relative to it. Until it is renamed the file is in the folder `drafts`, or if there is
    none in that of `path`: a killed process leaves it there. Raises `OSError`.
    """
    draft = (path.parent if drafts is None or not drafts.is_dir() else drafts) / f".iofast-{os.urandom(8).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
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
        os.close(open_folder(folder))
    except (OSError, RuntimeError):
        return None
    return folder
