"""This process's page, made when its first loader has something to say, and a slot of it for each loader.

Nothing in here may disturb training: what goes wrong is logged once, at level debug, and there is no page. No lock is
ever waited for. A forked child forgets its parent's page and makes its own.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import mmap
import os
import re
import struct
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from iofast.telemetry.counters import Stages
from iofast.telemetry.folder import folders, opened, place, start_time
from iofast.telemetry.layout import (
    HEADER_SIZE,
    PHASE_SLOT_SIZE,
    PHASES_AT,
    RANK,
    RANK_AT,
    SEQUENCE,
    SIZE,
    SLOT_SIZE,
    SLOTS,
    LoaderInfo,
    PageHeader,
    PhaseTotals,
    Totals,
    encode,
    encode_header,
    encode_loader,
    encode_phases,
)
from iofast.telemetry.reading import remove_stale

_LOG = logging.getLogger(__name__)
_SERIALS = itertools.count(1)


class _Page:
    """A page of this process; `map` is None once it is another's: after a fork, or when it was closed."""

    def __init__(self, mapped: mmap.mmap, path: Path) -> None:
        self.map: mmap.mmap | None = mapped
        self.path = path
        self.free = deque(range(SLOTS))  # popleft and append are one step each: no lock


class _OwnPage:
    """What this process has: no page yet, one, or the knowledge that it can have none."""

    def __init__(self) -> None:
        self.page: _Page | None = None
        self.impossible = False
        self.making = threading.Lock()


_process = _OwnPage()


def _own_page() -> _Page | None:
    process = _process
    # not waited for: who makes the page may be the very frame that a signal handler or finalizer has interrupted
    if process.page is None and not process.impossible and process.making.acquire(blocking=False):
        try:
            process.page = process.page or _make()  # another thread's, made between the two looks at it
        except (OSError, ValueError, struct.error) as error:
            process.impossible = True
            _LOG.debug("no telemetry page: %s", error)
        finally:
            process.making.release()
    return process.page


def _make() -> _Page:
    pid = os.getpid()
    started = start_time(pid)
    if started is None:
        raise OSError("/proc does not know this process")
    rank = os.environ.get("RANK", "")  # torchrun's; a loader that knows better corrects it
    header = PageHeader(pid, int(rank) if re.fullmatch("[0-9]{1,8}", rank) else -1, 0, started, *place())
    folder, name = next(iter(folders()), None), f"{pid}-{started}.page"
    if folder is None:
        raise OSError("there is no folder for it")
    with opened(folder, make=True) as descriptor:
        remove_stale(descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=descriptor)  # ours, from before an exec: the process is the same, its memory is not
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        page = os.open(name, flags, 0o600, dir_fd=descriptor)
        try:
            # written, not only sized: storing to a hole of a full file system would kill the process
            if os.write(page, encode_header(header).ljust(SIZE, b"\0")) != SIZE:
                raise OSError(f"no room for a telemetry page in {folder}")
            return _Page(mmap.mmap(page, SIZE), folder / name)
        except BaseException:
            os.unlink(name, dir_fd=descriptor)
            raise
        finally:
            os.close(page)


class Slot:
    """A loader's place in the page. It is taken when first written to; while 16 others are taken nothing is written.

    One thread at a time writes; where two do, a reader may have to try again, and the last one stays. `info` may be
    replaced at any time.
    """

    def __init__(self, info: LoaderInfo) -> None:
        self._serial = next(_SERIALS)
        self.info = info
        self._page: _Page | None = None
        self._number = 0
        self._places: dict[_Page, int] = {}  # which of two threads has found the place: setdefault is one step
        self._closed = False

    @property
    def info(self) -> LoaderInfo:
        """What the loader is."""
        return self._info

    @info.setter
    def info(self, info: LoaderInfo) -> None:
        self._info, self._loader = info, encode_loader(info, self._serial)

    def write(
        self,
        figures: Totals,
        stages: Stages | None = None,
        phases: Sequence[tuple[str, PhaseTotals]] = (),
        *,
        on_device: bool = False,
    ) -> None:
        """Tell what the loader has done by now, and the phases of its steps: the first eight, timed by a device or by
        the host. Raises nothing.
        """
        with contextlib.suppress(OSError, ValueError, struct.error):  # such as a figure that has no room
            page = self._page
            mapped = self._taken() if page is None or page.map is None else page.map
            if mapped is not None:
                if phases:
                    _store(mapped, _phases_at(self._number), encode_phases(self._serial, phases, on_device))
                _store(mapped, _at(self._number), encode(self._loader, figures, stages))

    def close(self) -> None:
        """Give the place back. May be called from a finalizer, and more than once."""
        page, self._page, self._closed = self._page, None, True
        if page is not None and page.map is not None:
            with contextlib.suppress(ValueError):
                _store(page.map, _at(self._number), bytes(SLOT_SIZE - SEQUENCE.size))
                _store(page.map, _phases_at(self._number), bytes(PHASE_SLOT_SIZE - SEQUENCE.size))
            page.free.append(self._number)

    def _taken(self) -> mmap.mmap | None:
        page = None if self._closed else _own_page()
        if page is None or page.map is None:
            return None
        try:
            number = page.free.popleft()
        except IndexError:
            return None
        mine = self._places.setdefault(page, number)
        if mine != number:
            page.free.append(number)
        self._number = mine
        self._page = page  # last: from here on other threads use both
        if self.info.rank is not None:
            RANK.pack_into(page.map, RANK_AT, self.info.rank, self.info.world_size)
        return page.map


def _at(number: int) -> int:
    return HEADER_SIZE + number * SLOT_SIZE


def _phases_at(number: int) -> int:
    return PHASES_AT + number * PHASE_SLOT_SIZE


def _store(mapped: mmap.mmap, at: int, body: bytes) -> None:
    (sequence,) = SEQUENCE.unpack_from(mapped, at)
    sequence |= 1  # odd also where a Ctrl-C came between the lines below
    SEQUENCE.pack_into(mapped, at, sequence)
    try:
        mapped[at + SEQUENCE.size : at + SEQUENCE.size + len(body)] = body
    finally:
        SEQUENCE.pack_into(mapped, at, (sequence + 1) % (1 << 64))


def close_page() -> None:
    """Remove this process's page. A loader that goes on makes a new one, or tries again."""
    page, _process.page, _process.impossible = _process.page, None, False
    if page is not None:
        page.map = None  # not closed: a thread may be writing to it
        with contextlib.suppress(OSError):
            page.path.unlink()


@atexit.register
def _at_exit() -> None:
    _process.making.acquire(blocking=False)  # and never given back: threads that still run shall not make another page
    close_page()


def _after_fork() -> None:
    global _process
    if _process.page is not None:
        _process.page.map = None  # the parent's: what a slot of ours wrote there would be read as the parent's
    _process = _OwnPage()  # also its lock, which a thread may have held that is not here


os.register_at_fork(after_in_child=_after_fork)
