"""Where the data lies, by the files that workers have open: one process is looked at in an interval."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import PurePosixPath
from statistics import median
from typing import Final

from iofast.containers.container_suffixes import OF_OTHERS, WRITTEN
from iofast.monitor.probe.states import folder

IMAGES: Final = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".heic", ".avif"))
_DATA: Final = IMAGES.union(
    (*WRITTEN, *OF_OTHERS, ".parquet", ".jsonl", ".arrow", ".feather", ".sqlite", ".db", ".bin", ".dat"),
    (".mp4", ".wav", ".flac"),
)
_ELSEWHERE: Final = ("/proc/", "/dev/", "/sys/", "/usr/", "/lib", "/etc/", "/run/", "/snap/")
_NOT_DATA: Final = ("/site-packages/", "/dist-packages/", "/.cache/torch", "/.triton/", "torchinductor_", ".log")
_MOST: Final = 256  # descriptors of one process that are looked at
_EAGER: Final = 16  # glimpses, one an interval: later ones rarely find anything new
_SELDOM: Final = 5  # intervals
_FOLDERS: Final = 16
_SIZES: Final = 256


class DataFolders:
    """Folders of data files seen so far, folders of images first, then by how often; sizes of the images."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._of_images: set[str] = set()
        self._sizes: deque[int] = deque(maxlen=_SIZES)
        self._turn = 0

    @property
    def folders(self) -> tuple[str, ...]:
        """At most 16. Classes of an image folder lie side by side and are named by their common folder."""
        side_by_side = Counter(map(os.path.dirname, self._seen))
        counts: Counter[str] = Counter()
        of_images = set()
        for path, count in self._seen.items():
            parent = os.path.dirname(path)
            name = parent if side_by_side[parent] > 1 and len(parent) > 1 else path
            counts[name] += count
            if path in self._of_images:
                of_images.add(name)
        return tuple(sorted(counts, key=lambda name: (name not in of_images, -counts[name]))[:_FOLDERS])

    @property
    def image_bytes(self) -> int | None:
        """The median size of images seen open."""
        return round(median(self._sizes)) if self._sizes else None

    def glimpse(self, pids: Sequence[int]) -> None:
        """Look at one of the processes, in turn."""
        self._turn += 1
        if not pids or (self._turn > _EAGER and self._turn % _SELDOM):
            return
        descriptors = folder(pids[self._turn % len(pids)]) / "fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(descriptors)[:_MOST]:
                with contextlib.suppress(OSError):
                    self._look(f"{descriptors}/{name}")
        if len(self._seen) > 8 * _FOLDERS:
            self._seen = Counter(dict(self._seen.most_common(4 * _FOLDERS)))
            self._of_images &= self._seen.keys()

    def _look(self, link: str) -> None:
        path = os.readlink(link)
        suffix = PurePosixPath(path).suffix.lower()
        if not path.startswith("/") or path.startswith(_ELSEWHERE) or suffix not in _DATA:
            return
        if any(part in path for part in _NOT_DATA):
            return
        status = os.stat(link)  # through the link: the job may have mounted other file systems
        if stat.S_ISREG(status.st_mode):
            self._seen[os.path.dirname(path)] += 1
            if suffix in IMAGES:
                self._of_images.add(os.path.dirname(path))
                self._sizes.append(status.st_size)
