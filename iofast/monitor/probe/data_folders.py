"""Where the data lies, by the files that workers have open: one process is looked at in an interval."""

from __future__ import annotations

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
_SIBLINGS: Final = 24  # folders beside one of images that are looked into,
_FILES: Final = 16  # and files of each of them
_CLASSES: Final = 0.75  # of them with images, from which they are classes
_SIZES: Final = 256


class DataFolders:
    """Folders of data files seen so far, and the sizes of the images."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._roots: dict[str, str | None] = {}  # of folders of images
        self._sizes: deque[int] = deque(maxlen=_SIZES)
        self._turn = 0
        self._job_root = ""

    @property
    def folder(self) -> str | None:
        """The folder with most of the data files; one of images, if any were seen: those can be packed."""
        return max(self._seen, key=lambda path: (path in self._roots, self._seen[path]), default=None)

    def image_root(self, named: str, given: Sequence[str] = ()) -> str | None:
        """The folder of all images, for packing; None if that is not certain.

        `named`: the folder in the program's source; a path `given` in its command may be one, too.
        """
        seen = [path for path in self._seen if path in self._roots]
        if not self._seen:  # files are open for a moment only
            roots = [path for path in ([named] if named else given) if _has_classes(f"{self._job_root}{path}")]
            return roots[0] if len(roots) == 1 else None
        if named and any(_is_in(path, named) for path in seen):
            return named
        counted = Counter(self._roots[path] for path in seen for _ in range(self._seen[path]))
        found, looks = counted.most_common(1)[0] if counted else (None, 0)
        if looks < _CLASSES * counted.total():  # classes of folders of images: each of them looks like a root
            found = None
        return found or max((root for root in given if any(_is_in(path, root) for path in seen)), key=len, default=None)

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
            if where not in self._roots:
                self._roots[where] = _root(where, self._job_root)


def _is_in(path: str, root: str) -> bool:
    return f"{path}/".startswith(root.rstrip("/") + "/")


def _root(where: str, job_root: str) -> str | None:
    """The folder above `where` if most folders beside it hold images too, as classes do; `where` if none does."""
    above = os.path.dirname(where)
    if above == "/":
        return where
    with contextlib.suppress(OSError), os.scandir(job_root + above) as entries:
        folders = (one for one in entries if not one.name.startswith(".") and one.name != os.path.basename(where))
        beside = [_holds_images(one.path) for one in islice(filter(os.DirEntry.is_dir, folders), _SIBLINGS)]
        if any(beside):
            return above if sum(beside) >= _CLASSES * len(beside) else None
    return where


@lru_cache(_FOLDERS)  # by a path below the job's root
def _has_classes(path: str) -> bool:
    """Whether several folders in it hold images, or folders of images: classes, or splits."""
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return sum(_holds_images(one.path, below=True) for one in islice(entries, _SIBLINGS)) > 1
    return False


def _holds_images(path: str, *, below: bool = False) -> bool:
    """Whether a folder holds images; with `below`, a folder in it may hold them."""
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return any(
            os.path.splitext(one.name)[1].lower() in IMAGES or (below and _holds_images(one.path))
            for one in islice(entries, _FILES)
        )
    return False
