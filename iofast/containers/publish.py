"""`<DST>.partial/`: where a target is made, who may make it, and how it gets its name (docs/format.md section 8)."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from iofast import owned
from iofast.containers.locked_folder import LOCK, LockedFolder
from iofast.errors import ContainerError, IofastError, TargetError, because

MARKER = "publishing"
PACK_PLAN = "plan.json"  # in the `.partial` folder: what `pack` is at work on there,
COPY_PLAN = "copy.json"  # or what is copied there
APPENDING = "appending"  # the container that stands is whole as long as this is here: it is added to, not replaced
APPENDED = (
    ".appended"  # of a file beside the target: what `appending` said, from when the folder goes until all is done
)

_RESERVED = (".", "..", LOCK, MARKER, APPENDING)
_MARKED = ("names", "staged", "replaced", "removed", "sidecars")
_BESIDE = ("names", "replaced", "removed")  # of these: files beside the target


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
        self._folder = LockedFolder(self.partial, self.path)

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
                owned.sync(self.path.parent.parent)
            self._folder.acquire()
        except OSError as error:
            if isinstance(error, TargetError):
                raise
            raise TargetError(f"{self.path} cannot be written: {because(error)}") from None
        try:
            if not self.interrupted:
                self.check_free()  # again: another run may have published between the check and the lock
            if self.append and set(os.listdir(self.partial)) <= {LOCK}:  # else it is there, or another run's work is
                (self.partial / APPENDING).touch(0o600)
        except OSError as error:
            self.discard()
            if isinstance(error, TargetError):
                raise
            raise TargetError(f"{self.path} cannot be written: {because(error)}") from None

    def check_folder(self) -> None:
        """Raise `TargetError` unless the target's folder is there, or its own folder is, for then it is made."""
        parent = self.path.parent
        there = parent.parent if not os.path.lexists(parent) and parent.parent.is_dir() else parent
        if not there.is_dir():
            raise TargetError(f"{there} is not a folder, so {self.path.name} cannot be made in it")
        if not os.access(there, os.W_OK | os.X_OK):
            raise TargetError(f"{there} is not writable, so {self.path.name} cannot be made in it")
        self._folder.check()

    def check_free(self) -> None:
        """Raise `TargetError` if something stands in the target's place that may not be replaced."""
        if self.path.is_dir():
            raise TargetError(f"{self.path} is a folder, expected the name of a file to be made")
        if self.append:
            if not self.exists:
                raise TargetError(
                    f"{self.path} does not exist, so nothing can be added to it: pack it without append=True"
                )
            return
        if os.path.lexists(self.path) and not self.overwrite:
            raise TargetError(f"{self.path} exists already: choose another name, or give overwrite=True")

    @property
    def exists(self) -> bool:
        """Whether a finished container stands there."""
        return self.path.is_file()

    @property
    def interrupted(self) -> bool:
        """Whether an earlier run had finished everything and was stopped while publishing: call `complete`."""
        return (self.partial / MARKER).is_file()

    def owns(self, name: str) -> bool:
        """Whether a file of this name beside the target can be one of its own: no other is renamed over or removed."""
        return name == self.path.name

    def stage(self, name: str | None = None) -> Path:
        """Where to make the file that will be called `name` (default: the target itself)."""
        return self.partial / _plain(self.path.name if name is None else name)

    def note(self, name: str, members: Mapping[str, object]) -> None:
        """Write the file `name` of the folder, whole and durable: what a later run must know."""
        self._folder.write(name, json.dumps(members, sort_keys=True).encode())

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
        self._check_names(marker)
        try:
            for name in staged:
                owned.sync(self.stage(name))
            self.note(MARKER, marker)
        except OSError as error:
            raise self._unpublished(error) from None
        self._carry_out(marker)

    def complete(self) -> None:
        """Finish a publication that was interrupted at any point."""
        file = self.partial / MARKER
        try:
            marker = json.loads(owned.read(file))
            if not isinstance(marker, dict) or not marker.keys() >= set(_MARKED):
                raise ValueError(f"it must be an object with {', '.join(_MARKED)}")
            marker = {key: list(marker[key]) for key in _MARKED}
            self._check_names(marker)
        except OSError as error:
            raise self._unpublished(error) from None
        except (ValueError, KeyError, TypeError) as error:
            raise ContainerError(f"{file} is damaged: {error}; delete its folder to begin anew") from None
        self._carry_out(marker)

    def _check_names(self, marker: Mapping[str, Sequence[str]]) -> None:
        for name in itertools.chain.from_iterable(marker.values()):
            _plain(name)
        strange = [name for key in _BESIDE for name in marker[key] if not self.owns(name)]
        if strange:
            raise TargetError(
                f"{self.partial} names {strange[0]!r}, which cannot be a file of {self.path.name}; delete the folder"
            )
        if len(marker["names"]) != len(marker["staged"]):
            raise ContainerError(f"{len(marker['staged'])} staged files for {len(marker['names'])} names")

    def _carry_out(self, marker: Mapping[str, Sequence[str]]) -> None:
        try:
            self._rename(marker)
            failed = self._renamed(marker)
        except OSError as error:
            raise self._unpublished(error) from None
        self.discard()
        if failed is not None:
            raise failed

    def _unpublished(self, error: OSError) -> TargetError:
        if isinstance(error, TargetError):
            return error
        return TargetError(f"{self.path} cannot be published: {because(error)}")

    def clear(self) -> None:
        """Remove everything that an earlier run left in `<path>.partial/`; the lock stays, and what says `append`."""
        self._folder.unlink(MARKER)  # first: without it the rest is rubbish
        self._empty()

    def _empty(self) -> None:
        self._folder.empty({MARKER, APPENDING} if self.append else {MARKER})

    def discard(self) -> None:
        """Remove `<path>.partial/` and everything in it, the lock last; give the lock back.

        What was added stays written down in `<path>.appended` until the very end: without it a run that is killed
        before would add everything again when its command is given again.
        """
        if not self._folder.is_held:  # given back: what is there now is another run's
            return
        self._empty()
        self._folder.unlink(MARKER)  # remove last: if killed earlier, the next run completes publication
        if self.append:
            self._move_appending()
        self._folder.remove()
        # what another user has put there cannot always be removed, and is not believed
        with contextlib.suppress(FileNotFoundError, PermissionError, IsADirectoryError):
            self.appended.unlink()

    def release(self) -> None:
        """Give the lock back and leave everything as it is."""
        self._folder.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _renamed(self, marker: Mapping[str, Sequence[str]]) -> IofastError | None:  # noqa: ARG002
        """What is left to do, as often as it takes, once everything has its name; what of it cannot be done."""
        return None

    def _move_appending(self) -> None:
        found = self._folder.status(APPENDING)
        if found is not None and found.st_size:
            self._folder.rename(APPENDING, self.appended)
        else:  # nothing was begun; `<path>.appended` may be there, of a run that was killed
            self._folder.unlink(APPENDING)

    def _rename(self, marker: Mapping[str, Sequence[str]]) -> None:
        staged = dict(zip(marker["names"], marker["staged"], strict=True))
        for name in marker["replaced"]:
            if name in staged and self._folder.status(staged[name]) is None:
                continue  # that is the new one, renamed before the interruption
            (self.path.parent / name).unlink(missing_ok=True)
        for name in marker["names"]:
            try:
                self._folder.rename(staged[name], self.path.parent / name)
            except FileNotFoundError:  # renamed before the interruption
                os.stat(self.path.parent / name)
        owned.sync(self.path.parent)
        for name in marker["removed"]:
            (self.path.parent / name).unlink(missing_ok=True)


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
