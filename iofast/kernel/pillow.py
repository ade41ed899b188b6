"""Pillow as the kernel uses it: opening, limits, plain pixels, orientation, and the meaning of its errors.

Images are opened by the plugin class for their first bytes, never by `Image.open`. The list of formats is explicit (no
plugin starts a program, as EPS does), and the caller's `max_pixels` replaces Pillow's check for oversized images, which
applies to a whole process. Plugins that repeat that check are overridden.
Everything here works with Pillow 9.5 and later, and so with Pillow-SIMD 9.5.
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import ImageFileDirectory_v2, TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from iofast.errors import DecodeError, IofastError
from iofast.kernel import arrays, depth, exif, jxl, markers, png, strangers
from iofast.kernel.contract import TURNED, Header, Status, check_size
from iofast.kernel.contract import StatusError as StatusError
from iofast.kernel.payload import Payload, stream


class _Jpeg(JpegImageFile):
    """Does not parse EXIF while opening: Pillow looks for the resolution there and warns of other oddities."""

    def getexif(self) -> Image.Exif:
        return Image.Exif()


class _Tiff(TiffImageFile):
    """Keeps the stored orientation, which Pillow applies to TIFF alone, and skips Pillow's own size limit."""

    def load_prepare(self) -> None:
        self.im = Image.new(self.mode, (self.tag_v2[_WIDTH], self.tag_v2[_HEIGHT]), None).im
        super().load_prepare()

    def load_end(self) -> None:
        self._size = self.im.size


class _ShortReads(BytesIO):
    """Reads 16 bytes or everything: with fewer than 30 bytes Pillow cannot apply its own size limit to a WebP."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(-1 if size is None else min(size, 16))


class _Gif(GifImageFile):
    """Never clears a frame for the next one, where Pillow applies its own size limit; only the first is decoded."""

    @property
    def disposal_method(self) -> int:
        return 0

    @disposal_method.setter
    def disposal_method(self, value: int) -> None:
        pass


_PLUGINS: dict[str, type[ImageFile]] = {
    "jpeg": _Jpeg,
    "png": PngImageFile,
    "gif": _Gif,
    "bmp": BmpImageFile,
    "tiff": _Tiff,
    "ppm": PpmImageFile,
}
if features.check("webp"):
    _PLUGINS["webp"] = WebPImageFile
try:
    from PIL.AvifImagePlugin import SUPPORTED, AvifImageFile
except ImportError:
    pass  # before Pillow 11.3
else:
    if SUPPORTED:
        _PLUGINS["avif"] = AvifImageFile

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
FILTERS = {
    name: Image.Resampling[name.upper()] for name in ("nearest", "box", "bilinear", "bicubic", "lanczos", "hamming")
}
_STRIP = 1 << 17  # pixels, of which Pillow and NumPy hold 14 bytes each
GRAY = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N", "F")
ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")
_CUT = ("truncated", "unexpected end", "not identified by this driver")  # the last: no frame before the end
_MAGIC = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
    b"BM": "bmp",
    arrays.MAGIC: "npy",
    jxl.CODESTREAM: "jxl",
    jxl.CONTAINER: "jxl",
}
_HEIC = (b"heic", b"heix", b"hevc", b"mif1", b"msf1")
_WIDTH, _HEIGHT, _ORIENTATION, _SAMPLES, _PLANAR, _XMP, _BITS = 256, 257, 274, 277, 284, 700, 258  # TIFF tags
_BIG_TIFF, _MOST_CHANNELS = 43, 6  # the version of a TIFF; Pillow looks at no more channels
_PACKET = b"http://ns.adobe.com/xap/1.0/\0"  # precedes the XMP of a JPEG


def failure(error: Exception) -> StatusError:
    """Convert an exception of Pillow, or of this module, to a status."""
    if isinstance(error, StatusError):
        return error
    detail = " ".join(str(error).split()) or type(error).__name__
    return StatusError(_status_of(error, detail.lower()), detail)


def _status_of(error: Exception, detail: str) -> Status:
    if isinstance(error, MemoryError) or "out of memory" in detail:
        return Status.MEMORY
    if isinstance(error, Image.DecompressionBombError):
        return Status.LIMIT
    if "unknown pixel mode" in detail:
        return Status.UNSUPPORTED
    cause = error.__cause__ or error  # Pillow turns the errors of short headers into SyntaxError
    if isinstance(cause, (EOFError, IndexError, struct.error)) or any(words in detail for words in _CUT):
        return Status.TRUNCATED
    return Status.CORRUPT


@contextmanager
def as_decode_errors() -> Iterator[None]:
    """Convert any exception within to `DecodeError`: Pillow's plugins raise anything on damaged files.

    Its text is the message of the status, then Pillow's words in brackets if it has any.
    """
    try:
        yield
    except IofastError:  # among them those of reading a file
        raise
    except Exception as error:
        raise DecodeError(failure(error).reason) from error


@dataclass(frozen=True)
class Opened:
    """An image after its header was read and before its pixels are. `size` is the stored (width, height)."""

    image: Image.Image
    data: Payload
    format: str
    size: tuple[int, int]

    @cached_property
    def orientation(self) -> int:
        """The orientation in EXIF or XMP, to be applied by `turn`."""
        return _orientation(self.image, self.data)

    def upright(self, orientation: int) -> tuple[int, int]:
        """Return the size (width, height) after `orientation` was applied."""
        return self.size[::-1] if orientation in TURNED else self.size


def open_image(data: Payload, max_pixels: int, kind: str | None = None) -> Opened:
    """Read the header; `kind` is the format, if known. Raises `StatusError`, or any error of Pillow."""
    if not data:
        raise StatusError(Status.EMPTY)
    kind = format_of(data) if kind is None else kind
    if kind == "npy":
        shown = arrays.displayed(data[:], max_pixels)
        return Opened(shown, data, kind, shown.size)
    opener = plugin(kind)
    if opener is None:
        raise StatusError(Status.UNSUPPORTED, _refusal(data[:256], kind))
    if kind == "tiff":
        _check_tiff(tiff_tags(data))
    if kind == "jxl":
        check_size(*jxl.header(data)[1:3], max_pixels)  # opening decodes it
    source = _ShortReads(data[:]) if kind == "webp" else stream(data)
    try:
        image = opener(source)
    except Exception as error:
        if kind in _OPTIONAL:  # whose words do not say what was tried
            raise StatusError(failure(error).status, f"{_name(kind)}: {error}") from error
        raise
    if kind == "jpeg" and not image.tile:
        raise StatusError(Status.TRUNCATED, "the header ends before the pixels begin")
    width, height = image.size
    if isinstance(image, TiffImageFile):  # newer versions report the turned size
        width, height = image.tag_v2[_WIDTH], image.tag_v2[_HEIGHT]
    check_size(width, height, max_pixels)
    return Opened(image, data, kind, (width, height))


def _check_tiff(tags: Mapping[int, Any]) -> None:
    """Refuse what Pillow would decode to something else, or log as an error of its own. Raises `StatusError`."""
    samples, bits = tags.get(_SAMPLES, 1), max(tags.get(_BITS) or (1,))
    if samples > _MOST_CHANNELS:
        reason = f"{samples} channels"
    elif tags.get(_PLANAR, 1) == 2 and samples > 1 and (bits > 8 or samples not in (3, 4)):
        reason = f"{samples} planes of {bits} bits"
    else:
        return
    raise StatusError(Status.UNSUPPORTED, f"{reason}: --format npy packs them, fields=['image.npy'] loads them")


def tiff_tags(data: Payload) -> Mapping[int, Any]:
    """Return the tags of a TIFF's first page; none if they cannot be read, and Pillow will say so."""
    start = data[:16]
    try:
        tags = ImageFileDirectory_v2(start if start[2] + start[3] == _BIG_TIFF else start[:8])
        source = stream(data)
        source.seek(tags.next)
        tags.load(source)
        return dict(tags.items())
    except (SyntaxError, OSError, ValueError, TypeError, LookupError, struct.error):
        return {}


def _orientation(image: Image.Image, data: Payload) -> int:
    """Find the orientation in the metadata, whether or not this version of Pillow looks there."""
    if image.format == "JXL":
        return jxl.header(data).orientation
    if isinstance(image, PngImageFile):
        return exif.orientation(*png.metadata(image, data))
    if isinstance(image, TiffImageFile):
        tag, xmp = image.tag_v2.get(_ORIENTATION), image.tag_v2.get(_XMP, b"")
        xmp = xmp[0] if isinstance(xmp, tuple) and xmp else xmp
        if tag is None:
            return exif.orientation(b"", xmp if isinstance(xmp, bytes) else b"")
        return tag if tag in range(1, 9) else 1
    xmp = image.info.get("xmp", b"")
    if isinstance(image, JpegImageFile):
        packets = (body for name, body in image.applist if name == "APP1" and body.startswith(_PACKET))
        *_, xmp = b"", *packets
    return exif.orientation(image.info.get("exif") or b"", xmp or b"")


def format_of(data: Payload) -> str:
    """Return the format of a supported image by its first bytes, or ""."""
    start = data[:16]
    if name := strangers.named(start, _MAGIC):
        return name
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    if start[4:8] == b"ftyp":
        brands = data[8 : min(64, int.from_bytes(start[:4], "big"))]
        return "avif" if b"avif" in brands else "heic" if any(brand in brands for brand in _HEIC) else ""
    is_ppm = len(start) > 2 and start[0] == ord("P") and start[1] in b"123456" and start[2] in b" \t\r\n#"
    return "ppm" if is_ppm else ""


_OPTIONAL = {  # by format: package, module and class of a plugin that need not be installed
    "heic": ("pillow-heif", "pillow_heif", "HeifImageFile"),
    "jxl": ("pillow-jxl-plugin", "pillow_jxl.JpegXLImagePlugin", "JXLImageFile"),
}


@cache
def plugin(kind: str) -> type[ImageFile] | None:
    """Return the plugin for a format, None if there is none."""
    if kind not in _OPTIONAL:
        return _PLUGINS.get(kind)
    _, module, name = _OPTIONAL[kind]
    try:
        found: type[ImageFile] = getattr(import_module(module), name)
    except ImportError:
        return None
    return found


def _name(kind: str) -> str:
    return {"jxl": "JPEG XL"}.get(kind, kind.upper())


def _refusal(start: bytes, kind: str) -> str:
    """Explain why a file is not decoded, as far as its first bytes allow."""
    if kind:
        package = f": pip install {_OPTIONAL[kind][0]}" if kind in _OPTIONAL else ""
        return f"this Pillow does not decode {_name(kind)}{package}"
    return strangers.described(start)


def header(opened: Opened) -> Header:
    """Return the header with upright sizes."""
    image, size = opened.image, opened.upright(opened.orientation)
    if isinstance(image, JpegImageFile):
        return Header("jpeg", *size, opened.orientation, image.layers, bool(image.info.get("progressive", False)))
    if image.mode in ALPHA or image.mode == "CMYK" or "transparency" in image.info:
        components = 4
    else:
        components = 1 if image.mode in GRAY else 3
    return Header(opened.format, *size, opened.orientation, components, False)


def check_end(opened: Opened) -> None:
    """Raise `StatusError` for a JPEG without an end-of-image marker. Pillow fails only if pixels are missing."""
    if opened.format == "jpeg" and not markers.has_end(opened.data[:]):
        raise StatusError(Status.TRUNCATED, "there is no end-of-image marker")


def mend_end(opened: Opened) -> Opened:
    """Append an end-of-image marker, so that Pillow decodes the rest of a truncated JPEG.

    Pillow's own option, `ImageFile.LOAD_TRUNCATED_IMAGES`, applies to the whole process.
    """
    if opened.format != "jpeg":
        return opened
    return open_image(opened.data[:] + markers.END, opened.size[0] * opened.size[1])


def plain(image: Image.Image) -> Image.Image:
    """Convert a decoded image to `L` if it is grayscale, and to `RGB` otherwise; alpha is dropped, not blended."""
    image = replaced(image, depth.to_bytes(image))
    image.info.clear()  # else Pillow warns of transparency that the next mode cannot hold
    mode = "L" if image.mode in GRAY else "RGB"
    return image if image.mode == mode else replaced(image, image.convert(mode))


def turn(image: Image.Image, orientation: int) -> Image.Image:
    """Make `image` upright, given its EXIF orientation."""
    return replaced(image, image.transpose(_TURNS[orientation])) if orientation in _TURNS else image


def replaced(image: Image.Image, by: Image.Image) -> Image.Image:
    """Release the memory of `image` and return `by`, so that no large image is held twice."""
    if by is not image:
        image.close()
    return by


def cut(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """Crop an image to a box inside it, without the size check of Pillow's `crop`."""
    if box == (0, 0, *image.size):
        return image
    piece = Image.new(image.mode, (box[2] - box[0], box[3] - box[1]))
    piece.paste(image, (-box[0], -box[1]))
    return piece


def array(image: Image.Image, mode: str | None = None) -> NDArray[Any]:
    """Return the pixels of a decoded image, converted to `mode` if one is given, in an array of its own.

    They are taken in strips: Pillow's conversion and NumPy's would hold all of them three times.
    """
    rows, out = max(1, _STRIP // image.width), np.empty(0)
    for top in range(0, image.height, rows):
        strip = cut(image, (0, top, image.width, min(top + rows, image.height)))
        part = np.asarray(strip if mode is None else strip.convert(mode))
        if not top:
            out = np.empty((image.height, *part.shape[1:]), part.dtype)
        out[top : top + len(part)] = part
    return out


def resample(image: Image.Image, box: tuple[int, ...], size: tuple[int, int], name: str) -> Image.Image:
    """Return the window of `size` of the virtual image that `box`, a row of `decode_batch`'s boxes, describes.

    The caller limits the virtual image, which is made as a whole.
    """
    x0, y0, x1, y1, *virtual, x, y = box
    region = cut(image, (x0, y0, x1, y1))
    if region.size != tuple(virtual):  # Pillow would copy it
        region = region.resize((virtual[0], virtual[1]), FILTERS[name])
    return cut(region, (x, y, x + size[0], y + size[1]))
