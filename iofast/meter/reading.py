"""The telemetry pages of this user's live processes on this machine and in this pid namespace.

Other users may write to the parent folder (the temporary one). So the folder is opened once, checked through its
descriptor, and used through it. It may contain anything: other versions, directories, pipes. Everything but pages of
live processes is ignored.
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
_DEAD = (b"Z", b"X", b"x")  # zombies too: they write no page
_PROC = Path("/proc")
_MOST_FILES = 1024  # read in one folder
_PATIENCE_S = 0.02  # time for a page that is being written
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # NONBLOCK: a pipe without a writer


def folders() -> list[Path]:
    """Return the folders of pages; this process writes to the first one."""
    candidates = []
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    with contextlib.suppress(OSError):  # in a container the folder may not exist, and under sudo it is another user's
        if runtime.is_absolute() and runtime.stat().st_uid == os.geteuid():
            candidates.append(runtime / "iofast")
    with contextlib.suppress(OSError):  # a container may have no writable temporary folder
        temporary = tempfile.gettempdir()
        # as a last resort Python returns the working folder, where no monitor would look
        if temporary in _temporary() or temporary != os.getcwd():
            candidates.append(Path(temporary) / f"iofast-{os.geteuid()}")
    return candidates


def _temporary() -> set[str]:
    """Return the folders for temporary files on this system."""
    named = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return {"/tmp", "/var/tmp", "/usr/tmp", *(os.path.abspath(name) for name in named if name)}


@contextlib.contextmanager
def opened(folder: Path, *, make: bool = False) -> Iterator[int]:
    """Open `folder`. Raises OSError unless `owned.trust` trusts it."""
    if make:
        with contextlib.suppress(FileExistsError):  # perhaps made by another user: checked below
            folder.mkdir(0o700)
    owned.trust(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def start_time(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot, None if it is not running.

    Raises OSError if /proc cannot be read.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 1 :].split()  # a command's name may contain blanks and parentheses
    return None if fields[0] in _DEAD else int(fields[_START_TIME - 3])


class PidSpace(NamedTuple):
    """The scope of a pid: one boot of one machine, and a pid namespace there.

    The namespace's inode is not enough: the first one is the same on every machine, and a cluster may share a temporary
    folder.
    """

    pid_namespace: int
    boot: str


def place() -> PidSpace:
    """Return this process's pid space. Raises OSError."""
    namespace = (_PROC / "self" / "ns" / "pid").stat().st_ino
    return PidSpace(namespace, (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()[:64])


@dataclass(frozen=True)
class Page:
    """A live process and its loaders that have returned a batch. `rank` and `world_size` are those of its loaders."""

    path: Path
    pid: int
    start_time: int
    rank: int | None
    world_size: int
    loaders: tuple[LoaderReport, ...]


def read_page(path: Path | str) -> Page | None:
    """Return the page at `path`, None if there is none or its process is not running here."""
    try:
        return _page(Path(path), _read(os.open(path, _FLAGS)), place())
    except OSError:
        return None


def pages() -> list[Page]:
    """Return all pages of this user's processes, sorted by pid. Removes pages of dead processes."""
    by_pid = {}
    for folder in folders():
        with contextlib.suppress(OSError), opened(folder) as descriptor:
            remove_stale(descriptor)
            here = place()
            for name in _names(descriptor):
                with contextlib.suppress(OSError):
                    page = _page(folder / name, _read(os.open(name, _FLAGS, dir_fd=descriptor)), here)
                    if page is not None:
                        by_pid[page.pid] = page
    return [by_pid[pid] for pid in sorted(by_pid)]


def remove_stale(folder: int) -> None:
    """Remove the pages of dead processes in `folder`, a descriptor. Raises OSError.

    Pages of other machines and pid namespaces stay, because their processes may live.
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
    """Read a page from a regular file of this user (for root, of any user). Closes `descriptor`. Raises OSError."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or os.geteuid() not in (0, status.st_uid) or status.st_size > MAX_BYTES:
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
