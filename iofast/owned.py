"""Files among those of other users: which ones are believed, and how to write one that nobody else has prepared.

In a folder that several users may write to, such as /tmp, any name that iofast looks for may hold another user's file,
link or pipe. A file is believed only if it belongs to this user and nobody else may write to it. A file is written
under a name that did not exist, and then renamed.

Root is a user like any other: what another user prepared must not be believed because root finds it.
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

LARGEST = 1 << 30  # bytes of a file that is read whole

_WRITTEN_BY_OTHERS = 0o022
_OPENED_BY_OTHERS = 0o077
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # NONBLOCK: a pipe without a writer


def check(found: os.stat_result, path: Path, *, private: bool = False) -> None:
    """Raise `TargetError` unless the file or folder is this user's and nobody else may write to it.

    With `private` nobody else may even read it.
    """
    closed = _OPENED_BY_OTHERS if private else _WRITTEN_BY_OTHERS
    if found.st_uid == os.geteuid() and not found.st_mode & closed:
        return
    is_folder = stat.S_ISDIR(found.st_mode)
    made = _made_in(path if is_folder else path.parent)
    if made is not None and found.st_uid == made.st_uid and not found.st_mode & ~made.st_mode & closed:
        return
    raise TargetError(
        f"{path} may be another user's work: expected a {'folder' if is_folder else 'file'} of user {os.geteuid()} "
        f"that only they may {'open' if private else 'write to'}, found user {found.st_uid}, "
        f"mode {stat.S_IMODE(found.st_mode):04o}; remove it, or choose another place"
    )


def _made_in(folder: Path) -> os.stat_result | None:
    """Owner and mode of a private file that this process makes in `folder`; None where it cannot make one.

    They differ from what was asked for where the server maps users (root on NFS is usually nobody), and on file systems
    without owners or modes (FAT).
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno())
    except OSError:
        return None


def open_folder(path: Path, *, private: bool = False) -> int:
    """A descriptor of a folder that passes `check`. Raises `OSError`; a link is `NotADirectoryError`."""
    try:
        descriptor = os.open(path, _READ | os.O_DIRECTORY)
    except PermissionError:
        check(os.lstat(path), path, private=private)  # a better message, where it is another user's
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
    """A descriptor of a regular file, opened for reading: no link is followed, no pipe waited for. Raises `OSError`.

    With `own` the file must pass `check`.
    """
    try:
        descriptor = os.open(path, _READ)
    except PermissionError:
        if own:
            check(os.lstat(path), path)
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise TargetError(f"{path} is not a regular file; remove it, or choose another place")
        if own:
            check(found, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read(path: Path, *, own: bool = True) -> bytes:
    """The bytes of a file that `open_file` opens. Raises `OSError`, also for more than `LARGEST` bytes."""
    with os.fdopen(open_file(path, own=own), "rb") as file:
        if os.fstat(file.fileno()).st_size > LARGEST:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), os.fspath(path))
        return file.read()


@contextlib.contextmanager
def writing(path: Path, mode: int = 0o666, *, folder: int | None = None) -> Iterator[BinaryIO]:
    """A file to write, which is renamed to `path` when it is whole and durable. On an exception nothing is left of it.

    A file or link called `path` is replaced; no link is followed. The umask applies to `mode`. With `folder`, a
    descriptor, `path` is relative to it. Raises `OSError`.
    """
    draft = path.with_name(f".iofast-{os.urandom(8).hex()}.tmp")
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
    """Make a file, or a folder's list of names, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
