"""A folder of this user's own that one process at a time works in: `<DST>.partial/` (docs/format.md section 8).

Only this user may enter it, and a folder that another user may have made or changed is refused. Files are removed and
renamed through a descriptor of the folder, so that nobody can replace it by a link meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from iofast import owned
from iofast.errors import BusyError, TargetError

LOCK = "lock"


class LockedFolder:
    """The folder `path`, in which `target` is made. Raises `TargetError`, and `OSError` for errors of the system."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path, self._target = path, target
        self._descriptor = self._lock = -1

    @property
    def is_locked(self) -> bool:
        """Whether this object has the lock."""
        return self._lock >= 0

    @property
    def descriptor(self) -> int:
        """Descriptor of the locked folder."""
        if not self.is_locked:
            raise TargetError(f"{self.path} is not locked by this run")
        return self._descriptor

    def check(self) -> None:
        """Raise `TargetError` if something else than a folder of this user's own is in its place."""
        if os.path.lexists(self.path):
            with contextlib.suppress(FileNotFoundError):
                os.close(self._open())

    def acquire(self) -> None:
        """Make the folder if it does not exist, and take its lock."""
        while not self.is_locked:
            self.path.mkdir(0o700, exist_ok=True)
            try:
                self._descriptor = self._open()
                self._take(self._open_lock())
            except FileNotFoundError:  # another run has just removed the folder
                pass
            finally:
                if not self.is_locked:
                    self.release()

    def release(self) -> None:
        """Release the lock and leave everything as it is."""
        for descriptor in (self._lock, self._descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._lock = -1

    def remove(self) -> None:
        """Remove and release the lock, and remove the folder, which must be empty."""
        self.unlink(LOCK)
        self.release()
        with contextlib.suppress(OSError):  # another run may already use the folder
            self.path.rmdir()

    def empty(self, kept: Collection[str]) -> None:
        """Remove everything except the lock and the names in `kept`."""
        with os.scandir(self.descriptor) as found:
            entries = [entry for entry in found if entry.name not in kept and entry.name != LOCK]
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.name, dir_fd=self.descriptor)
            else:
                self.unlink(entry.name)

    def status(self, name: str) -> os.stat_result | None:
        """Status of a file in the folder, or None."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def unlink(self, name: str) -> None:
        """Remove a file from the folder if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def write(self, name: str, data: bytes) -> None:
        """Write a complete and durable file into the folder."""
        with owned.writing(Path(name), 0o600, folder=self.descriptor) as file:
            file.write(data)
        os.fsync(self.descriptor)

    def rename(self, name: str, goal: Path) -> None:
        """Move a file or folder to `goal`, replacing it. Raises `FileNotFoundError`."""
        os.rename(name, goal, src_dir_fd=self.descriptor)

    def _open(self) -> int:
        try:
            return owned.open_folder(self.path)
        except NotADirectoryError:
            raise TargetError(
                f"{self.path} is in the place of the work in progress and is not a folder; remove it"
            ) from None

    def _open_lock(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(LOCK, flags, dir_fd=self._descriptor)
        except FileNotFoundError:
            there = sorted(name for name in os.listdir(self._descriptor) if not name.startswith(".nfs"))
            if there and LOCK not in there:  # each run makes its lock first and removes it last
                raise TargetError(
                    f"{self.path} has {there[0]!r} but no {LOCK!r}, so iofast did not make it; move it elsewhere"
                ) from None
            return os.open(LOCK, flags | os.O_CREAT, 0o600, dir_fd=self._descriptor)

    def _take(self, lock: int) -> None:
        """Lock this file, unless another file is at its path by now. Raises `BusyError` if another run has it."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(self.path / LOCK, follow_symlinks=False)):
                os.ftruncate(lock, 0)
                os.pwrite(lock, b"%d\n" % os.getpid(), 0)
                self._lock = lock
        except BlockingIOError:
            pid = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise BusyError(f"another run of iofast is writing {self._target} (process {pid})") from None
        finally:
            if self._lock != lock:
                os.close(lock)
