"""The telemetry pages of this user's live processes on this machine and in this pid namespace, and this process's own.

Other users may write to the temporary folder, so only folders are read that `owned.trust` trusts.

The own page is replaced whenever one of the process's loaders publishes. Nothing of that may disturb training: after a
failure, logged once at level debug, there is no page. No lock is taken. A forked child makes a page of its own.
"""

import atexit
import contextlib
import itertools
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from iofast import owned
from iofast.meter.counters import Stages
from iofast.meter.page import (
    MAX_LOADERS,
    LoaderInfo,
    LoaderReport,
    Page,
    PhaseTotals,
    Totals,
    from_json,
    printable,
    to_json,
)
from iofast.meter.traffic import traffic

_LOG = logging.getLogger(__name__)
_SERIALS = itertools.count(1)
_START_TIME = 22  # its field in /proc/<pid>/stat, counting from 1
_DEAD = (b"Z", b"X", b"x")  # zombies too: they write no page
_PROC = Path("/proc")


def folders() -> list[Path]:
    """Return the folders of pages; this process writes to the first one."""
    candidates = []
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    with contextlib.suppress(OSError):  # in a container the folder may not exist, and under sudo it is another user's
        if runtime.is_absolute() and runtime.stat().st_uid == os.geteuid():
            candidates.append(runtime / "iofast")
    # not tempfile.gettempdir(): as a last resort it returns the working folder, where no monitor would look
    temporary = Path(os.environ.get("TMPDIR") or "/tmp").absolute()
    return [*candidates, temporary / f"iofast-{os.geteuid()}"]


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


def machine() -> str:
    """Return the scope of this process's pid: one boot of one machine, and a pid namespace there. Raises OSError.

    The namespace's inode is not enough: the first one is the same on every machine, and a cluster may share a temporary
    folder.
    """
    boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    return f"{boot} {(_PROC / 'self' / 'ns' / 'pid').stat().st_ino}"


def pages() -> list[Page]:
    """Return all pages of this user's live processes, sorted by pid. Removes pages of dead processes.

    Pages of other machines and pid namespaces stay, because their processes may live.
    """
    found = dict[int, Page]()
    for folder in folders():
        with contextlib.suppress(OSError):
            owned.trust(folder)
            for path in folder.glob("*.json"):
                page = _read(path)
                if page is None or page.machine != machine():
                    continue
                if start_time(page.pid) == page.start_time:
                    found[page.pid] = page
                else:
                    path.unlink(missing_ok=True)
    return [found[pid] for pid in sorted(found)]


def _read(path: Path) -> Page | None:
    try:
        return from_json(path.read_text())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # removed meanwhile, or not a page
        return None


class _OwnPage:
    """The loaders of this process, and the page's file once there is one."""

    def __init__(self) -> None:
        self.loaders: dict[int, LoaderReport] = {}  # by serial
        self.path: Path | None = None
        self.impossible = False

    def write(self) -> None:
        """Replace the page. If two threads write at once the last one wins; each writes all loaders."""
        if self.impossible:
            return
        try:
            pid, here = os.getpid(), machine()
            started = start_time(pid) or 0
            self.path = self.path or _folder() / f"{pid}-{started}.json"
            loaders = sorted(self.loaders.copy().values(), key=lambda report: report.serial)[:MAX_LOADERS]
            ranks = ((each.info.rank, each.info.world_size) for each in loaders if each.info.rank is not None)
            rank, world_size = next(ranks, (None, 0))
            with owned.writing(self.path, 0o600, durable=False) as file:
                file.write(to_json(Page(pid, started, here, rank, world_size, tuple(loaders))).encode())
        except (OSError, ValueError, TypeError) as error:
            self.end()
            _LOG.debug("no telemetry page: %s", error)

    def end(self) -> None:
        """Remove the page, and write none again."""
        self.impossible = True
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()


def _folder() -> Path:
    """The folder of this process's page, without what killed processes have left."""
    folder = folders()[0]
    with contextlib.suppress(FileExistsError):  # perhaps made by another user: checked below
        folder.mkdir(0o700)
    owned.trust(folder)
    pages()
    return folder


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


@atexit.register
def _at_exit() -> None:
    _process.end()  # running threads must not write another page


def _begin() -> None:
    """Forget all, without removing a page: in a forked child it is the parent's."""
    global _process
    _process = _OwnPage()


os.register_at_fork(after_in_child=_begin)
