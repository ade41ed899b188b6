"""Read telemetry pages of this user's live processes on this machine and in this pid namespace.

The folder may contain anything: other versions, directories, pipes. Whatever is no page of a live process is ignored.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from iofast.telemetry.folder import NAME, PidSpace, folders, opened, place, start_time
from iofast.telemetry.page import MAX_BYTES, LoaderReport, PageHeader, TornPageError, from_json

_MOST_FILES = 1024  # looked at in one folder
_PATIENCE_S = 0.02  # for a page that is being written
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # NONBLOCK: a pipe without a writer


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
