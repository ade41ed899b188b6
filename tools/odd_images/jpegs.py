"""Unusual JPEGs that are whole: orientations, colour spaces, codings, samplings, sizes."""

import base64
import gzip
import zlib
from io import BytesIO

import numpy as np
from PIL import Image

from tools.odd_images.scene import CORNERS, PURE, Odd, Pixels, chunk, exif, gray, jpeg, save, scene, turned, xmp

# Pillow writes no arithmetic coding: the scene, by libjpeg-turbo's own compressor.
ARITHMETIC = base64.b85decode(
    "|JeWF01!$>Nk#wx0RR9200961|JwjV00;&K2L=TQ2L}fU2?z=d6b%du3k(?&6Au&}8Xq1V8XO!TBrYc)A}k{u94I#_EHE)NG&CP4"
    "IXyTsJT5adGXL8ELjeg12@DGi7!3^=G9erxGBPqUGBPqUGBPqUGBPqUGBPqUGBPqUGBPqUGBPqUGBPqUGBPqUGBPqUGBPqUGBW?k"
    "01*fPFaSUU0U`hb5di}c0sqVZ3IGrg1pyEd1^?Or3<CiG0ucid06zf#0A%N3&yy5-j<WEgxOg6`p8??n!i2Pt6)o`{XMvC&ZgL;8"
    "Ywf4mM!#67kao)p8{@V;mbPmL<MN}01yb6nHaB7RzX&w*m1F<e"
)


def segment(data: bytes, *markers: int) -> int:
    """Where the first segment with one of `markers` starts in a JPEG."""
    at = 2
    while data[at + 1] not in markers:
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return at


def with_size(data: bytes, width: int, height: int) -> bytes:
    """A JPEG whose header claims another size."""
    at = segment(data, 0xC0, 0xC1, 0xC2) + 5
    return data[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + data[at + 4 :]


def rearranged(
    pixels: Pixels, sampling: tuple[int, int], source: tuple[int, int], name: str, **options: object
) -> bytes:
    """A JPEG of luma factors `sampling`, which Pillow does not write: another one's blocks, read in another order.

    An MCU of 2x2 luma blocks holds as many as one of 4x1, so only the header differs. Luma comes out right; chroma is
    laid out wrongly inside each MCU, which in flat areas does not show.
    """
    (across, down), (from_across, from_down) = sampling, source
    height, width = pixels.shape[:2]
    columns, rows = -(-width // (8 * across)), -(-height // (8 * down))
    full = np.pad(pixels, ((0, rows * 8 * down - height), (0, columns * 8 * across - width), (0, 0)), mode="edge")
    blocks = full.reshape(rows, down, 8, columns, across, 8, 3).transpose(0, 3, 1, 4, 2, 5, 6)
    blocks = blocks.reshape(rows, columns, from_down, from_across, 8, 8, 3).transpose(0, 2, 4, 1, 3, 5, 6)
    tall = np.ascontiguousarray(blocks.reshape(rows * from_down * 8, columns * from_across * 8, 3))
    data = save(tall, "JPEG", **{"quality": 90, "subsampling": name, **options})
    at = segment(data, 0xC0, 0xC1) + 11
    return with_size(data[:at] + bytes([across << 4 | down]) + data[at + 1 :], width, height)


def _cmyk(marked: bool) -> bytes:
    """Ink without black, inverted as Adobe's programs store it, with or without the marker that says so."""
    ink = 255 - np.dstack([scene(corners=PURE), np.full((48, 64), 255, np.uint8)])
    data = save(Image.fromarray(ink, "CMYK"), "JPEG", quality=95)
    at = segment(data, 0xEE)
    return data if marked else data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]


def _ycck() -> bytes:
    """Inks whose first three are stored as luma and chroma."""
    ink = Image.fromarray(255 - scene(corners=PURE)).convert("YCbCr")
    planes = np.dstack([np.asarray(ink), np.full((48, 64), 255, np.uint8)])
    data = save(Image.fromarray(255 - planes, "CMYK"), "JPEG", quality=95)
    at = data.index(b"Adobe") + 11
    return data[:at] + b"\2" + data[at + 1 :]


def _mpo() -> bytes:
    stream = BytesIO()
    second = Image.fromarray(255 - scene())
    Image.fromarray(scene()).save(stream, "MPO", quality=95, save_all=True, append_images=[second])
    return stream.getvalue()


def _many_segments(pixels: Pixels) -> bytes:
    data = jpeg(pixels)
    note = b"\xff\xfe" + (65_535).to_bytes(2, "big") + bytes(65_533)
    return data[:2] + 20 * note + data[2:]


def orientations() -> list[Odd]:
    """Every EXIF orientation, numbers that are none, and blocks that are no EXIF."""
    shown = scene()

    def webp(**block: bytes) -> bytes:
        return save(turned(shown, 8), "WEBP", lossless=True, **block)

    def tiff(orientation: int, tags: dict[int, object]) -> bytes:
        return save(turned(shown, orientation), "TIFF", tiffinfo=tags)

    found = [
        Odd(b"exif_%d.jpg" % each, f"JPEG, EXIF orientation {each}", jpeg(turned(shown, each), exif=exif(each)), shown)
        for each in range(1, 9)
    ]
    for each in (0, 9, 65_535):
        about = f"JPEG, EXIF orientation {each}, which is undefined: ignored"
        found.append(Odd(b"exif_%d.jpg" % each, about, jpeg(shown, exif=exif(each)), shown))
    broken = b"Exif\0\0II*\0" + b"\xff" * 60
    seventh = jpeg(turned(shown, 7), exif=exif(7))
    endless = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(30)
    return [
        *found,
        Odd(b"exif_garbage.jpg", "JPEG, EXIF with offsets beyond its end: ignored", jpeg(shown, exif=broken), shown),
        Odd(b"exif_endless.jpg", "JPEG, EXIF of 65,535 entries in 30 bytes: ignored", jpeg(shown, exif=endless), shown),
        Odd(b"exif_6.png", "PNG, EXIF orientation 6", save(turned(shown, 6), "PNG", exif=exif(6)), shown, 0),
        Odd(b"exif_8.webp", "WebP, EXIF orientation 8", webp(exif=exif(8)), shown, 1),
        Odd(b"exif_5.tif", "TIFF, orientation 5", tiff(5, {274: 5}), shown, 0),
        Odd(b"xmp_6.jpg", "JPEG, orientation 6 in XMP alone", _with_xmp(jpeg(turned(shown, 6)), 6), shown),
        Odd(b"xmp_7.jpg", "JPEG, orientation 7 in EXIF and 6 in XMP: 7", _with_xmp(seventh, 6), shown),
        Odd(b"xmp_8.webp", "WebP, orientation 8 in XMP alone", webp(xmp=xmp(8)), shown, 1),
        Odd(b"xmp_6.tif", "TIFF, orientation 6 in XMP alone", tiff(6, {700: xmp(6)}), shown, 0),
        *_late_pngs(shown),
    ]


def _with_xmp(data: bytes, orientation: int) -> bytes:
    body = b"http://ns.adobe.com/xap/1.0/\0" + xmp(orientation)
    return data[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + data[2:]


def _late_pngs(shown: Pixels) -> list[Odd]:
    """PNGs with their orientation behind the pixels, or in other programs' text."""
    data, block = save(turned(shown, 6), "PNG"), exif(6)
    digits = f"\nexif\n{len(block):8}\n{block.hex()}\n".encode()
    text = chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(6))
    profile = chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(digits))
    first, rest, end = data[: data.index(b"IDAT") - 4], data[data.index(b"IDAT") - 4 : -12], data[-12:]
    early, late = first + profile + rest + end, first + rest + chunk(b"eXIf", block[6:]) + end
    return [
        Odd(b"late_exif.png", "PNG, EXIF behind the pixels", late, shown, 0),
        Odd(b"late_xmp.png", "PNG, orientation in XMP alone, behind the pixels", data[:-12] + text + end, shown, 0),
        Odd(b"profile.png", "PNG, EXIF in a text chunk as ImageMagick writes it", early, shown, 0),
    ]


def colour_spaces() -> list[Odd]:
    """JPEGs that are not YCbCr of 8 bits."""
    shown, pure = scene(), scene(corners=PURE)
    unmarked = "CMYK JPEG without Adobe's marker: inverted too, as in Pillow"
    return [
        Odd(b"gray.jpg", "gray JPEG", jpeg(shown, "L"), gray(shown)),
        Odd(b"rgb.jpg", "JPEG of red, green and blue (Adobe transform 0)", jpeg(shown, keep_rgb=True), shown),
        Odd(b"cmyk_adobe.jpg", "CMYK JPEG, inverted as Adobe's programs write it", _cmyk(True), pure),
        Odd(b"cmyk_plain.jpg", unmarked, _cmyk(False), pure),
        Odd(b"ycck.jpg", "YCCK JPEG", _ycck(), pure, 4),
    ]


def codings() -> list[Odd]:
    """Ways to store the same picture."""
    shown, odd_size, square = scene(), scene(63, 47), scene(64, 64)
    data = jpeg(shown)
    tall = rearranged(square, (1, 4), (2, 2), "4:2:0")
    return [
        Odd(b"progressive.jpg", "progressive JPEG", jpeg(shown, progressive=True), shown),
        Odd(b"arithmetic.jpg", "JPEG, arithmetic coding", ARITHMETIC, scene(corners=CORNERS), 5),
        Odd(b"restart.jpg", "JPEG, restart markers", jpeg(shown, restart_marker_blocks=3), shown),
        Odd(b"s444.jpg", "JPEG 4:4:4, odd size", jpeg(odd_size), odd_size),
        Odd(b"s422.jpg", "JPEG 4:2:2, odd size", jpeg(odd_size, subsampling="4:2:2"), odd_size, 5),
        Odd(b"s420.jpg", "JPEG 4:2:0, odd size", jpeg(odd_size, subsampling="4:2:0"), odd_size, 5),
        Odd(b"s440.jpg", "JPEG 4:4:0", rearranged(square, (1, 2), (2, 1), "4:2:2"), square, 5),
        Odd(b"s411.jpg", "JPEG 4:1:1", rearranged(square, (4, 1), (2, 2), "4:2:0"), square, 5),
        Odd(b"s441.jpg", "JPEG 4:4:1, four rows of luma to one of chroma", tall, square, 8),
        Odd(b"poor.jpg", "JPEG of quality 5", jpeg(shown, quality=5), shown, 12),
        Odd(b"comments.jpg", "JPEG, 1.3 MB of comments before the picture", _many_segments(shown), shown),
        Odd(b"trailing.jpg", "JPEG, garbage behind the end", data + b"\0\xff\xd8garbage" * 50, shown),
        Odd(b"two.jpg", "two JPEGs in one file: the first", data + jpeg(255 - shown), shown),
        Odd(b"mpo.jpg", "MPO of a stereo camera: the first picture", _mpo(), shown),
        Odd(b"zipped.jpg", "gzip'd JPEG", gzip.compress(data, mtime=0), shown),
        Odd(b"fill.jpg", "JPEG, fill bytes before a marker", data[:2] + b"\xff\xff\xff" + data[2:], shown),
    ]


def sizes() -> list[Odd]:
    """Extreme sizes and shapes."""
    one, wide, tall = scene(1, 1), scene(5000, 1), scene(2, 3000)
    return [
        Odd(b"1x1.jpg", "JPEG of one pixel", jpeg(one), one),
        Odd(b"1x1.png", "PNG of one pixel", save(one, "PNG"), one, 0),
        Odd(b"wide.jpg", "JPEG of 5000 x 1", jpeg(wide), wide),
        Odd(b"tall.png", "PNG of 2 x 3000", save(tall, "PNG"), tall, 0),
        Odd(b"limit.jpg", "JPEG as wide as libjpeg allows, 65500 x 1", jpeg(scene(65_500, 1)), scene(65_500, 1)),
    ]
