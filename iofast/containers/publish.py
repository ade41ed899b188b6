"""`<DST>.partial/`: the folder in which a target is made and from which it is published (docs/format.md section 8)."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from iofast import owned
from iofast.errors import BusyError, ContainerError, TargetError, because

_log = logging.getLogger("iofast")

LOCK = "lock"
_IN_USE = {errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST}  # another run has removed the folder, or works in it
MARKER = "publishing"
PLAN = "plan.json"  # of the run whose work is in the folder

_RESERVED = (".", "..", LOCK, MARKER)


class Target:
    """The place of a container that is being made: `<path>.partial/`, locked while this object is acquired.

    Only this user may enter the folder, and one that another user may have made or changed is refused. A `with` block
    has the lock. Leaving it keeps the staged files for a later run, unless `publish` or `discard` was called. Every
    failure is a `TargetError` of one line. `lock` names the lock: parts of a run have locks of their own.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False, lock: str = LOCK) -> None:
        self.path = Path(os.path.abspath(os.fspath(path)))
        self.partial = self.path.with_name(self.path.name + ".partial")
        self.overwrite, self._name, self._lock = overwrite, lock, -1

    @property
    def going_on(self) -> str:
        """How to continue interrupted work, in words."""
        return f"the same command goes on from there; delete {self.partial} to start anew"

    def acquire(self) -> None:
        """Check that the target may be written, make the folder, take the lock.

        A target that exists is refused, unless `overwrite` is set or a publication was interrupted (`interrupted`).
        """
        self.check_folder()
        if not self.interrupted:
            self.check_free()  # before a folder is made for a run that will be refused
        with self._errors("written"):
            if not self.path.parent.exists():
                self.path.parent.mkdir(exist_ok=True)
                owned.sync(self.path.parent.parent)
            while self._lock < 0:
                self.partial.mkdir(0o700, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # another run has just removed the folder
                    owned.trust(self.partial)
                    self._take(self._open_lock())
        try:
            with self._errors("written"):
                if not self.interrupted:
                    self.check_free()  # again: another run may have published between the check and the lock
        except TargetError:
            self.discard()
            raise

    def release(self) -> None:
        """Release the lock and leave everything as it is."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def check_folder(self) -> None:
        """Raise `TargetError` unless the target's folder exists, or can be made in an existing folder."""
        parent = self.path.parent
        there = parent.parent if not os.path.lexists(parent) and parent.parent.is_dir() else parent
        if not there.is_dir():
            raise TargetError(f"{there} is not a folder, so {self.path.name} cannot be made in it")
        if not os.access(there, os.W_OK | os.X_OK):
            raise TargetError(f"{there} is not writable, so {self.path.name} cannot be made in it")
        if os.path.lexists(self.partial):
            with contextlib.suppress(FileNotFoundError):
                owned.trust(self.partial)

    def check_free(self) -> None:
        """Raise `TargetError` if something is in the target's place that may not be replaced."""
        if self.path.is_dir():
            raise TargetError(f"{self.path} is a folder, expected the name of a file to be made")
        if os.path.lexists(self.path) and not self.overwrite:
            raise TargetError(f"{self.path} exists already: choose another name, or give overwrite=True")

    @property
    def exists(self) -> bool:
        """Whether a finished container is at this path."""
        return self.path.is_file()

    @property
    def interrupted(self) -> bool:
        """Whether an earlier run was interrupted during publishing: call `complete`."""
        return (self.partial / MARKER).is_file()

    def owns(self, name: str) -> bool:
        """Whether a file of this name beside the target can belong to it: no other is replaced or removed."""
        return name == self.path.name

    def note(self, name: str, members: Mapping[str, object]) -> None:
        """Write the file `name` of the folder, complete and durable, for a later run."""
        with owned.writing(self.partial / name, 0o600) as file:
            file.write(json.dumps(members, sort_keys=True).encode())
        owned.sync(self.partial)

    def read(self, name: str) -> dict[str, Any] | None:
        """What `note` wrote; None if there is no such file. Raises `TargetError` for another user's folder."""
        self.check_folder()
        with contextlib.suppress(OSError, ValueError):
            members = json.loads((self.partial / name).read_bytes())
            return members if isinstance(members, dict) else None
        return None

    def publish(self, files: Mapping[str, str], report: Mapping[str, object] | None = None) -> None:
        """Rename staged files to their names beside the target, in this order, and remove the folder.

        The file that makes the set visible (the manifest) must be the last one. Once it is, nothing raises: what could
        not be cleaned up is a warning, and `complete` returns the `report` to a later run.
        """
        marker = {"files": [list(pair) for pair in files.items()], "replaced": self._replaced()}
        marker |= {"plan": self.read(PLAN), "report": report}
        _check(marker, self)
        with self._errors("published"):
            for staged in files:
                owned.sync(self.partial / staged)
            self.note(MARKER, marker)
            self._carry_out(marker)
        self._end()

    def complete(self) -> dict[str, Any] | None:
        """Finish a publication that was interrupted at any point; returns the report that `publish` got."""
        marker = self.read(MARKER)
        try:
            _check(marker, self)
        except (ValueError, KeyError, TypeError) as error:
            where = self.partial / MARKER
            raise ContainerError(f"{where} is damaged: {error}; delete its folder to begin anew") from None
        assert marker is not None  # else `_check` had raised
        with self._errors("published"):
            self._carry_out(marker)
        self._end()
        report = marker.get("report")
        return report if isinstance(report, dict) else None

    def clear(self) -> None:
        """Finish an interrupted publication, then remove all work of an earlier run, except the lock."""
        if self.interrupted:
            self.complete()
            self.acquire()  # which may find that the target exists now
        self._unlink(MARKER)  # first: without it no run publishes the rest
        self._empty(PLAN)

    def discard(self) -> None:
        """Remove `<path>.partial/` with everything in it, and release the lock."""
        if self._lock < 0:  # released before: the folder belongs to another run now
            return
        self._empty(MARKER)  # last: if killed earlier, the next run completes publication
        self._unlink(self._name)
        self.release()
        try:
            self.partial.rmdir()
        except OSError as error:
            if error.errno not in _IN_USE:
                raise

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _replaced(self) -> list[str]:
        """Files beside the target that are removed first: an old manifest, then its shards."""
        return []

    def _carry_out(self, marker: Mapping[str, Any]) -> None:
        for name in marker["replaced"]:
            staged = [old for old, new in marker["files"] if new == name]
            if staged and not os.path.lexists(self.partial / staged[0]):
                continue  # this is the new file, renamed before the interruption
            (self.path.parent / name).unlink(missing_ok=True)
        for staged, name in marker["files"]:
            try:
                os.rename(self.partial / staged, self.path.parent / name)
            except FileNotFoundError:  # renamed before the interruption
                os.stat(self.path.parent / name)

    def _end(self) -> None:
        """Clean up after all names are final: an error of the system is only a warning."""
        try:
            owned.sync(self.path.parent)
            self.discard()
        except OSError as error:  # the container is whole, and the marker stays for another run
            marked = os.access(self.partial / MARKER, os.F_OK)  # never raises, as `interrupted` may
            rest = f"{'run the same command again, or ' if marked else ''}delete {self.partial}"
            self.release()
            _log.warning("%s is published, but cleaning up failed: %s; %s", self.path, because(error), rest)

    def _empty(self, last: str) -> None:
        """Remove everything from the folder except the lock, the file `last` after all others."""
        for path in list(self.partial.iterdir()):
            if path.name in (last, self._name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._unlink(last)

    def _unlink(self, name: str) -> None:
        (self.partial / name).unlink(missing_ok=True)

    def _open_lock(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self.partial / self._name, flags)
        except FileNotFoundError:
            there = sorted(name for name in os.listdir(self.partial) if not name.startswith(".nfs"))
            if there and LOCK not in there:  # each run makes its lock first and removes it last
                raise TargetError(
                    f"{self.partial} has {there[0]!r} but no {LOCK!r}, so iofast did not make it; move it elsewhere"
                ) from None
            return os.open(self.partial / self._name, flags | os.O_CREAT, 0o600)

    def _take(self, lock: int) -> None:
        """Lock this file, unless another file is at its path by now. Raises `BusyError` if another run has it."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(self.partial / self._name, follow_symlinks=False)):
                os.ftruncate(lock, 0)
                os.pwrite(lock, b"%d\n" % os.getpid(), 0)
                self._lock = lock
        except BlockingIOError:
            pid = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise BusyError(f"another run of iofast is writing {self.path} (process {pid})") from None
        finally:
            if self._lock != lock:
                os.close(lock)

    @contextlib.contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Turn errors of the system into `TargetError`."""
        try:
            yield
        except TargetError:
            raise
        except OSError as error:
            raise TargetError(f"{self.path} cannot be {done}: {because(error)}") from None


def require_free(path: str | os.PathLike[str], needed: int) -> None:
    """Raise `TargetError` unless the disk of `path` (or of its nearest existing folder) has `needed` bytes free."""
    folder = existing_folder(Path(os.path.abspath(os.fspath(path))))
    free = shutil.disk_usage(folder).free
    if free < needed:
        unit, size = ("GB", 1e9) if needed >= 1e9 else ("MB", 1e6)
        have = f"{needed / size:.2f} {unit} are needed at the peak, {free / size:.2f} {unit} are free in {folder}"
        raise TargetError(f"too little disk space for {os.fspath(path)}: {have}")


def existing_folder(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _check(marker: Mapping[str, Any] | None, target: Target) -> None:
    """Raise unless a marker names plain files that belong to the target. It may be another program's, or hostile."""
    if marker is None:
        raise ValueError("it is no object")
    staged, final = [str(old) for old, _ in marker["files"]], [str(new) for _, new in marker["files"]]
    for name in (*staged, *final, *marker["replaced"]):
        if not isinstance(name, str) or not name or "/" in name or "\0" in name or name in _RESERVED:
            raise TargetError(f"{name!r} cannot be the name of a staged file")
    strange: Sequence[str] = [name for name in (*final, *marker["replaced"]) if not target.owns(name)]
    if strange:
        raise TargetError(
            f"{target.partial} names {strange[0]!r}, which cannot be a file of {target.path.name}; delete the folder"
        )
