"""A folder of this user's own that one process at a time works in: `<DST>.partial/` (docs/format.md section 8).

Only this user may enter it, and a folder that another user may have made or changed is refused.
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

    def __init__(self, path: Path, target: Path, lock: str = LOCK) -> None:
        self.path, self._target, self._name = path, target, lock
        self._lock = -1

    @property
    def is_locked(self) -> bool:
        """Whether this object has the lock."""
        return self._lock >= 0

    def check(self) -> None:
        """Raise `TargetError` if something else than a folder of this user's own is in its place."""
        if os.path.lexists(self.path):
            with contextlib.suppress(FileNotFoundError):
                owned.trust(self.path)

    def acquire(self) -> None:
        """Make the folder if it does not exist, and take its lock."""
        while not self.is_locked:
            self.path.mkdir(0o700, exist_ok=True)
            try:
                owned.trust(self.path)
                self._take(self._open_lock())
            except FileNotFoundError:  # another run has just removed the folder
                pass

    def release(self) -> None:
        """Release the lock and leave everything as it is."""
        if self.is_locked:
            os.close(self._lock)
        self._lock = -1

    def remove(self) -> None:
        """Remove and release the lock, and remove the folder, which must be empty."""
        self.unlink(self._name)
        self.release()
        with contextlib.suppress(OSError):  # another run may already use the folder
            self.path.rmdir()

    def empty(self, kept: Collection[str]) -> None:
        """Remove everything except the lock and the names in `kept`."""
        for path in list(self.path.iterdir()):
            if path.name in kept or path.name == self._name:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def unlink(self, name: str) -> None:
        """Remove a file from the folder if it exists."""
        (self.path / name).unlink(missing_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Write a complete and durable file into the folder."""
        with owned.writing(self.path / name, 0o600) as file:
            file.write(data)
        owned.sync(self.path)

    def _open_lock(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self.path / self._name, flags)
        except FileNotFoundError:
            there = sorted(name for name in os.listdir(self.path) if not name.startswith(".nfs"))
            if there and LOCK not in there:  # each run makes its lock first and removes it last
                raise TargetError(
                    f"{self.path} has {there[0]!r} but no {LOCK!r}, so iofast did not make it; move it elsewhere"
                ) from None
            return os.open(self.path / self._name, flags | os.O_CREAT, 0o600)

    def _take(self, lock: int) -> None:
        """Lock this file, unless another file is at its path by now. Raises `BusyError` if another run has it."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(self.path / self._name, follow_symlinks=False)):
                os.ftruncate(lock, 0)
                os.pwrite(lock, b"%d\n" % os.getpid(), 0)
                self._lock = lock
        except BlockingIOError:
            pid = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise BusyError(f"another run of iofast is writing {self._target} (process {pid})") from None
        finally:
            if self._lock != lock:
                os.close(lock)
