"""Where the data lies, by the files that workers have open: a glimpse at one process an interval."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from statistics import median
from typing import Final

from iofast.monitor.probe.states import PROC

IMAGES: Final = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".heic", ".avif"))
_DATA: Final = (
    IMAGES
    | frozenset(
        (".lmdb", ".mdb", ".tar", ".zip", ".tfrecord", ".tfrecords", ".rec", ".beton", ".h5", ".hdf5", ".npy", ".npz")
    )
    | frozenset(
        (".parquet", ".arrow", ".feather", ".sqlite", ".db", ".bin", ".dat", ".mds", ".mp4", ".wav", ".flac", ".jsonl")
    )
)
_ELSEWHERE: Final = ("/proc/", "/dev/", "/sys/", "/usr/", "/lib", "/etc/", "/run/", "/snap/")
_NOT_DATA: Final = ("/site-packages/", "/dist-packages/", "/.cache/torch", "/.triton/", "torchinductor_", ".log")
_MOST: Final = 256  # descriptors that are looked at in one process
_EAGER: Final = 16  # glimpses, one an interval; after that it is seldom that there is anything new
_SELDOM: Final = 5  # intervals
_FOLDERS: Final = 16
_SIZES: Final = 256


class DataFolders:
    """Folders of data files seen so far, those of images first, then by how often; sizes of images among them."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._seen: Counter[str] = Counter()
        self._of_images: set[str] = set()
        self._sizes: deque[int] = deque(maxlen=_SIZES)
        self._turn = 0

    @property
    def folders(self) -> tuple[str, ...]:
        """At most 16. Classes of an image folder, which lie side by side, are named by what they lie in."""
        by_parent: dict[str, set[str]] = {}
        for folder in self._seen:
            by_parent.setdefault(os.path.dirname(folder), set()).add(folder)
        counts: Counter[str] = Counter()
        pictures = set()
        for folder, count in self._seen.items():
            parent = os.path.dirname(folder)
            name = parent if len(by_parent[parent]) > 1 and len(parent) > 1 else folder
            counts[name] += count
            if folder in self._of_images:
                pictures.add(name)
        order = sorted(counts, key=lambda name: (name not in pictures, -counts[name]))
        return tuple(order[:_FOLDERS])

    @property
    def image_bytes(self) -> int | None:
        """The median size of images seen open."""
        return round(median(self._sizes)) if self._sizes else None

    def glimpse(self, pids: Sequence[int]) -> None:
        """Look at one of the processes; each gets its turn."""
        if not pids:
            return
        self._turn += 1
        if self._turn > _EAGER and self._turn % _SELDOM:
            return
        folder = f"{self._proc}/{pids[self._turn % len(pids)]}/fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(folder)[:_MOST]:
                with contextlib.suppress(OSError):
                    self._look(f"{folder}/{name}")
        if len(self._seen) > 8 * _FOLDERS:
            self._seen = Counter(dict(self._seen.most_common(4 * _FOLDERS)))
            self._of_images &= self._seen.keys()

    def _look(self, link: str) -> None:
        path = os.readlink(link)
        if not path.startswith("/") or path.startswith(_ELSEWHERE) or path.endswith(" (deleted)"):
            return
        if any(part in path for part in _NOT_DATA):
            return
        suffix = PurePosixPath(path).suffix.lower()
        if suffix not in _DATA:
            return
        found = os.stat(link)  # through the link: also where the job has other file systems mounted
        if stat.S_ISREG(found.st_mode):
            self._seen[os.path.dirname(path)] += 1
            if suffix in IMAGES:
                self._of_images.add(os.path.dirname(path))
                self._sizes.append(found.st_size)
