"""Files that are damaged, hostile, or no images: most must fail to pack, some are harmless."""

import gzip
import zlib

from PIL import Image

from iofast.kernel.contract import MESSAGES, Status
from tools.odd_images.jpegs import segment, with_size
from tools.odd_images.scene import Odd, chunk, jpeg, save, scene

CUT, CORRUPT, UNKNOWN = (MESSAGES[status] for status in (Status.TRUNCATED, Status.CORRUPT, Status.UNSUPPORTED))
LARGE = MESSAGES[Status.LIMIT].removesuffix(" or bytes")


def damaged() -> list[Odd]:
    """Images of which a part is missing or wrong."""
    shown = scene()
    data = jpeg(shown)
    scan, tables, frame = segment(data, 0xDA), segment(data, 0xC4), segment(data, 0xC0)
    middle = scan + (len(data) - scan) // 2
    bad_codes, bad_tables = _patched(data, scan + 30, b"\x55\xfe" * 40), _patched(data, tables + 5, b"\xee" * 16)
    films = "JPEG without Huffman tables, as in Motion JPEG: the standard's"
    progressive = jpeg(shown, progressive=True)
    first = progressive.index(b"\xff\xda")
    return [
        Odd(b"cut_half.jpg", "JPEG, half of the picture missing", data[:middle], error=CUT),
        Odd(b"cut_end.jpg", "JPEG, the last 20 bytes missing", data[:-20], error=CUT),
        Odd(b"no_end.jpg", "JPEG, only the end marker missing", data[:-2], error=CUT),
        Odd(b"cut_header.jpg", "JPEG, cut in the header", data[:200], error=CUT),
        Odd(b"cut_scan.jpg", "JPEG, cut where the picture begins", data[:scan], error=CUT),
        Odd(b"three_bytes.jpg", "JPEG of three bytes", data[:3], error=CUT),
        Odd(b"cut_progressive.jpg", "progressive JPEG, cut in the first scan", progressive[: first + 30], error=CUT),
        Odd(b"empty.jpg", "empty file", b"", error="the file is empty"),
        Odd(b"zeros.jpg", "4096 zeros, as a crashed disk leaves them", bytes(4096), error=UNKNOWN),
        Odd(b"bad_codes.jpg", "JPEG, wrong bytes in the picture", bad_codes, error=CORRUPT),
        Odd(b"bad_tables.jpg", "JPEG, impossible Huffman table", bad_tables, error=CORRUPT),
        Odd(b"no_tables.jpg", films, _without(data, 0xC4), shown),
        Odd(b"no_quantisation.jpg", "JPEG without quantisation tables", _without(data, 0xDB), error=CORRUPT),
        Odd(b"zero_size.jpg", "JPEG of 0 x 0", with_size(data, 0, 0), error=CUT),
        Odd(b"twelve.jpg", "JPEG of 12 bits", _patched(data, frame + 4, b"\x0c"), error=CORRUPT),
        Odd(b"lossless.jpg", "lossless JPEG (SOF3)", _patched(data, frame + 1, b"\xc3"), error=CORRUPT),
    ]


def damaged_others() -> list[Odd]:
    """The same, of other formats."""
    shown = scene()
    data, drawing = jpeg(shown), save(shown, "PNG")
    bad_zlib = _patched(drawing, drawing.index(b"IDAT") + 20, b"\x55" * 30)
    bad_crc, bad_head = (_patched(drawing, at, bytes([drawing[at] ^ 1])) for at in (len(drawing) - 14, 29))
    return [
        Odd(b"bad_crc.png", "PNG, wrong chunk checksum of the picture, right zlib checksum", bad_crc, shown, 0),
        Odd(b"bad_header_crc.png", "PNG, wrong checksum of the header", bad_head, error=CORRUPT),
        Odd(b"bad_zlib.png", "PNG, wrong bytes in the picture", bad_zlib, error=CORRUPT),
        Odd(b"cut.png", "PNG, half of it missing", drawing[: len(drawing) // 2], error=CUT),
        Odd(b"cut.webp", "WebP, half of it missing", _half(save(shown, "WEBP", quality=95)), error=CORRUPT),
        Odd(b"cut.gif", "GIF, half of it missing", _half(save(Image.fromarray(shown).quantize(64), "GIF")), error=CUT),
        Odd(b"cut.bmp", "BMP, half of it missing", _half(save(shown, "BMP")), error=CUT),
        Odd(b"cut.tif", "TIFF, half of it missing", _half(save(shown, "TIFF")), error=""),
        Odd(b"cut_zipped.jpg", "gzip'd JPEG, half of it missing", _half(gzip.compress(data, mtime=0)), error="gzip"),
    ]


def hostile() -> list[Odd]:
    """Small files that claim to be enormous."""
    shown = scene()
    data, drawing = jpeg(shown), save(shown, "PNG")
    size = (100_000).to_bytes(4, "big") * 2
    head = chunk(b"IHDR", size + drawing[24:29])
    moving = save(Image.fromarray(shown).quantize(4), "GIF")
    bitmap = save(shown, "BMP")
    large_bitmap = _patched(bitmap, 18, (1_000_000).to_bytes(4, "little") * 2)
    bomb = 20 * gzip.compress(bytes(16 << 20), 9, mtime=0)
    twice = gzip.compress(gzip.compress(data, mtime=0), mtime=0)
    profile = _with_profile(drawing, zlib.compress(bytes(70 << 20), 9))
    return [
        Odd(b"huge.jpg", "JPEG that claims 65535 x 65535", with_size(data, 65_535, 65_535), error=LARGE),
        Odd(b"huge.png", "PNG that claims 100000 x 100000", drawing[:8] + head + drawing[33:], error=LARGE),
        Odd(b"huge.gif", "GIF that claims 65535 x 65535", moving[:6] + b"\xff" * 4 + moving[10:], error=LARGE),
        Odd(b"huge.bmp", "BMP that claims 1000000 x 1000000", large_bitmap, error=LARGE),
        Odd(b"huge.ppm", "PPM that claims 99999 x 99999", b"P6 99999 99999 255\n" + bytes(100), error=LARGE),
        Odd(b"zip_bomb.jpg", "gzip that unpacks to 320 MB", bomb, error="gzip"),
        Odd(b"zip_twice.jpg", "gzip in gzip: unpacked once", twice, error=UNKNOWN),
        Odd(b"profile_bomb.png", "PNG, colour profile that unpacks to 70 MB", profile, error=CORRUPT),
    ]


def strangers() -> list[Odd]:
    """No images at all, under an image's name."""
    page = b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head></html>\n"
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run\n"
    svg = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>'
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)
    return [
        Odd(b"page.jpg", "HTML page of a failed download", page, error="an HTML page"),
        Odd(b"note.jpg", "text", b"This image is no longer available.\n", error="text"),
        Odd(b"drawing.png", "SVG", svg, error="SVG: not supported"),
        Odd(b"paper.jpg", "PDF", b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n" + bytes(50), error="PDF"),
        Odd(b"postscript.jpg", "PostScript: no interpreter is started", script, error="PostScript"),
        Odd(b"icon.png", "ICO", save(scene(32, 32), "ICO"), error=UNKNOWN),
        Odd(b"phone.jpg", "HEIC without pictures", heic, error="HEIC"),
        Odd(b"archive.jpg", "ZIP archive", b"PK\3\4" + bytes(100), error="ZIP"),
        Odd(b"only_magic.png", "PNG's first eight bytes", b"\x89PNG\r\n\x1a\n", error=""),
        Odd(b"noise.jpg", "random bytes", bytes((i * i * 37 + 11) % 251 for i in range(999)), error=UNKNOWN),
        Odd(b"pipe.jpg", "named pipe", b"", error="not a regular file", link="pipe"),
        Odd(b"dangling.jpg", "dangling symbolic link", b"", error="the file cannot be read", link="dangling"),
    ]


def _patched(data: bytes, at: int, part: bytes) -> bytes:
    return data[:at] + part + data[at + len(part) :]


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _without(data: bytes, marker: int) -> bytes:
    """A JPEG without its segments of one kind."""
    kept, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        kept += b"" if data[at + 1] == marker else data[at:end]
        at = end
    return kept + data[at:]


def _with_profile(data: bytes, packed: bytes) -> bytes:
    at = data.index(b"IDAT") - 4
    return data[:at] + chunk(b"iCCP", b"odd\0\0" + packed) + data[at:]
