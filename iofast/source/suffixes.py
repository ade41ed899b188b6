"""Which files of a folder are images: by their suffix, or else by their first bytes."""

import os
from collections import Counter
from collections.abc import Callable, Sequence

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
DECODED = ("jpeg", "png", "webp", "gif", "tiff", "avif", "heic", "jxl", "ppm", "bmp", "npy")

Read = Callable[[str, int], bytes | None]  # the first bytes of a file, None if it cannot be read

_CHUNK = 64  # files per task of a thread
_START = 256  # bytes that identify a format
_SHOWN = 6  # suffixes in one line of a warning
_EXAMPLES = 3  # files named for each


class Files(Counter[str]):
    """How many files of each kind there are, and the first few paths of each; as text the most frequent kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.examples: dict[str, list[str]] = {}

    def add(self, kind: str, path: str) -> None:
        """Count one file."""
        self[kind] += 1
        if self[kind] <= _EXAMPLES:
            self.examples.setdefault(kind, []).append(path)

    def __str__(self) -> str:
        """`12 .log (a.log, b.log, c.log, …), 1 .dat (d.dat)`; the most frequent first."""
        order = sorted(self, key=lambda kind: (-self[kind], kind))
        lines = []
        for kind in order[:_SHOWN]:
            more = ", …" if self[kind] > _EXAMPLES else ""
            lines.append(f"{self[kind]:,} {kind} ({few(self.examples[kind])}{more})")
        rest = sum(self[kind] for kind in order[_SHOWN:])
        return ", ".join(lines) + (f", {rest:,} others" if rest else "")


def formats(paths: Sequence[str], read: Read, *, arrays: bool) -> list[str]:
    """For each file one of `DECODED`, the name of another format of images, or "" for no image.

    With `arrays`, `.npy` files of an image's shape are images.
    """
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
