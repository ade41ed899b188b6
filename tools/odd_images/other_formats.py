"""Whole images of other formats, depths, palettes and transparencies, under names that may not say what they are."""

import struct
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

from tools.odd_images.scene import CORNERS, Odd, Pixels, chunk, gray, jpeg, over, png, ramp, save, scene, tiff, twelve


def _palette(transparent: bool) -> bytes:
    """Four colours; of the transparent one the first colour cannot be seen."""
    indices = np.zeros((48, 64), np.uint8)
    indices[:24, 32:], indices[24:, :32], indices[24:, 32:] = 1, 2, 3
    image = Image.fromarray(indices, "P")
    image.putpalette([level for colour in CORNERS for level in colour])
    return save(image, "PNG", **({"transparency": bytes([0, 255, 128, 255])} if transparent else {}))


def _wide_samples(pixels: Pixels) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    return (pixels.astype(np.uint16) * 256 + 7).astype(">u2")  # the low byte must not matter


def _animated(name: str, **options: object) -> bytes:
    stream = BytesIO()
    frames = [Image.fromarray(255 - scene()), Image.fromarray(scene(corners=CORNERS[::-1]))]
    Image.fromarray(scene()).save(stream, name, save_all=True, append_images=frames, duration=100, **options)
    return stream.getvalue()


def depths() -> list[Odd]:
    """PNGs of 1 to 16 bits, palettes, transparency."""
    shown, alpha = scene(), ramp()
    flat, first = gray(shown), gray(shown)[..., 0]
    blended, cut = over(shown, alpha), shown.copy()
    cut[:24, :32] = 255
    quarters = np.where(first > 127, 255, 0).astype(np.uint8)
    both = np.dstack([shown, alpha])
    translucent = over(shown, np.repeat(np.repeat(np.array([[0, 255], [128, 255]], np.uint8), 24, 0), 32, 1))
    gray_alpha = save(Image.fromarray(np.dstack([first, alpha]), "LA"), "PNG")
    bits = save(Image.fromarray(quarters).convert("1"), "PNG")
    key = chunk(b"tRNS", struct.pack(">3H", *CORNERS[0]))
    return [
        Odd(b"gray16.png", "PNG, 16-bit gray: the upper 8 bits", png(_wide_samples(first[..., None]), 0, 16), flat, 1),
        Odd(b"rgb16.png", "PNG, 16-bit colour: the upper 8 bits", png(_wide_samples(shown), 2, 16), shown, 1),
        Odd(b"rgba16.png", "PNG, 16-bit with alpha", png(_wide_samples(both), 6, 16), blended, 2),
        Odd(b"palette.png", "PNG, palette", _palette(False), shown, 0),
        Odd(b"palette_alpha.png", "PNG, palette with transparency: over white", _palette(True), translucent, 1),
        Odd(b"la.png", "PNG, gray with alpha: over white", gray_alpha, over(flat, alpha), 1),
        Odd(b"rgba.png", "PNG, colour with alpha: over white", save(both, "PNG"), blended, 1),
        Odd(b"key.png", "PNG, one colour transparent: over white", png(shown, 2, 8, key), cut, 0),
        Odd(b"bit.png", "PNG, 1 bit", bits, np.dstack([quarters] * 3), 0),
        Odd(b"gray.png", "PNG, gray", save(Image.fromarray(first), "PNG"), flat, 0),
        Odd(b"interlaced.png", "animated PNG: the first picture", _animated("PNG"), shown, 0),
        Odd(b"text.png", "PNG, 100 kB of text before the picture", _with_text(save(shown, "PNG")), shown, 0),
    ]


def _with_text(data: bytes) -> bytes:
    at = data.index(b"IDAT") - 4
    return data[:at] + chunk(b"tEXt", b"Comment\0" + b"x" * 100_000) + data[at:]


def formats() -> list[Odd]:
    """Formats beside JPEG and PNG, of several pictures the first."""
    shown, alpha = scene(), ramp()
    lossless = save(Image.fromarray(np.dstack([shown, alpha])), "WEBP", lossless=True, exact=True)
    wide_gray = (gray(shown)[..., 0].astype(np.uint16) * 257).astype(">u2")
    gray16 = save(Image.fromarray(wide_gray.astype(np.uint16)), "TIFF")
    pages = BytesIO()
    Image.fromarray(shown).save(pages, "TIFF", save_all=True, append_images=[Image.fromarray(255 - shown)])
    ink = Image.fromarray(255 - np.dstack([scene(), np.full((48, 64), 255, np.uint8)]), "CMYK")
    found = [
        Odd(b"animated.gif", "animated GIF: the first frame", _animated("GIF"), shown, 4),
        Odd(b"animated.webp", "animated WebP: the first frame", _animated("WEBP", lossless=True), shown, 1),
        Odd(b"clear.gif", "GIF with transparency: over white", _clear_gif(), _cleared(), 1),
        Odd(b"lossless.webp", "WebP, lossless with alpha: over white", lossless, over(shown, alpha), 1),
        Odd(b"lossy.webp", "WebP, lossy", save(shown, "WEBP", quality=95), shown, 5),
        Odd(b"plain.bmp", "BMP", save(shown, "BMP"), shown, 0),
        Odd(b"palette.bmp", "BMP with a palette", save(Image.fromarray(shown).quantize(4), "BMP"), shown, 2),
        Odd(b"plain.ppm", "PPM", save(shown, "PPM"), shown, 0),
        Odd(b"gray16.pgm", "PGM, 16 bits", b"P5 64 48 65535\n" + wide_gray.tobytes(), gray(shown), 1),
        Odd(b"pages.tif", "TIFF of two pages: the first", pages.getvalue(), shown, 0),
        Odd(b"lzw.tif", "TIFF, LZW", save(shown, "TIFF", compression="tiff_lzw"), shown, 0),
        Odd(b"jpeg.tif", "TIFF, JPEG inside", save(shown, "TIFF", compression="jpeg", quality=95), shown, 5),
        Odd(b"cmyk.tif", "CMYK TIFF", save(ink, "TIFF"), shown, 1),
        Odd(b"lab.tif", "CIE Lab TIFF", save(Image.fromarray(shown).convert("LAB"), "TIFF"), shown, 2),
        Odd(b"gray16.tif", "TIFF, 16-bit gray: the upper 8 bits", gray16, gray(shown), 1),
    ]
    found += _deep(gray(shown)[..., 0].astype(np.int64), gray(shown))
    if features.check("avif"):
        found.append(Odd(b"plain.avif", "AVIF", save(shown, "AVIF", quality=95), shown, 6))
    return found


def _deep(levels: NDArray[np.int64], shown: Pixels) -> list[Odd]:
    """Gray samples that are not bytes from black to white."""
    light = (levels / 255).astype("<f4").tobytes()
    signed = (levels * 9 - 500).astype("<i2").tobytes()
    dark = ((255 - levels) * 257).astype("<u2").tobytes()
    ranged, gray32 = tiff(signed, 16, 2, span=(-500, 1795)), tiff(levels.astype("<u4").tobytes(), 32)
    gray10 = b"P5 64 48 1023\n" + (levels * 1023 // 255).astype(">u2").tobytes()
    lacking = "without SMinSampleValue and SMaxSampleValue"
    return [
        Odd(b"gray12.tif", "TIFF, 12-bit gray: the upper 8 bits", tiff(twelve(levels * 16), 12), shown, 1),
        Odd(b"white0.tif", "TIFF, 16-bit gray, 0 is white", tiff(dark, 16, photometric=0), shown, 1),
        Odd(b"float.tif", "TIFF, floating point, 0 to 1 declared", tiff(light, 32, 3, span=(0, 1)), shown, 1),
        Odd(b"float_open.tif", "TIFF, floating point, no range declared", tiff(light, 32, 3), error=lacking),
        Odd(b"signed.tif", "TIFF, signed 16 bits, -500 to 1795 declared", ranged, shown, 1),
        Odd(b"signed_open.tif", "TIFF, signed 16 bits, no range declared", tiff(signed, 16, 2), error=lacking),
        Odd(b"gray32.tif", "TIFF, 32-bit gray, no range declared", gray32, error=lacking),
        Odd(b"gray10.pgm", "PGM, 10 bits", gray10, shown, 1),
    ]


def _clear_gif() -> bytes:
    image = Image.fromarray(scene()).quantize(8)
    return save(image, "GIF", transparency=int(np.asarray(image)[0, 0]))


def _cleared() -> Pixels:
    pixels = scene()
    pixels[:24, :32] = 255
    return pixels


def names() -> list[Odd]:
    """Names that say something else, or are hard to write."""
    shown = scene()
    picture, drawing = jpeg(shown), save(shown, "PNG")
    return [
        Odd(b"really_png.JPEG", "PNG named .JPEG", drawing, shown, 0),
        Odd(b"really_jpeg.png", "JPEG named .png", picture, shown),
        Odd(b"really_webp.jpg", "WebP named .jpg", save(shown, "WEBP", lossless=True), shown, 1),
        Odd(b"really_gif.png", "GIF named .png", _animated("GIF"), shown, 4),
        Odd(b"UPPER.JPG", "name in capitals", picture, shown),
        Odd(b" two  spaces .jpg", "spaces in the name, one in front", picture, shown),
        Odd(b"caf\xe9.jpg", "name that is not UTF-8", picture, shown),
        Odd("字 é 🐈.jpg".encode(), "name of several scripts", picture, shown),
        Odd(b"new\nline\ttab.jpg", "line break and tab in the name", picture, shown),
        Odd(b"-rf.jpg", "name like an option", picture, shown),
        Odd(b"'\"$(x)`;&|.jpg", "name full of the shell's characters", picture, shown),
        Odd(b"n" * 251 + b".jpg", "name of 255 bytes", picture, shown),
        Odd(b"many.dots.in.it.jpg", "several dots in the name", picture, shown),
    ]
