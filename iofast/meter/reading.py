"""The telemetry pages of this user's live processes on this machine and in this pid namespace.

Other users may write to the temporary folder, so only folders are read that `owned.trust` trusts.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from iofast import owned
from iofast.meter.page import Page, from_json

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


def page_of(pid: int, started: int) -> Page | None:
    """Return the page of a process that started at `started`, None if it has none or is not running here."""
    for folder in folders():
        with contextlib.suppress(OSError):
            owned.trust(folder)
            page = _read(folder / name_of(pid, started))
            if page is not None and page.machine == machine() and start_time(pid) == page.start_time:
                return page
    return None


def pages() -> list[Page]:
    """Return all pages of this user's live processes, sorted by pid. Removes pages of dead processes."""
    found = dict[int, Page]()
    for folder in folders():
        with contextlib.suppress(OSError):
            owned.trust(folder)
            found |= {page.pid: page for page in live(folder)}
    return [found[pid] for pid in sorted(found)]


def live(folder: Path) -> list[Page]:
    """Return the pages of live processes in `folder`, and remove those of dead ones. Raises OSError.

    Pages of other machines and pid namespaces stay, because their processes may live.
    """
    found, here = [], machine()
    for path in folder.glob("*.json"):
        page = _read(path)
        if page is None or page.machine != here:
            continue
        if start_time(page.pid) == page.start_time:
            found.append(page)
        else:
            path.unlink(missing_ok=True)
    return found


def name_of(pid: int, started: int) -> str:
    """Return the name of a process's page."""
    return f"{pid}-{started}.json"


def _read(path: Path) -> Page | None:
    try:
        return from_json(path.read_text())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # removed meanwhile, or not a page
        return None
