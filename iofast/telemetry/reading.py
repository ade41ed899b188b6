"""Reading telemetry pages: of processes that live on this machine, in this pid namespace, and of nothing else.

What lies in the folder may be anything: half a page, another version, a directory, a pipe. Files are read, never
mapped, so that one which is cut meanwhile cannot kill the reader.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path

from iofast.telemetry.folder import NAME, PidSpace, folders, opened, place, start_time
from iofast.telemetry.layout import (
    HEADER_SIZE,
    PHASE_SLOT_SIZE,
    PHASES_AT,
    SEQUENCE,
    SLOT_SIZE,
    SLOTS,
    VERSION,
    LoaderReport,
    PageHeader,
    decode,
    decode_header,
    decode_phases,
)

_PATIENCE_S = 0.05  # for a whole page: a writing thread that has lost the GIL gets it back within 5 ms
_MOST_PAGES = 1024  # looked at in one folder


@dataclass(frozen=True)
class Page:
    """A live process, and its loaders that have handed over a batch.

    `rank` is None where nobody said. `unreadable` slots were being written for longer than a reader waits, or hold what
    no loader of this version writes.
    """

    path: Path
    pid: int
    start_time: int
    rank: int | None
    world_size: int
    loaders: tuple[LoaderReport, ...]
    unreadable: int = 0


def read_page(path: Path | str) -> Page | None:
    """The page at `path`; None where there is none, of an unknown version, or of a process that is not running here."""
    try:
        here = place()
        return _read(Path(path), os.open(path, _FLAGS), here)
    except OSError:
        return None


def pages() -> list[Page]:
    """All pages of this user's processes, by pid. What dead processes have left is removed."""
    found = {}
    for folder in folders():
        with contextlib.suppress(OSError), opened(folder) as descriptor:
            remove_stale(descriptor)
            here = place()
            for name in _names(descriptor):
                with contextlib.suppress(OSError):
                    page = _read(folder / name, os.open(name, _FLAGS, dir_fd=descriptor), here)
                    if page is not None:
                        found[page.pid] = page
    return [found[pid] for pid in sorted(found)]


def remove_stale(folder: int) -> None:
    """Remove the pages in `folder` (a descriptor) that dead processes have left. Raises OSError.

    A page of another machine or pid namespace stays: whether its process lives cannot be seen from here.
    """
    here = place()
    for name in _names(folder):
        pid, started = map(int, name.removesuffix(".page").split("-"))
        with contextlib.suppress(OSError):
            if start_time(pid) == started:
                continue
            descriptor = os.open(name, _FLAGS, dir_fd=folder)
            try:
                header = _header(descriptor)
            finally:
                os.close(descriptor)
            if header is not None and (header.pid, header.start_time, header.place) == (pid, started, here):
                os.unlink(name, dir_fd=folder)


_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # NONBLOCK: a pipe without a writer


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        names = (entry.name for entry in entries if NAME.fullmatch(entry.name))
        return sorted(itertools.islice(names, _MOST_PAGES))


def _header(descriptor: int) -> PageHeader | None:
    """Of a regular file of this user (or of anyone, for root) with the size of a page. Raises OSError."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or os.geteuid() not in (0, found.st_uid):
        return None
    header = decode_header(os.pread(descriptor, HEADER_SIZE, 0))
    return header if header is not None and header.size == found.st_size else None


def _read(path: Path, descriptor: int, here: PidSpace) -> Page | None:
    """Closes `descriptor`. Raises OSError."""
    try:
        header = _header(descriptor)
        if header is None or header.place != here or start_time(header.pid) != header.start_time:
            return None
        loaders, unreadable, end = [], 0, time.monotonic() + _PATIENCE_S
        for number in range(SLOTS):
            try:
                report = _loader(descriptor, number, header, end)
            except ValueError:
                unreadable += 1
            else:
                loaders += [report] if report is not None else []
    finally:
        os.close(descriptor)
    loaders.sort(key=lambda loader: loader.serial)
    rank = None if header.rank < 0 else header.rank
    return Page(path, header.pid, header.start_time, rank, header.world_size, tuple(loaders), unreadable)


def _loader(descriptor: int, number: int, header: PageHeader, end: float) -> LoaderReport | None:
    """A slot's loader; None where nobody uses it. Raises ValueError where there is no whole one until `end`."""
    while True:
        try:
            report = decode(_slot(descriptor, HEADER_SIZE + number * SLOT_SIZE, SLOT_SIZE), header)
            if report is None or header.version < VERSION:
                return report
            raw = _slot(descriptor, PHASES_AT + number * PHASE_SLOT_SIZE, PHASE_SLOT_SIZE)
            phases, on_device = decode_phases(raw, report.serial)
            return replace(report, phases=phases, phases_on_device=on_device)
        except ValueError:
            if time.monotonic() >= end:
                raise
        time.sleep(100e-6)


def _slot(descriptor: int, at: int, size: int) -> bytes:
    """The `size` bytes at `at` without their sequence counter. Raises ValueError where they are being written."""
    raw = os.pread(descriptor, size, at)
    if len(raw) != size:
        raise ValueError("the page was cut")
    (sequence,) = SEQUENCE.unpack_from(raw)
    if sequence % 2 or os.pread(descriptor, SEQUENCE.size, at) != raw[: SEQUENCE.size]:
        raise ValueError("the slot is being written")
    return raw[SEQUENCE.size :]
