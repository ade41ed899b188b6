"""This process's telemetry page, replaced whenever one of its loaders publishes.

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
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from iofast import owned
from iofast.meter.counters import Stages
from iofast.meter.page import MAX_LOADERS, LoaderInfo, LoaderReport, Page, PhaseTotals, Totals, printable, to_json
from iofast.meter.reading import folders, live, machine, name_of, start_time
from iofast.meter.traffic import traffic

_LOG = logging.getLogger(__name__)
_SERIALS, _DRAFTS = itertools.count(1), itertools.count(1)


class _OwnPage:
    """The loaders of this process, and the page's file once there is one."""

    def __init__(self) -> None:
        self.loaders: dict[int, LoaderReport] = {}  # by serial
        self.page: Page | None = None
        self.path = Path()
        self.impossible = False

    def write(self) -> None:
        """Replace the page. If two threads write at once the last one wins; each writes all loaders."""
        if self.impossible:
            return
        try:
            page = self.page or self._begin()
            loaders = sorted(self.loaders.copy().values(), key=lambda report: report.serial)[:MAX_LOADERS]
            ranks = [(each.info.rank, each.info.world_size) for each in loaders if each.info.rank is not None]
            rank, world_size = ranks[0] if ranks else (page.rank, 0)
            page = replace(page, loaders=tuple(loaders), rank=rank, world_size=world_size)
            _replace(self.path, to_json(page))
        except (OSError, ValueError, TypeError) as error:
            self.end()
            _LOG.debug("no telemetry page: %s", error)

    def end(self) -> None:
        """Remove the page, and write none again."""
        self.impossible = True
        if self.page is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _begin(self) -> Page:
        pid = os.getpid()
        started, folder = start_time(pid), next(iter(folders()), None)
        if started is None or folder is None:
            raise OSError("/proc does not know this process" if started is None else "there is no folder for it")
        with contextlib.suppress(FileExistsError):  # perhaps made by another user: checked below
            folder.mkdir(0o700)
        owned.trust(folder)
        live(folder)  # removes what killed processes have left
        rank = os.environ.get("RANK", "")  # set by torchrun
        self.path = folder / name_of(pid, started)
        self.page = Page(pid, started, machine(), int(rank) if re.fullmatch("[0-9]{1,8}", rank) else None)
        return self.page


def _replace(path: Path, text: str) -> None:
    """Write a file whole, without the time that `owned.writing` takes to make it durable."""
    draft = path.with_suffix(f".{next(_DRAFTS)}")  # two threads may write at once
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


_process = _OwnPage()


class Slot:
    """One loader's part of the page. `info` may be replaced at any time."""

    def __init__(self, info: LoaderInfo) -> None:
        self._serial = next(_SERIALS)
        self._closed = False
        self.info = info

    def write(
        self,
        figures: Totals,
        stages: Stages | None = None,
        phases: Mapping[str, PhaseTotals] | None = None,
        *,
        on_device: bool = False,
    ) -> None:
        """Publish the loader's totals and the phases of its steps. Raises nothing."""
        if self._closed:
            return
        own, info = _process, replace(self.info, name=printable(self.info.name))
        named = {printable(name) or "?": totals for name, totals in (phases or {}).items()}
        asked = traffic.stats() if stages is not None and stages.is_remote else None
        sums = {} if stages is None else stages.stats()
        own.loaders[self._serial] = LoaderReport(self._serial, info, figures, sums, named, on_device, asked)
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
    before.end()


@atexit.register
def _at_exit() -> None:
    _process.end()  # running threads must not write another page


def _after_fork() -> None:
    global _process
    _process = _OwnPage()


os.register_at_fork(after_in_child=_after_fork)
