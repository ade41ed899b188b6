"""The private folder of pages, and which process a page belongs to.

A page lies where other users may have written before us (the temporary folder), so the folder is opened once, looked at
through its descriptor, and everything else goes through that descriptor.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from iofast import owned

NAME: Final = re.compile(r"([1-9][0-9]{0,9})-([0-9]{1,20})\.page")  # <pid>-<start time>.page
_START_TIME = 22  # its field in /proc/<pid>/stat, counting from 1
_DEAD = (b"Z", b"X", b"x")  # killed and not yet reaped counts as dead: nobody writes to its page any more
_PROC = Path("/proc")


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
