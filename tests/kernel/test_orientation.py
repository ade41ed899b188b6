"""Orientation from EXIF and XMP, wherever a format stores them, as in Pillow's `exif_transpose`."""

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import PIL
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import exif, jpeg, photo, save, with_segment
from PIL import Image, ImageOps, features

from iofast import kernel
from iofast.kernel import other_formats
from iofast.kernel.contract import TranscodeRecipe
from tools.odd_images.scene import chunk

SIZE = WIDTH, HEIGHT = 90, 60
IMAGE = Image.fromarray(photo(*SIZE))
PACKET = b"http://ns.adobe.com/xap/1.0/\0"
KEY, RAW = b"XML:com.adobe.xmp", b"Raw profile type exif"


def xmp(orientation: int, *, element: bool = False) -> bytes:
    said = f"><tiff:Orientation>{orientation}</tiff:Orientation" if element else f' tiff:Orientation="{orientation}"'
    return f"<x:xmpmeta><rdf:Description xmlns:tiff='ns'{said}></rdf:Description></x:xmpmeta>".encode()


def raw_profile(orientation: int) -> bytes:
    """EXIF as ImageMagick writes it into a PNG."""
    block = exif(orientation)
    return f"\nexif\n{len(block):8}\n{block.hex()}\n".encode()


def app1(*bodies: bytes) -> bytes:
    return with_segment(jpeg(np.asarray(IMAGE)), 0xE1, *bodies)


def with_chunks(*chunks: bytes, behind: bool, data: bytes | None = None) -> bytes:
    """A PNG with more chunks before or behind its pixels."""
    data = save(IMAGE, "PNG") if data is None else data
    at = len(data) - 12 if behind else data.index(b"IDAT") - 4
    return data[:at] + b"".join(chunks) + data[at:]


def itxt(text: bytes, packed: bool = False) -> bytes:
    return chunk(b"iTXt", KEY + bytes([0, packed, 0, 0, 0]) + (zlib.compress(text) if packed else text))


def ztxt(key: bytes, text: bytes) -> bytes:
    return chunk(b"zTXt", key + b"\0\0" + zlib.compress(text))


def no_tag() -> bytes:
    block = Image.Exif()
    block[0x0131] = "a program"
    return block.tobytes()


def text_tag() -> bytes:
    """EXIF whose orientation is a text."""
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHI4sI", 1, 0x0112, 2, 2, b"6\0\0\0", 0)


def cases() -> Iterator[tuple[str, bytes, int]]:
    """Name, file, and orientation."""
    yield "jpeg exif", app1(exif(6)), 6
    yield "jpeg xmp", app1(PACKET + xmp(6)), 6
    yield "jpeg xmp element", app1(PACKET + xmp(8, element=True)), 8
    yield "jpeg both", app1(exif(3), PACKET + xmp(6)), 3
    yield "jpeg xmp first", app1(PACKET + xmp(6), exif(1)), 1
    yield "jpeg exif without it", app1(no_tag(), PACKET + xmp(5)), 5
    yield "jpeg exif of text", app1(text_tag(), PACKET + xmp(5)), 1
    yield "jpeg two packets", app1(PACKET + xmp(5), PACKET + xmp(7)), 7
    yield "jpeg nine", app1(PACKET + xmp(9)), 1
    yield "jpeg large packet", app1(PACKET + b"O tiff:Orientation tiff:Orientation=6 " * 1500 + xmp(6)), 6
    yield "jpeg other packet", app1(b"http://ns.adobe.com/xmp/extension/\0" + xmp(6)), 1
    for name, chunks, orientation in (
        ("exif", [chunk(b"eXIf", exif(6)[6:])], 6),
        ("xmp", [itxt(xmp(6))], 6),
        ("packed xmp", [itxt(xmp(8, element=True), packed=True)], 8),
        ("xmp as text", [chunk(b"tEXt", KEY + b"\0" + xmp(5))], 5),
        ("xmp as packed text", [ztxt(KEY, xmp(7))], 7),
        ("raw profile", [ztxt(RAW, raw_profile(6))], 6),
        ("text profile", [chunk(b"tEXt", RAW + b"\0" + raw_profile(3))], 3),
        ("exif as text", [chunk(b"tEXt", b"exif\0" + exif(6))], 6),
        ("all", [itxt(xmp(2)), chunk(b"eXIf", exif(4)[6:]), ztxt(RAW, raw_profile(6))], 4),
        ("twice", [chunk(b"eXIf", exif(n)[6:]) for n in (3, 6)], 6),
        ("other words", [chunk(b"tEXt", b"Comment\0" + xmp(6))], 1),
    ):
        yield f"png {name} before", with_chunks(*chunks, behind=False), orientation
        yield f"png {name} behind", with_chunks(*chunks, behind=True), orientation
    early = with_chunks(chunk(b"eXIf", no_tag()[6:]), behind=False)
    yield "png on both sides", with_chunks(itxt(xmp(6)), behind=True, data=early), 6
    for name in ("webp", "avif") if features.check("avif") else ("webp",):
        options = {"lossless": True} if name == "webp" else {}
        yield f"{name} exif", save(IMAGE, name, exif=exif(6), **options), 6
        yield f"{name} xmp", save(IMAGE, name, xmp=xmp(6), **options), 6
        yield f"{name} both", save(IMAGE, name, exif=exif(8), xmp=xmp(6), **options), 8
    for number in range(1, 9):
        yield f"tiff {number}", save(IMAGE, "TIFF", tiffinfo={0x0112: number}), number
    yield "tiff packed", save(IMAGE, "TIFF", tiffinfo={0x0112: 6}, compression="tiff_lzw"), 6
    yield "tiff xmp", save(IMAGE, "TIFF", tiffinfo={700: xmp(6)}), 6
    yield "tiff both", save(IMAGE, "TIFF", tiffinfo={0x0112: 8, 700: xmp(6)}), 8


CASES = [pytest.param(data, orientation, id=name) for name, data, orientation in cases()]


def probed(data: bytes) -> kernel.Header:
    return kernel.probe(lambda offset, count: data[offset : offset + count], len(data))


def upright(data: bytes, orientation: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The image by Pillow's decoder, turned by `exif_transpose`."""
    image = Image.open(io.BytesIO(data))
    if image.format == "TIFF":  # turned by Pillow, if this version finds the tag
        image = IMAGE
    block = Image.Exif()
    block[0x0112] = orientation
    plain = Image.fromarray(np.asarray(image.convert("RGB")))
    plain.info["exif"] = block.tobytes()
    return np.asarray(ImageOps.exif_transpose(plain))


@pytest.mark.parametrize(("data", "orientation"), CASES)
def test_header_and_pixels(data: bytes, orientation: int) -> None:
    header = kernel.read_header(data)
    size = (HEIGHT, WIDTH) if orientation >= 5 else (WIDTH, HEIGHT)
    assert (header.width, header.height, header.orientation) == (*size, orientation)
    assert probed(data)[:5] == header[:5]
    kept, made = (kernel.transcode(data, TranscodeRecipe(format=each)) for each in ("keep", "png"))
    assert kept.orientation == (orientation if kept.data == data else 1)
    wanted = upright(data, orientation)
    found = np.asarray(Image.open(io.BytesIO(made.data)))
    assert (made.width, made.height, made.orientation) == (*size, 1)
    assert np.abs(found.astype(int) - wanted).max() <= 1
    assert np.abs(kernel.decode(data, orientation).astype(int) - wanted).max() <= 1
    if int(PIL.__version__.split(".")[0]) >= 12:  # older versions look for less
        shown = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        assert (np.asarray(shown) == wanted).all()


def large(behind: bytes, one: bool) -> bytes:
    """A PNG of megabytes, its pixels in one chunk or in chunks of 8 KiB as libpng writes them."""
    noise = np.random.default_rng(1).integers(0, 256, (1000, 1000, 3), np.uint8)
    pixels = zlib.compress(np.insert(noise.reshape(1000, 3000), 0, 0, axis=1).tobytes(), 0)
    step = len(pixels) if one else 8192
    parts = [chunk(b"IDAT", pixels[start : start + step]) for start in range(0, len(pixels), step)]
    return save(Image.fromarray(noise), "PNG")[:33] + b"".join(parts) + behind + chunk(b"IEND", b"")


@pytest.mark.parametrize("one", [False, True], ids=["libpng", "one chunk"])
@pytest.mark.parametrize(
    ("behind", "orientation"),
    [
        (b"", 1),
        (chunk(b"eXIf", exif(6)[6:]), 6),
        (chunk(b"tEXt", b"Comment\0about IDAT, or \0\0\0\0IDAT") + itxt(xmp(6)), 6),
        (itxt(xmp(6)) + chunk(b"tEXt", b"Comment\0" + bytes(100_000)), 6),
        (itxt(b"x" * 100_000 + xmp(6)), 6),
    ],
    ids=["nothing", "exif", "words", "large text", "large xmp"],
)
def test_little_of_a_large_png_is_read(behind: bytes, orientation: int, one: bool) -> None:
    data = large(behind, one)
    counts = []

    def part(offset: int, count: int) -> bytes:
        counts.append(count)
        return data[offset : offset + count]

    header = kernel.probe(part, len(data))
    assert (header.width, header.orientation) == (1000, orientation)
    assert sum(counts) < 100_000 + 2 * len(behind)
    assert len(counts) < 20 or len(behind) > 1 << 16
    assert kernel.read_header(data).orientation == orientation


@pytest.mark.parametrize("data", [b"", b"IEND", chunk(b"IDAT", b"x") * 50, chunk(b"IDAT", b"") * 9000])
def test_a_png_without_an_end(data: bytes) -> None:
    """A bounded search finds nothing: no guess at the end of the pixels leads to the end."""
    head = save(IMAGE, "PNG")
    at = head.index(b"IDAT") - 4
    assert kernel.read_header(head[:at] + chunk(b"IDAT", b"x") + data).orientation == 1


@given(st.binary(max_size=200), st.integers(0, 200))
def test_damaged_chunks_do_no_harm(noise: bytes, at: int) -> None:
    data = with_chunks(itxt(xmp(6)), ztxt(RAW, raw_profile(6)), behind=True)
    place = len(data) - at
    for damaged in (data[:place] + noise, data[:place] + noise + data[place + len(noise) :]):
        header = kernel.read_header(damaged)
        assert 1 <= header.orientation <= 8
        assert probed(damaged) == header


@given(
    st.lists(
        st.sampled_from([b"tiff:Orientation", b'="', b">", b"=", b'"', b"6", b"1", b"x", b"O", b"tiff:"]), max_size=12
    )
)
def test_pillow_finds_the_same_in_xmp(words: list[bytes]) -> None:
    """Also at the end of the packet, where the next segment follows."""
    data = app1(PACKET + b"".join(words), b'"6">6')
    assert kernel.read_header(data)[:4] == other_formats.read_header(data)[:4]
