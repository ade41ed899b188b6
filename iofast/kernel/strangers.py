"""Names of files that are not decoded as RGB, by their first bytes."""

import contextlib
import os
import re
from collections.abc import Mapping

POINTER = "a Git LFS pointer, not the file itself; git lfs pull fetches it"
_POINTER_START, _POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024  # at most

_IMAGES = {  # unsupported image formats
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"II\xbc": "JPEG XR",
    b"8BPS": "Photoshop (PSD)",
    b"gimp xcf": "GIMP (XCF)",
    b"v/1\x01": "OpenEXR",
    b"#?RADIANCE": "Radiance HDR",
    b"#?RGBE": "Radiance HDR",
    b"DDS ": "DDS",
    b"qoif": "QOI",
    b"BPG\xfb": "BPG",
    b"SIMPLE  =": "FITS",
    b"\0\0\1\0": "ICO",
    b"icns": "ICNS",
    b"FUJIFILMCCD-RAW": "camera raw",
}
_OTHERS = {
    b"<!doctype html": "an HTML page",
    b"<html": "an HTML page",
    b"%pdf": "a PDF",
    b"%!ps": "PostScript",
    b"\x1f\x8b": "a gzip file",
    b"pk\3\4": "a ZIP archive",
    b"<?xml": "XML",
    _POINTER_START: POINTER,
}
_NO_TEXT = re.compile(rb"[^\t\n\f\r\x20-\xfe]")


def named(start: bytes, names: Mapping[bytes, str]) -> str:
    """Return the name of the first of these beginnings that `start` has, or "". Most files have none of them."""
    if not start.startswith(tuple(names)):
        return ""
    return next(name for beginning, name in names.items() if start.startswith(beginning))


def image_format(start: bytes) -> str:
    """Return the name of an unsupported image format, or ""."""
    if name := named(start, _IMAGES):
        return name
    if start[4:8] == b"ftyp" and start[8:12] == b"crx ":
        return "camera raw"
    text = _text(start)
    if start[128:132] == b"DICM":
        return "DICOM"
    return "SVG" if text.startswith((b"<svg", b"<?xml")) and b"<svg" in text else ""


def described(start: bytes) -> str:
    """Describe an unsupported file for an error message; "" if it is unknown."""
    if start.startswith((b"II*\0", b"MM\0*", b"\x93NUMPY")):
        return "an array that is no RGB image: pack it with --format npy, fields=['image.npy'] loads it"
    if name := image_format(start):
        return f"{name}: not supported; convert it first"
    text = _text(start)
    if what := named(text, _OTHERS):
        return f"it is {what}"
    return "it is text" if text and not _NO_TEXT.search(text) else ""


def is_pointer(path: str | os.PathLike[str], size: int) -> bool:
    """Whether a regular file of `size` bytes is a Git LFS pointer."""
    if size > _POINTER_BYTES:
        return False
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(len(_POINTER_START)) == _POINTER_START
    return False


def _text(start: bytes) -> bytes:
    return start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
