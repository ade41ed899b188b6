"""A cold, slow disk: files are dropped from the page cache, and a control group limits what this process reads.

The limit needs root. Control groups of version 1 (`blkio`) and of version 2 (`io`, where the root group hands it down).
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.photographs import files_in

GROUPS = Path("/sys/fs/cgroup")
_NAME = "iofast-slow-device"


class SlowDeviceError(RuntimeError):
    """This machine cannot slow a device down; the message has the reason."""


@contextlib.contextmanager
def limited(path: Path, bytes_per_s: int) -> Iterator[None]:
    """While the block runs, this process reads the device of `path` with at most `bytes_per_s`.

    Raises `SlowDeviceError` if that is impossible.
    """
    with control_group(*_limit(disk_of(path), bytes_per_s)):
        yield


@contextlib.contextmanager
def control_group(controller: str, file: str, line: str) -> Iterator[None]:
    """While the block runs, this process is in a control group of its own, whose `file` has this line.

    `controller`: its folder in version 1, "" in version 2. Raises `SlowDeviceError` if that is impossible.
    """
    parent = GROUPS / controller
    group = parent / f"{_NAME}-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise SlowDeviceError(f"a control group cannot be made (are you root?): {error}") from None
    home = parent / _home(controller).lstrip("/") / "cgroup.procs"
    try:
        (group / file).write_text(line)
        (group / "cgroup.procs").write_text(str(os.getpid()))  # all threads of it
        yield
    except OSError as error:
        raise SlowDeviceError(f"control group {group} does not take the limit {line!r}: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            home.write_text(str(os.getpid()))
        for _ in range(100):  # until child processes have ended
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


def evict(path: Path) -> None:
    """Drop a file, or all files below a folder, from the page cache; they must have been written to the disk."""
    for each in files_of(path):
        with each.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fill(path: Path) -> None:
    """Read a file, or all files below a folder, so that they are in the page cache."""
    piece = bytearray(1 << 20)
    for each in files_of(path):
        with each.open("rb", buffering=0) as file:
            while file.readinto(piece):
                pass


def files_of(path: Path) -> list[Path]:
    """A file, or all files below a folder."""
    return [path] if path.is_file() else files_in(path)


def disk_of(path: Path) -> str:
    """`major:minor` of the whole disk under `path`. Raises `SlowDeviceError` if there is none."""
    number = path.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not place.exists():
        raise SlowDeviceError(f"{path} is not on a block device of its own: nothing to limit")
    if (place / "partition").exists():
        place = place.resolve().parent
    return (place / "dev").read_text().strip()


def _limit(disk: str, bytes_per_s: int) -> tuple[str, str, str]:
    """Folder of the controller, the file that takes the limit, and the limit."""
    if (GROUPS / "blkio" / "cgroup.procs").exists():
        return "blkio", "blkio.throttle.read_bps_device", f"{disk} {bytes_per_s}"
    handed_down = GROUPS / "cgroup.subtree_control"
    if handed_down.exists() and "io" in handed_down.read_text().split():
        return "", "io.max", f"{disk} rbps={bytes_per_s}"
    raise SlowDeviceError("no control group limits block devices here (neither blkio of version 1 nor io of version 2)")


def _home(controller: str) -> str:
    """The group this process is in now."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path
    return "/"
