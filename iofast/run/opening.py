"""Opens JPEG files as lazy images, in the place of Pillow's own plugin."""

from __future__ import annotations

from typing import IO, Any

from PIL.JpegImagePlugin import JpegImageFile, jpeg_factory

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel import markers
from iofast.run import notes, shadow
from iofast.run.images import LazyJpeg, fields
from iofast.run.plan import Plan
from iofast.run.source import Part, Source

_MPF, _FIRST = b"MPF\0", 1 << 16
_TURNED = 5  # EXIF orientations from here on exchange width and height; Pillow's size is of the stored pixels


def open_jpeg(fp: IO[bytes], filename: Any = None) -> JpegImageFile:
    """Return a `LazyJpeg`, or Pillow's image of a file that the kernel does not decode. A factory of Pillow's."""
    data = fp.read()
    size_and_mode = None if shadow.failed() else _lazy_size(data)
    if size_and_mode is None:
        notes.count("left to Pillow")
        fp.seek(0)
        return jpeg_factory(fp, filename)
    width, height, mode = size_and_mode
    notes.count("lazy")
    notes.write_sometimes()
    source = Source(data, (width, height), _name(filename, fp), checked=shadow.wanted())
    image = LazyJpeg.__new__(LazyJpeg)
    image.__dict__.update(
        fields(mode, source.size, data, Part(source, Plan.whole(source.size))),
        _readonly=1,
        fp=fp,
        filename=filename or "",
        _exclusive_fp=False,
    )
    return image


def _lazy_size(data: bytes) -> tuple[int, int, str] | None:
    """Return width, height and mode as Pillow has them, or None for a file that Pillow has to open."""
    try:
        header = kernel.read_header(data)
    except DecodeError:
        return None
    if (
        header.format != "jpeg"
        or header.components not in (1, 3)
        or data.find(_MPF, 0, _FIRST) >= 0
        or not markers.has_end(data)
    ):
        return None
    width, height = header.width, header.height
    if header.orientation >= _TURNED:
        width, height = height, width
    return width, height, "L" if header.components == 1 else "RGB"


def _name(filename: Any, fp: IO[bytes]) -> str:
    name = filename or getattr(fp, "name", "")
    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    return str(name) if name else "an image in memory"
