"""Which files of a folder are images: by their suffix, or else by their first bytes."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel import pillow, strangers
from iofast.kernel.payload import HEAD
from iofast.source.in_threads import in_threads
from iofast.source.listing import few

# ImageFolder's, and some that it lacks
EXTENSIONS = (
    *(".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"),
    *(".gif", ".avif", ".heic", ".heif", ".jxl", ".jfif", ".jpe", ".pnm", ".pbm", ".dib"),
)
# Never opened: reading a million captions beside a million images would take as long as reading the images' headers.
_NO_IMAGES = (
    *(".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".md", ".html", ".log", ".py", ".ipynb"),
    *(".npy", ".npz", ".pt", ".pth", ".pkl", ".pickle", ".mat", ".h5", ".hdf5", ".parquet", ".arrow", ".db", ".lmdb"),
    *(".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".pdf", ".sh"),
    *(".wav", ".mp3", ".flac", ".mp4", ".mov", ".avi", ".mkv", ".webm"),
)
# TIFF files by their first bytes, but decoders would take their thumbnail for the image.
_CAMERA_RAW = (".3fr", ".arw", ".cr2", ".dng", ".erf", ".iiq", ".kdc", ".nef", ".nrw", ".orf", ".pef", ".rw2", ".srw")
_DECODED = ("jpeg", "png", "webp", "gif", "tiff", "avif", "heic", "jxl", "ppm", "bmp")

Read = Callable[[str, int], bytes | None]  # the first bytes of a file, None if it cannot be read

_CHUNK = 64  # files per task of a thread
_START = 256  # bytes that identify a format
_SHOWN = 6  # suffixes in one line of a warning
_EXAMPLES = 3  # files named for each


@dataclass(slots=True)
class Files:
    """How many files, and the first few paths."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, path: str) -> None:
        """Count one file."""
        self.count += 1
        if self.count <= _EXAMPLES:
            self.examples.append(path)


@dataclass(slots=True)
class Unusual:
    """The files of one scan whose suffix is not that of an image."""

    known: dict[str, Files] = field(default_factory=dict)  # by suffix: images by their first bytes
    unsupported: dict[str, Files] = field(default_factory=dict)  # by format: images that are not decoded
    other: dict[str, Files] = field(default_factory=dict)  # by suffix: no images

    def images(self, paths: Sequence[str], read: Read, *, arrays: bool) -> list[str]:
        """The names of those of `paths` that are images; the others are counted.

        With `arrays`, so are `.npy` files of an image's shape.
        """
        images = []
        for path, format in zip(paths, _formats(paths, read, arrays), strict=True):
            name = os.path.basename(path)
            suffix = os.path.splitext(name)[1].lower() or "without a suffix"
            if format == "":
                self.other.setdefault(suffix, Files()).add(path)
            elif format == "npy":
                images.append(name)
            elif format in _DECODED:
                self.known.setdefault(suffix, Files()).add(path)
                images.append(name)
            else:
                self.unsupported.setdefault(format, Files()).add(path)
        return images

    def warnings(self) -> list[str]:
        """A line about images that are left out."""
        if not self.unsupported:
            return []
        return [f"images left out, of formats that are not supported (convert them first): {listed(self.unsupported)}"]

    def notes(self) -> list[str]:
        """A line for each other kind; captions and boxes beside images are usual, and no reason for a warning."""
        lines = []
        if self.known:
            lines.append(f"images with unusual names, known by their first bytes: {listed(self.known)}")
        if self.other:
            lines.append(f"files that are no images left out: {listed(self.other)}")
        return lines


def listed(files: Mapping[str, Files]) -> str:
    """`12 .log (a.log, b.log, c.log, …), 1 .dat (d.dat)`; the most frequent first."""
    order = sorted(files.items(), key=lambda item: (-item[1].count, item[0]))
    lines = []
    for name, found in order[:_SHOWN]:
        more = ", …" if found.count > _EXAMPLES else ""
        lines.append(f"{found.count:,} {name} ({few(found.examples)}{more})")
    rest = sum(found.count for _, found in order[_SHOWN:])
    return ", ".join(lines) + (f", {rest:,} others" if rest else "")


def _formats(paths: Sequence[str], read: Read, arrays: bool) -> list[str]:
    """For each file one of `_DECODED`, npy, the name of another format, or "" for no image."""
    found = [""] * len(paths)

    def look(start: int, stop: int) -> None:
        found[start:stop] = [_format(path, read, arrays) for path in paths[start:stop]]

    in_threads(look, len(paths), " files", "looking for images", chunk=_CHUNK)
    return found


def _format(path: str, read: Read, arrays: bool) -> str:
    suffix = os.path.splitext(path)[1].lower()
    if arrays and suffix == ".npy":
        return "npy" if _has_header(read(path, HEAD) or b"") else ""
    if suffix in _NO_IMAGES:
        return ""
    start = read(path, _START) or b""
    found = pillow.format_of(start)
    if found == "tiff" and suffix in _CAMERA_RAW:
        return "camera raw"
    if found in ("bmp", "ppm") and not _has_header(read(path, HEAD) or b""):  # texts may begin so
        return ""
    return found or strangers.image_format(start)


def _has_header(start: bytes) -> bool:
    try:
        kernel.read_header(start)
    except DecodeError:
        return False
    return True
