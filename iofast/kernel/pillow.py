"""How the twin uses Pillow: opening, limits, plain pixels, orientation, resampling, and what its errors mean.

Images are opened by the plugin class that their first bytes name, never by `Image.open`. That is an explicit list of
formats (none that starts a program, as EPS does), and it leaves out Pillow's own check for oversized images, which can
be turned off for a whole process only; the caller's `max_pixels` takes its place, before anything is decoded. Plugins
that make the check again are kept from it.
Everything here works with Pillow 9.5 and later, so with Pillow-SIMD 9.5 too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache, cached_property
from io import BytesIO

from PIL import Image, features
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from iofast.errors import DecodeError
from iofast.kernel import depth, exif, markers, png, strangers
from iofast.kernel.contract import Header, Status
from iofast.kernel.contract import StatusError as StatusError
from iofast.kernel.payload import Payload, stream
from iofast.record import LONGEST_SIDE


class _Jpeg(JpegImageFile):
    """Pillow's opening of a JPEG looks for its resolution in EXIF, and warns of what it thinks of the rest."""

    def getexif(self) -> Image.Exif:
        return Image.Exif()


class _Tiff(TiffImageFile):
    """Pillow turns a TIFF when it loads it, and no other format; it applies a limit of its own."""

    def load_prepare(self) -> None:
        self.im = Image.new(self.mode, (self.tag_v2[_WIDTH], self.tag_v2[_HEIGHT]), None).im
        super().load_prepare()

    def load_end(self) -> None:
        self._size = self.im.size


class _Reluctant(BytesIO):
    """Gives 16 bytes or all: of fewer than 30 Pillow does not compare the size of a WebP with a limit of its own."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(-1 if size is None else min(size, 16))


class _Gif(GifImageFile):
    """Pillow applies a limit of its own where a frame is to be cleared for the next one, and there is none here."""

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
GRAY = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N", "F")
ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")
_CUT = ("truncated", "unexpected end", "not identified by this driver")  # the last: no frame before the end
_END = b"\xff\xd9"
_HEIC = (b"heic", b"heix", b"hevc", b"mif1", b"msf1")
_WIDTH, _HEIGHT, _ORIENTATION, _XMP = 256, 257, 274, 700  # TIFF tags
_PACKET = b"http://ns.adobe.com/xap/1.0/\0"  # in front of a JPEG's XMP


def failure(error: Exception) -> StatusError:
    """The status code that an exception out of Pillow, or of this module, stands for."""
    if isinstance(error, StatusError):
        return error
    detail = " ".join(str(error).split()) or type(error).__name__
    return StatusError(_meaning(error, detail.lower()), detail)


def _meaning(error: Exception, detail: str) -> Status:
    if isinstance(error, MemoryError) or "out of memory" in detail:
        return Status.MEMORY
    if isinstance(error, Image.DecompressionBombError):
        return Status.LIMIT
    if "unknown pixel mode" in detail:
        return Status.UNSUPPORTED
    cause = error.__cause__ or error  # Pillow turns what a short header raises into SyntaxError
    if isinstance(cause, (EOFError, IndexError, struct.error)) or any(words in detail for words in _CUT):
        return Status.TRUNCATED
    return Status.CORRUPT


def decode_error(error: Exception) -> DecodeError:
    """The public error for `error`: the status code's message, then Pillow's words in brackets where there are any."""
    reason = failure(error)
    detail = str(reason)
    return DecodeError(reason.message + (f" ({detail})" if detail else ""))


@dataclass(frozen=True)
class Opened:
    """An image whose header was read and whose pixels were not. `size` is (width, height) as `load` will give it."""

    image: ImageFile
    data: Payload
    format: str
    size: tuple[int, int]
    scan: int  # where the header ended

    @cached_property
    def orientation(self) -> int:
        """What EXIF or XMP say, and `turn` has still to be called for."""
        return _orientation(self.image, self.data)

    def upright(self, orientation: int) -> tuple[int, int]:
        """The size (width, height) after `orientation` was applied."""
        return self.size[::-1] if 5 <= orientation <= 8 else self.size


def open_image(data: Payload, max_pixels: int) -> Opened:
    """Read the header. Raises `StatusError`, or what Pillow raises."""
    if not data:
        raise StatusError(Status.EMPTY)
    kind = format_of(data)
    plugin = _heif() if kind == "heic" else _PLUGINS.get(kind)
    if plugin is None:
        raise StatusError(Status.UNSUPPORTED, _refused(data[:256], kind))
    source = _Reluctant(data[:]) if kind == "webp" else stream(data)
    image = plugin(source)
    if kind == "jpeg" and not image.tile:
        raise StatusError(Status.TRUNCATED, "the header ends before the pixels begin")
    width, height = image.size
    if isinstance(image, TiffImageFile):  # newer versions say in `size` how it would be turned
        width, height = image.tag_v2[_WIDTH], image.tag_v2[_HEIGHT]
    if width * height > max_pixels or max(width, height) > LONGEST_SIDE:
        raise StatusError(Status.LIMIT, f"{width}x{height} pixels")
    return Opened(image, data, kind, (width, height), source.tell())


def _orientation(image: ImageFile, data: Payload) -> int:
    """What the metadata says, whichever of it this version of Pillow looks at."""
    if isinstance(image, PngImageFile):
        return exif.orientation(*png.metadata(data))
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
    """The format of an image that is decoded here, by its first bytes; "" where it is none."""
    start = data[:16]
    if start[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if start[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    if start[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "tiff"
    if start[4:8] == b"ftyp":
        brands = data[8 : min(64, int.from_bytes(start[:4], "big"))]
        return "avif" if b"avif" in brands else "heic" if any(brand in brands for brand in _HEIC) else ""
    if start[:1] == b"P" and start[1:2] in b"123456" and start[2:3] in b" \t\r\n#":
        return "ppm" if len(start) > 2 else ""
    return "bmp" if start[:2] == b"BM" else ""


@cache
def _heif() -> type[ImageFile] | None:
    """The plugin of pillow-heif, where that is installed."""
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        return None
    plugin: type[ImageFile] = HeifImageFile
    return plugin


def _refused(start: bytes, kind: str) -> str:
    """Why a file is not decoded here, as far as its first bytes tell."""
    if kind:
        return f"this Pillow does not decode {kind.upper()}" + (": pip install pillow-heif" if kind == "heic" else "")
    return strangers.described(start)


def header(opened: Opened) -> Header:
    """What the header says, sizes upright."""
    image = opened.image
    if isinstance(image, JpegImageFile):
        components = image.layers
    elif image.mode in ALPHA or image.mode == "CMYK" or "transparency" in image.info:
        components = 4
    else:
        components = 1 if image.mode in GRAY else 3
    progressive = opened.format == "jpeg" and bool(image.info.get("progressive", False))
    size = opened.upright(opened.orientation)
    about = (opened.format, *size, opened.orientation, components, progressive)
    if not isinstance(image, JpegImageFile):
        return Header(*about)
    return Header(*about, markers.restart_interval(opened.data[:]), _mcus_per_row(image))


def _mcus_per_row(image: JpegImageFile) -> int:
    """By the largest sampling factor; blocks where there is one component. 0 where the factors make no sense."""
    factors = [across for _, across, *_ in image.layer]
    if not all(1 <= across <= 4 for across in factors):
        return 0
    return -(-image.size[0] // (8 * (max(factors) if len(factors) > 1 else 1)))


def load(opened: Opened) -> Image.Image:
    """Decode: a grayscale (`L`) or colour (`RGB`) image of the size `opened.size`.

    Pillow is silent on damage that libjpeg only warns of, so unlike the native kernel this does not find it.
    """
    return plain(decode(opened))


def decode(opened: Opened) -> Image.Image:
    """The pixels in Pillow's mode for them, but in bytes."""
    opened.image.load()
    return replaced(opened.image, depth.to_bytes(opened.image))


def check_end(opened: Opened) -> None:
    """Raise `StatusError` for a JPEG without an end-of-image marker. Pillow minds only if pixels are missing."""
    if opened.format == "jpeg" and opened.data[:].rfind(_END, opened.scan) < 0:
        raise StatusError(Status.TRUNCATED, "there is no end-of-image marker")


def mend_end(opened: Opened) -> Opened:
    """`opened` with an end-of-image marker at the end, so that Pillow decodes what there is of a truncated JPEG.

    Pillow's own way, `ImageFile.LOAD_TRUNCATED_IMAGES`, holds for the whole process.
    """
    return open_image(opened.data[:] + _END, opened.size[0] * opened.size[1]) if opened.format == "jpeg" else opened


def plain(image: Image.Image) -> Image.Image:
    """Grayscale becomes `L`, all else `RGB`; alpha is dropped, not blended."""
    image.info.clear()  # else Pillow warns of transparency that the next mode has no place for
    mode = "L" if image.mode in GRAY else "RGB"
    return image if image.mode == mode else replaced(image, image.convert(mode))


def turn(image: Image.Image, orientation: int) -> Image.Image:
    """`image` made upright, given its EXIF orientation."""
    return replaced(image, image.transpose(_TURNS[orientation])) if orientation in _TURNS else image


def replaced(image: Image.Image, by: Image.Image) -> Image.Image:
    """Return `by`, and release the memory of `image`, so that no large image is held twice."""
    if by is not image:
        image.close()
    return by
