"""The folder of this machine in which parts for an object store are made; errors name the URL in its place."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import math
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from iofast import owned
from iofast.errors import IofastError, TargetError, because
from iofast.packing.failures import ERRORS

WORK = "IOFAST_WORK"  # the variable with the folder for work, by default the user's cache folder

_FULL = re.compile("disk space|No space left|[Qq]uota")
_OLD = 14 * 24 * 3600.0  # seconds after which the work of a killed run is removed


@contextlib.contextmanager
def work_folder(url: str, *, whole: bool) -> Iterator[Path]:
    """A private folder for the work on a set, locked; a killed run's is taken again. Raises `TargetError`.

    After a block without an error it is removed, and if the `whole` set is done, those of killed runs as well. Errors
    of the block name the URL in the place of the folder.
    """
    base, digest = base_folder(), hashlib.sha256(url.encode()).hexdigest()[:20]
    try:
        base.mkdir(0o700, parents=True, exist_ok=True)
        _remove_old(base)
        folder, descriptor = _free_folder(base / f"pack-{digest}")
    except OSError as error:
        raise TargetError(f"{base} cannot be used: {because(error)}; {WORK} names another folder") from None
    try:
        with _named_by(folder, url):
            yield folder
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):  # it has work, or is removed
            folder.rmdir()
        os.close(descriptor)
    if whole:
        _remove_old(base, f"pack-{digest}-*", -math.inf)


def base_folder() -> Path:
    """The folder that `$IOFAST_WORK` names, else the user's cache folder. Raises `TargetError` without any."""
    given = os.environ.get(WORK, "")
    if given:
        return Path(os.path.abspath(given))
    folder = owned.cache_folder()
    if folder is None:
        raise TargetError(f"there is no cache folder in which the parts could be made: set {WORK} to a folder")
    return folder / "packing"


def _free_folder(stem: Path) -> tuple[Path, int]:
    """The first folder whose name begins so and that no other process has, and its descriptor."""
    folders = (stem.with_name(f"{stem.name}-{number}") for number in itertools.count())
    return next((folder, locked) for folder in folders if (locked := _lock(folder)) is not None)


def _lock(folder: Path) -> int | None:
    """Make and lock a folder of this user's own; None if another process has it. Returns its descriptor."""
    while True:
        folder.mkdir(0o700, exist_ok=True)
        try:
            owned.trust(folder)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(folder, follow_symlinks=False)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:  # removed by the process that had it
            pass
        os.close(descriptor)


def _remove_old(base: Path, pattern: str = "pack-*", age: float = _OLD) -> None:
    """Remove folders of runs that were killed long ago."""
    for folder in base.glob(pattern):
        with contextlib.suppress(OSError, TargetError):
            if time.time() - folder.stat().st_mtime > age and (descriptor := _lock(folder)) is not None:
                shutil.rmtree(folder)
                os.close(descriptor)


@contextlib.contextmanager
def _named_by(folder: Path, url: str) -> Iterator[None]:
    """Name the URL in errors, in the place of paths in the folder. Lists of failures stay: they are here."""
    own = re.compile(re.escape(f"{folder}/") + r"([^\s;:,'\")]*)")
    parent, name = url.rpartition("/")[0], url.rpartition("/")[2]

    def named(found: re.Match[str]) -> str:
        path = found[1]
        if path.endswith(ERRORS):
            return found[0]
        return f"{parent}/{name}.partial/" if path.startswith(f"{name}.partial") else f"{parent}/{path}"

    def words(error: BaseException) -> str:
        text = own.sub(named, str(error))
        return f"{text} (work here is in {folder}; {WORK} names another folder)" if _FULL.search(text) else text

    try:
        yield
    except IofastError as error:
        raise type(error)(words(error)) from error.__cause__
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(words(error)) from None
