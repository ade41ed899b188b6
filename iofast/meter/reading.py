"""Read the pages of this user's live processes on this machine and in this pid namespace, and where they lie.

A page lies where other users may have written before us (the temporary folder), so the folder is opened once, checked
through its descriptor, and everything else goes through that descriptor. It may contain anything: other versions,
directories, pipes. Whatever is no page of a live process is ignored.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from iofast import owned
from iofast.meter.page import MAX_BYTES, LoaderReport, PageHeader, TornPageError, from_json

NAME: Final = re.compile(r"([1-9][0-9]{0,9})-([0-9]{1,20})\.page")  # <pid>-<start time>.page
_START_TIME = 22  # its field in /proc/<pid>/stat, counting from 1
_DEAD = (b"Z", b"X", b"x")  # killed and not yet reaped counts as dead: nobody writes to its page any more
_PROC = Path("/proc")
_MOST_FILES = 1024  # looked at in one folder
_PATIENCE_S = 0.02  # for a page that is being written
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # NONBLOCK: a pipe without a writer


def folders() -> list[Path]:
    """Where pages may lie: the first one is where this process writes its own."""
    found = []
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    with contextlib.suppress(OSError):  # a variable that came along into a container names nothing there,
        if runtime.is_absolute() and runtime.stat().st_uid == os.geteuid():  # and under sudo another user's
            found.append(runtime / "iofast")
    with contextlib.suppress(OSError):  # a container may have no temporary folder that can be written to
        temporary = tempfile.gettempdir()
        # Python then takes the folder that the program was started in: no place for what nobody looks for there
        if temporary in _temporary() or temporary != os.getcwd():
            found.append(Path(temporary) / f"iofast-{os.geteuid()}")
    return found


def _temporary() -> set[str]:
    """Folders that are meant for temporary files, whatever this program's own is."""
    named = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return {"/tmp", "/var/tmp", "/usr/tmp", *(os.path.abspath(name) for name in named if name)}


@contextlib.contextmanager
def opened(folder: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of `folder`, which is this user's own, closed to others and no symlink. Raises OSError."""
    if make:
        with contextlib.suppress(FileExistsError):  # made by us or by anybody: checked below
            folder.mkdir(0o700)
    descriptor = owned.open_folder(folder, private=True)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None where it is not running.

    Raises OSError where /proc does not say.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 1 :].split()  # a command's name may hold anything, also blanks and parentheses
    return None if fields[0] in _DEAD else int(fields[_START_TIME - 3])


class PidSpace(NamedTuple):
    """Where a pid means the same process: one run of one machine's kernel, and there one pid namespace.

    The namespace alone does not do: that of the whole machine has the same inode on every machine, and a temporary
    folder may be shared by a cluster.
    """

    pid_namespace: int
    boot: str


def place() -> PidSpace:
    """This process's. Raises OSError."""
    namespace = (_PROC / "self" / "ns" / "pid").stat().st_ino
    return PidSpace(namespace, (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()[:64])


@dataclass(frozen=True)
class Page:
    """A live process and its loaders that have returned a batch. `rank` and `world_size` as its loaders report them."""

    path: Path
    pid: int
    start_time: int
    rank: int | None
    world_size: int
    loaders: tuple[LoaderReport, ...]


def read_page(path: Path | str) -> Page | None:
    """The page at `path`; None if there is none, or its process is not running here."""
    try:
        return _page(Path(path), _read(os.open(path, _FLAGS)), place())
    except OSError:
        return None


def pages() -> list[Page]:
    """All pages of this user's processes, by pid. Removes pages of dead processes."""
    found = {}
    for folder in folders():
        with contextlib.suppress(OSError), opened(folder) as descriptor:
            remove_stale(descriptor)
            here = place()
            for name in _names(descriptor):
                with contextlib.suppress(OSError):
                    page = _page(folder / name, _read(os.open(name, _FLAGS, dir_fd=descriptor)), here)
                    if page is not None:
                        found[page.pid] = page
    return [found[pid] for pid in sorted(found)]


def remove_stale(folder: int) -> None:
    """Remove pages in `folder` (a descriptor) that dead processes have left. Raises OSError.

    Pages of other machines and pid namespaces stay: it cannot be known here whether their processes live.
    """
    here = place()
    for name in _names(folder):
        pid, started = map(int, name.removesuffix(".page").split("-"))
        with contextlib.suppress(OSError):
            if start_time(pid) == started:
                continue
            header, _ = _read(os.open(name, _FLAGS, dir_fd=folder)) or (None, ())
            if header is not None and (header.pid, header.start_time, header.place) == (pid, started, here):
                os.unlink(name, dir_fd=folder)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        names = (entry.name for entry in entries if NAME.fullmatch(entry.name))
        return sorted(itertools.islice(names, _MOST_FILES))


def _read(descriptor: int) -> tuple[PageHeader, tuple[LoaderReport, ...]] | None:
    """What a regular file of this user (or of anyone, for root) contains. Closes `descriptor`. Raises OSError."""
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or os.geteuid() not in (0, found.st_uid) or found.st_size > MAX_BYTES:
            return None
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return from_json(os.pread(descriptor, MAX_BYTES, 0))
            except TornPageError:
                if time.monotonic() >= end:
                    return None
            time.sleep(100e-6)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return None
    finally:
        os.close(descriptor)


def _page(path: Path, read: tuple[PageHeader, tuple[LoaderReport, ...]] | None, here: PidSpace) -> Page | None:
    if read is None:
        return None
    header, loaders = read
    if header.place != here or start_time(header.pid) != header.start_time:
        return None
    ranks = [(each.info.rank, each.info.world_size) for each in loaders if each.info.rank is not None]
    rank, world_size = ranks[0] if ranks else (header.rank, 0)
    return Page(path, header.pid, header.start_time, rank, world_size, loaders)
