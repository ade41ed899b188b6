"""This process's telemetry page, overwritten whenever one of its loaders publishes.

Nothing here may disturb training: after a failure, logged once at level debug, there is no page. No lock is taken. A
forked child makes a page of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

from iofast.meter.counters import Stages
from iofast.meter.page import (
    MAX_LOADERS,
    LoaderInfo,
    PageHeader,
    PhaseTotals,
    Totals,
    figure_members,
    loader_members,
    to_json,
)
from iofast.meter.reading import folders, opened, place, remove_stale, start_time

_LOG = logging.getLogger(__name__)
_SERIALS = itertools.count(1)
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _OwnPage:
    """The loaders of this process, and the page's file once there is one."""

    def __init__(self) -> None:
        self.loaders: dict[int, dict[str, object]] = {}  # by serial
        self.header: PageHeader | None = None
        self.path = Path()
        self.file = -1  # a descriptor
        self.size = 0
        self.impossible = self.ended = False

    def write(self) -> None:
        """Overwrite the page. If two threads write at once the last one wins; each writes all loaders."""
        if self.impossible or self.ended:
            return
        try:
            if self.header is None:
                self._begin()
            assert self.header is not None
            loaders = [self.loaders.get(serial) for serial in sorted(self.loaders)[:MAX_LOADERS]]
            text = to_json(self.header, [each for each in loaders if each is not None], self.size)
            if os.pwrite(self.file, text, 0) != len(text):
                raise OSError("no room for a telemetry page")
            self.size = len(text)
        except (OSError, ValueError, TypeError) as error:
            self.impossible = True
            self.remove()
            _LOG.debug("no telemetry page: %s", error)

    def remove(self) -> None:
        """Remove the page."""
        if self.file >= 0:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Close the file."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)

    def _begin(self) -> None:
        pid = os.getpid()
        started, parent = start_time(pid), next(iter(folders()), None)
        if started is None or parent is None:
            raise OSError("/proc does not know this process" if started is None else "there is no folder for it")
        namespace, boot = place()
        name = f"{pid}-{started}.page"
        with opened(parent, make=True) as folder:
            remove_stale(folder)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)  # left by this process before an exec
            self.file = os.open(name, _FLAGS, 0o600, dir_fd=folder)
        self.path = parent / name
        rank = os.environ.get("RANK", "")  # set by torchrun
        self.header = PageHeader(pid, started, namespace, boot, int(rank) if re.fullmatch("[0-9]{1,8}", rank) else None)


_process = _OwnPage()


class Slot:
    """One loader's part of the page. `info` may be replaced at any time."""

    def __init__(self, info: LoaderInfo) -> None:
        self._serial = next(_SERIALS)
        self._closed = False
        self.info = info

    @property
    def info(self) -> LoaderInfo:
        """The description of the loader."""
        return self._info

    @info.setter
    def info(self, info: LoaderInfo) -> None:
        self._info, self._members = info, loader_members(info, self._serial)

    def write(
        self,
        figures: Totals,
        stages: Stages | None = None,
        phases: Sequence[tuple[str, PhaseTotals]] = (),
        *,
        on_device: bool = False,
    ) -> None:
        """Publish the loader's totals and the phases of its steps. Raises nothing."""
        if not self._closed:
            own = _process
            own.loaders[self._serial] = self._members | figure_members(figures, stages, phases, on_device=on_device)
            own.write()

    def close(self) -> None:
        """Remove the loader from the page. May be called from a finalizer, and more than once."""
        own, self._closed = _process, True
        if own.loaders.pop(self._serial, None) is not None:
            own.write()


def close_page() -> None:
    """Remove this process's page. A loader that publishes later makes a new one."""
    global _process
    before, _process = _process, _OwnPage()
    before.remove()


@atexit.register
def _at_exit() -> None:
    _process.ended = True  # running threads must not write another page
    _process.remove()


def _after_fork() -> None:
    global _process
    _process.close()
    _process = _OwnPage()


os.register_at_fork(after_in_child=_after_fork)
