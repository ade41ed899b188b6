"""`<DST>.partial/`: where a target is made, who may make it, and how it gets its name (docs/format.md section 8)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from iofast.errors import ContainerError, IofastError, TargetError

LOCK = "lock"
MARKER = "publishing"
PACK_PLAN = "plan.json"  # in the `.partial` folder: what `pack` is at work on there,
COPY_PLAN = "copy.json"  # or what is copied there
APPENDING = "appending"  # the container that stands is whole as long as this is here: it is added to, not replaced
APPENDED = (
    ".appended"  # of a file beside the target: what `appending` said, from when the folder goes until all is done
)

_RESERVED = (".", "..", LOCK, MARKER, APPENDING)
_MARKED = ("names", "staged", "replaced", "removed", "sidecars")


class Target:
    """The place of a container that is being made: `<path>.partial/`, locked while this is acquired.

    In a `with` block the lock is held; leaving it keeps what was staged, for a later run to go on from, unless
    `publish` or `discard` was called. Every failure is a `TargetError` of one line. With `append` the target must
    exist.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False, append: bool = False) -> None:
        self.path = Path(os.path.abspath(os.fspath(path)))
        self.partial = self.path.with_name(self.path.name + ".partial")
        self.appended = self.path.with_name(self.path.name + APPENDED)
        self.overwrite, self.append = overwrite, append
        self.sidecars: tuple[str, ...] = ()  # index files for other programs that are made as a part of publishing
        self._lock: int | None = None

    @property
    def going_on(self) -> str:
        """What to do about work that was interrupted, in words."""
        return f"the same command goes on from there; delete {self.partial} to start anew"

    def acquire(self) -> None:
        """Check that the target may be written, make the folder, take the lock.

        A target that exists is refused, unless `overwrite`, or a publication was interrupted (see `interrupted`).
        """
        self.check_folder()
        if not self.interrupted:
            self.check_free()  # before a folder is made for a run that will be refused
        try:
            if not self.path.parent.exists():
                self.path.parent.mkdir(exist_ok=True)
                sync(self.path.parent.parent)
            self._lock = self._acquire()
        except OSError as error:
            if isinstance(error, TargetError):
                raise
            raise TargetError(f"{self.path} cannot be written: {_reason(error)}") from None
        try:
            if not self.interrupted:
                self.check_free()  # again: another run may have published between the check and the lock
            if self.append and set(os.listdir(self.partial)) <= {LOCK}:  # else it is there, or another run's work is
                (self.partial / APPENDING).touch()
        except OSError as error:
            self.discard()
            if isinstance(error, TargetError):
                raise
            raise TargetError(f"{self.path} cannot be written: {_reason(error)}") from None

    def check_folder(self) -> None:
        """Raise `TargetError` unless the target's folder is there, or its own folder is, for then it is made."""
        parent = self.path.parent
        there = parent.parent if not os.path.lexists(parent) and parent.parent.is_dir() else parent
        if not there.is_dir():
            raise TargetError(f"{there} is not a folder, so {self.path.name} cannot be made in it")
        if not os.access(there, os.W_OK | os.X_OK):
            raise TargetError(f"{there} is not writable, so {self.path.name} cannot be made in it")
        if os.path.lexists(self.partial) and (self.partial.is_symlink() or not self.partial.is_dir()):
            raise TargetError(f"{self.partial} stands where the work in progress belongs and is no folder: remove it")

    def check_free(self) -> None:
        """Raise `TargetError` if something stands in the target's place that may not be replaced."""
        if self.path.is_dir():
            raise TargetError(f"{self.path} is a folder, expected the name of a file to be made")
        if self.append:
            if not self.exists:
                raise TargetError(
                    f"{self.path} does not exist, so nothing can be added to it: pack it without --append"
                )
            return
        if os.path.lexists(self.path) and not self.overwrite:
            raise TargetError(f"{self.path} exists already: choose another name, or overwrite it with --overwrite")

    @property
    def exists(self) -> bool:
        """Whether a finished container stands there."""
        return self.path.is_file()

    @property
    def interrupted(self) -> bool:
        """Whether an earlier run had finished everything and was stopped while publishing: call `complete`."""
        return (self.partial / MARKER).is_file()

    def stage(self, name: str | None = None) -> Path:
        """Where to make the file that will be called `name` (default: the target itself)."""
        return self.partial / _plain(self.path.name if name is None else name)

    def publish(
        self,
        names: Mapping[str, str] | Sequence[str] | None = None,
        replaced: Sequence[str] = (),
        removed: Sequence[str] = (),
    ) -> None:
        """Give the staged files their names beside the target, in this order, and remove the folder.

        Default: the target alone. A mapping gives staged names other names. `replaced` names files beside the target
        that go first: an old manifest, then the shards it names; `removed` those that go last. What makes the set
        visible (the manifest) stands last. Where one of `sidecars` cannot be made, that is raised when all is done.
        """
        staged = list(names or [self.path.name])
        final = list(names.values()) if isinstance(names, Mapping) else staged
        marker = {"names": final, "staged": staged, "replaced": list(replaced), "removed": list(removed)}
        marker["sidecars"] = list(self.sidecars)
        for name in itertools.chain.from_iterable(marker.values()):
            _plain(name)
        try:
            for name in staged:
                sync(self.stage(name))
            self._write_marker(marker)
            self._rename(marker)
            failed = self._renamed(marker)
        except OSError as error:
            raise TargetError(f"{self.path} cannot be published: {_reason(error)}") from None
        self.discard()
        if failed is not None:
            raise failed

    def complete(self) -> None:
        """Finish a publication that was interrupted at any point."""
        try:
            marker = json.loads((self.partial / MARKER).read_bytes())
            marker = {
                "staged": marker["names"],
                "removed": [],
                "sidecars": [],
                **marker,
            }  # as the first versions had it
            plain = {key: [_plain(name) for name in marker[key]] for key in _MARKED}
            self._rename(plain)
            failed = self._renamed(plain)
        except OSError as error:
            raise TargetError(f"{self.path} cannot be published: {_reason(error)}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ContainerError(f"{self.partial / MARKER} is damaged: {error}") from None
        self.discard()
        if failed is not None:
            raise failed

    def clear(self) -> None:
        """Remove everything that an earlier run left in `<path>.partial/`; the lock stays, and what says `append`."""
        (self.partial / MARKER).unlink(missing_ok=True)  # first: without it the rest is rubbish
        self._empty()

    def _empty(self) -> None:
        kept = {LOCK, MARKER, APPENDING} if self.append else {LOCK, MARKER}
        for entry in [entry for entry in os.scandir(self.partial) if entry.name not in kept]:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)

    def discard(self) -> None:
        """Remove `<path>.partial/` and everything in it, the lock last; give the lock back.

        What was added stays written down in `<path>.appended` until the very end: without it a run that is killed
        before would add everything again when its command is given again.
        """
        with contextlib.suppress(FileNotFoundError):
            self._empty()
            (self.partial / MARKER).unlink(missing_ok=True)  # last: who is killed before is completed by the next run
            if self.append:
                self._move_appending()
            os.unlink(self.partial / LOCK)
        with contextlib.suppress(OSError):  # another run may have come in already: then the folder is its own
            self.partial.rmdir()
        self.release()
        if os.path.lexists(self.appended):
            self.appended.unlink(missing_ok=True)

    def release(self) -> None:
        """Give the lock back and leave everything as it is."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _renamed(self, marker: Mapping[str, Sequence[str]]) -> IofastError | None:  # noqa: ARG002
        """What is left to do, as often as it takes, once everything has its name; what of it cannot be done."""
        return None

    def _move_appending(self) -> None:
        file = self.partial / APPENDING
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_size:
                os.replace(file, self.appended)
            else:  # nothing was begun; `<path>.appended` may be there, of a run that was killed
                file.unlink()

    def _acquire(self) -> int:
        while True:
            self.partial.mkdir(exist_ok=True)
            try:
                lock = os.open(self.partial / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:  # the run before removed the folder under us
                continue
            try:
                mine = self._locked(lock)
                if mine:
                    os.ftruncate(lock, 0)
                    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
            except OSError:
                os.close(lock)
                raise
            if mine:
                return lock
            os.close(lock)

    def _locked(self, lock: int) -> bool:
        """Take the lock; False if the file is no longer the one at its path. Raises `TargetError` if it is taken."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise TargetError(f"another run of iofast is writing {self.path} (process {pid})") from None
        try:
            return os.path.samestat(os.fstat(lock), os.stat(self.partial / LOCK))
        except FileNotFoundError:
            return False

    def _write_marker(self, marker: dict[str, list[str]]) -> None:
        draft = self.partial / (MARKER + ".draft")
        draft.write_text(json.dumps(marker, sort_keys=True))
        sync(draft)
        draft.rename(self.partial / MARKER)
        sync(self.partial)

    def _rename(self, marker: dict[str, list[str]]) -> None:
        staged = dict(zip(marker["names"], marker["staged"], strict=True))
        for name in marker["replaced"]:
            if name in staged and not os.path.lexists(self.stage(staged[name])):
                continue  # that is the new one, renamed before the interruption
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path.parent / name)
        for name in marker["names"]:
            try:
                os.rename(self.stage(staged[name]), self.path.parent / name)
            except FileNotFoundError:  # renamed before the interruption
                os.stat(self.path.parent / name)
        sync(self.path.parent)
        for name in marker["removed"]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path.parent / name)


def require_free(path: str | os.PathLike[str], needed: int) -> None:
    """Raise `TargetError` unless the disk of `path` (or of its nearest existing folder) has `needed` bytes free."""
    folder = existing_folder(Path(os.path.abspath(os.fspath(path))))
    free = shutil.disk_usage(folder).free
    if free < needed:
        unit, size = ("GB", 1e9) if needed >= 1e9 else ("MB", 1e6)
        have = f"{needed / size:.2f} {unit} are needed at the peak, {free / size:.2f} {unit} are free in {folder}"
        raise TargetError(f"too little disk space for {os.fspath(path)}: {have}")


def existing_folder(path: Path) -> Path:
    """The nearest folder that is there, of a path and those above it."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _plain(name: str) -> str:
    if not isinstance(name, str) or not name or "/" in name or "\0" in name or name in _RESERVED:
        raise TargetError(f"{name!r} cannot be the name of a staged file")
    return name


def sync(path: Path) -> None:
    """Make a file, or a folder's list of names, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _reason(error: OSError) -> str:
    return "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error)).lower()
