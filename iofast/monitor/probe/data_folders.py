"""Where the data lies, by the files that workers have open: one process is looked at in an interval."""

import contextlib
import os
import stat
from collections import Counter, deque
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from pathlib import PurePosixPath
from statistics import median
from typing import Final

from iofast.containers.container_suffixes import OF_OTHERS, WRITTEN
from iofast.monitor.probe.states import folder

IMAGES: Final = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".heic", ".avif"))
_DATA: Final = IMAGES.union((*WRITTEN, *OF_OTHERS, ".parquet", ".jsonl", ".arrow", ".sqlite", ".db", ".bin", ".dat"))
_ELSEWHERE: Final = ("/proc/", "/dev/", "/sys/", "/usr/", "/lib", "/etc/", "/run/", "/snap/")
_NOT_DATA: Final = ("/site-packages/", "/dist-packages/", "/.cache/torch", "/.triton/", "torchinductor_", ".log")
_MOST: Final = 256  # descriptors of one process that are looked at
_EAGER, _SELDOM = 16, 5  # intervals with a glimpse; later ones, of which one in five has one, rarely find anything new
_FOLDERS: Final = 128
_ENTRIES: Final = 24  # of a folder that are looked at
_SIZES: Final = 256


class DataFolders:
    """Folders of data files seen so far, and the sizes of the images."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._images = set[str]()  # those folders that have images
        self._sizes: deque[int] = deque(maxlen=_SIZES)
        self._turn = 0
        self._job_root = ""

    @property
    def folder(self) -> str | None:
        """The folder with most of the data files; one of images, if any were seen: those can be packed."""
        return max(self._seen, key=lambda path: (path in self._images, self._seen[path]), default=None)

    def image_root(self, named: str, given: Sequence[str] = ()) -> str | None:
        """The folder of all images, for packing; None if that is not certain.

        `named`: the folder in the program's source; a path `given` in its command may be one, too.
        """
        if not self._seen:  # files are open for a moment only
            roots = [path for path in ([named] if named else given) if _has_classes(f"{self._job_root}{path}")]
            return roots[0] if len(roots) == 1 else None
        seen = [path for path in self._seen if path in self._images]
        around = (root for root in (named, *given) if root and any(_is_in(path, root) for path in seen))
        return max(around, key=len, default=None)

    @property
    def image_bytes(self) -> int | None:
        """The median size of images seen open."""
        return round(median(self._sizes)) if self._sizes else None

    def glimpse(self, pids: Sequence[int]) -> None:
        """Look at one of the processes, in turn."""
        self._turn += 1
        if not pids or (self._turn > _EAGER and self._turn % _SELDOM):
            return
        process = folder(pids[self._turn % len(pids)])
        self._job_root = f"{process}/root"
        with contextlib.suppress(OSError):
            for name in os.listdir(process / "fd")[:_MOST]:
                with contextlib.suppress(OSError):
                    self._look(f"{process}/fd/{name}")
        if len(self._seen) > _FOLDERS:
            self._seen = Counter(dict(self._seen.most_common(_FOLDERS // 2)))

    def _look(self, link: str) -> None:
        path = os.readlink(link)
        suffix, where = PurePosixPath(path).suffix.lower(), os.path.dirname(path)
        if not path.startswith("/") or path.startswith(_ELSEWHERE) or suffix not in _DATA:
            return
        status = os.stat(link)  # through the link: the job may have mounted other file systems
        if any(part in path for part in _NOT_DATA) or not stat.S_ISREG(status.st_mode):
            return
        self._seen[where] += 1
        if suffix in IMAGES:
            self._sizes.append(status.st_size)
            self._images.add(where)


def _is_in(path: str, root: str) -> bool:
    return f"{path}/".startswith(root.rstrip("/") + "/")


@lru_cache(_FOLDERS)  # by a path below the job's root
def _has_classes(path: str) -> bool:
    """Whether several folders in it hold images, or folders of images: classes, or splits."""
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return sum(_holds_images(one.path, below=True) for one in islice(entries, _ENTRIES)) > 1
    return False


def _holds_images(path: str, *, below: bool = False) -> bool:
    """Whether a folder holds images; with `below`, a folder in it may hold them."""
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return any(
            os.path.splitext(one.name)[1].lower() in IMAGES or (below and _holds_images(one.path))
            for one in islice(entries, _ENTRIES)
        )
    return False
