"""Which files of a folder are images: by their suffix, or where that tells nothing by their first bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel import pillow, strangers
from iofast.kernel.payload import HEAD
from iofast.source.image_files import beginning
from iofast.source.listing import few

# ImageFolder's, and some that it lacks.
EXTENSIONS = (
    *(".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"),
    *(".gif", ".avif", ".heic", ".heif", ".jfif", ".jpe", ".pnm", ".pbm", ".dib"),
)
# Never opened: a million captions beside a million images would take as long as the images' headers.
_NO_IMAGES = (
    *(
        ".txt",
        ".csv",
        ".tsv",
        ".json",
        ".jsonl",
        ".xml",
        ".yaml",
        ".yml",
        ".md",
        ".html",
        ".log",
        ".py",
        ".ipynb",
        ".sh",
    ),
    *(".npy", ".npz", ".pt", ".pth", ".pkl", ".pickle", ".mat", ".h5", ".hdf5", ".parquet", ".arrow", ".db", ".lmdb"),
    *(".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".pdf"),
    *(".wav", ".mp3", ".flac", ".mp4", ".mov", ".avi", ".mkv", ".webm"),
)
# TIFF files to their first bytes, with a thumbnail that would be taken for the image.
_CAMERA_RAW = (".3fr", ".arw", ".cr2", ".dng", ".erf", ".iiq", ".kdc", ".nef", ".nrw", ".orf", ".pef", ".rw2", ".srw")

_CHUNK = 64  # files that a thread looks at in one go
_THREADS = 16  # as many as read headers
_START = 256  # bytes that tell a format
_SHOWN = 6  # suffixes in one line of a warning


@dataclass(slots=True)
class _Files:
    """How many, and the first few."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, path: str) -> None:
        self.count += 1
        if len(self.examples) < 3:
            self.examples.append(path)


@dataclass(slots=True)
class Unusual:
    """The files of one scan whose suffix is no image's."""

    taken: dict[str, _Files] = field(default_factory=dict)  # by suffix: images to their first bytes
    unsupported: dict[str, _Files] = field(default_factory=dict)  # by format: images that are not decoded here
    other: dict[str, _Files] = field(default_factory=dict)  # by suffix: no images

    def images(self, folder: str, prefix: str, names: Sequence[str]) -> list[str]:
        """Those of `names` in `folder` that are images; `prefix` is its path in messages. The others are counted."""
        found = []
        for name, format_ in zip(names, _formats(folder, names), strict=True):
            path, suffix = os.path.join(prefix, name), os.path.splitext(name)[1].lower()
            if format_ == "":
                self.other.setdefault(suffix, _Files()).add(path)
            elif format_ in _DECODED:
                self.taken.setdefault(suffix, _Files()).add(path)
                found.append(name)
            else:
                self.unsupported.setdefault(format_, _Files()).add(path)
        return found

    def warnings(self) -> list[str]:
        """A line about images that are left out."""
        if not self.unsupported:
            return []
        return [f"images left out, of formats that are not supported (convert them first): {self.formats()}"]

    def notes(self) -> list[str]:
        """A line for each other kind: captions and boxes beside images are usual, and no reason for a warning."""
        lines = []
        if self.taken:
            lines.append(f"images with unusual names, known by their first bytes: {_by_suffix(self.taken)}")
        if self.other:
            lines.append(f"files that are no images left out: {self.others()}")
        return lines

    def formats(self) -> str:
        """The formats that are not supported, with examples."""
        return _listed(self.unsupported)

    def others(self) -> str:
        """The suffixes of what is no image, with examples."""
        return _by_suffix(self.other)


_DECODED = ("jpeg", "png", "webp", "gif", "tiff", "avif", "heic", "ppm", "bmp")


def _formats(folder: str, names: Sequence[str]) -> Iterator[str]:
    """What each file is: one of `_DECODED`, the name of another format, or ""."""
    chunks = [names[start : start + _CHUNK] for start in range(0, len(names), _CHUNK)]
    if len(chunks) < 2:
        return (_format(folder, name) for name in names)
    with ThreadPoolExecutor(_THREADS, "iofast-formats") as pool:
        found = pool.map(lambda chunk: [_format(folder, name) for name in chunk], chunks)
        return iter([each for chunk in found for each in chunk])


def _format(folder: str, name: str) -> str:
    suffix = os.path.splitext(name)[1].lower()
    if suffix in _NO_IMAGES:
        return ""
    path = os.fsencode(os.path.join(folder, name))
    start = beginning(path, _START)
    found = pillow.format_of(start)
    if found == "tiff" and suffix in _CAMERA_RAW:
        return "camera raw"
    if found in ("bmp", "ppm") and not _has_header(beginning(path, HEAD)):  # two letters, with which a text may begin
        return ""
    return found or strangers.image_format(start)


def _has_header(start: bytes) -> bool:
    try:
        kernel.read_header(start)
    except DecodeError:
        return False
    return True


def _by_suffix(files: dict[str, _Files]) -> str:
    return _listed({suffix or "without a suffix": found for suffix, found in files.items()})


def _listed(files: dict[str, _Files]) -> str:
    """`12 .log (a.log, b.log, c.log and 9 more), 1 .dat (d.dat)`; the most frequent first."""
    order = sorted(files, key=lambda name: (-files[name].count, name))
    shown = [f"{files[name].count:,} {name} ({_few(files[name])})" for name in order[:_SHOWN]]
    rest = sum(files[name].count for name in order[_SHOWN:])
    return ", ".join(shown) + (f", {rest:,} others" if rest else "")


def _few(files: _Files) -> str:
    return few(files.examples) + (", …" if files.count > len(files.examples) else "")
