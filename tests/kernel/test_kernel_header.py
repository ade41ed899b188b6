"""`read_header`: format, upright size and orientation, from a file's first bytes or from all of them."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import KINDS, exif, jpeg, photo, save, segment, with_segment, with_size
from PIL import Image

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel.contract import Header

PIXELS = photo(90, 60)
IMAGE = Image.fromarray(PIXELS)
FORMATS = ("PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_jpeg(kind: str) -> None:
    components = {"gray": 1, "progressive gray": 1, "cmyk": 4, "ycck": 4}.get(kind, 3)
    restart = {"restart blocks": 3, "restart rows": 6}.get(kind, 0)
    across = {"444": 1, "440": 1, "441": 1, "rgb": 1, "cmyk": 1, "ycck": 1, "411": 4}.get(kind, 2)
    mcus = -(-90 // (8 * (1 if components == 1 else across)))
    wanted = Header("jpeg", 90, 60, 1, components, kind.startswith("progressive"), restart, mcus)
    assert kernel.read_header(KINDS[kind](PIXELS)) == wanted
    assert isinstance(kernel.read_header(KINDS[kind](PIXELS)).progressive, bool)


def test_other_formats() -> None:
    alpha, gray = Image.fromarray(np.dstack([PIXELS, PIXELS[..., 0]])), IMAGE.convert("L")
    others = [(gray, "PNG", 1), (alpha, "PNG", 4), (IMAGE.convert("P"), "PNG", 3), (alpha, "WEBP", 4)]
    others += [(IMAGE.convert("CMYK"), "TIFF", 4), (gray, "PPM", 1)]
    for image, name, components in [*((IMAGE, name, 3) for name in FORMATS), *others]:
        assert kernel.read_header(save(image, name)) == Header(name.lower(), 90, 60, 1, components, False), name


def _exif(order: str, entries: list[tuple[int, int, int, bytes]], offset: int = 8) -> bytes:
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, offset)
    rows = b"".join(struct.pack(order + "HHI", *entry[:3]) + entry[3] for entry in entries)
    return b"Exif\0\0" + head + struct.pack(order + "H", len(entries)) + rows + bytes(4)


_LITTLE, _BIG = struct.pack("<HH", 6, 0), struct.pack(">HH", 6, 0)
SHORT_6, LONG_6 = (0x0112, 3, 1, _LITTLE), (0x0112, 4, 1, struct.pack("<I", 6))
EXIF_BLOCKS = {
    "little": (_exif("<", [SHORT_6]), 6),
    "big": (_exif(">", [(0x0112, 3, 1, _BIG)]), 6),
    "second": (_exif(">", [(0x0100, 4, 1, bytes(4)), (0x0112, 3, 1, _BIG), (0x0131, 4, 1, bytes(4))]), 6),
    "long": (_exif("<", [LONG_6]), 6),
    "zero": (_exif("<", [(0x0112, 3, 1, bytes(4))]), 1),
    "nine": (_exif("<", [(0x0112, 3, 1, struct.pack("<HH", 9, 0))]), 1),
    "none": (_exif("<", []), 1),
    "text first": (_exif("<", [(0x0112, 2, 1, _LITTLE), SHORT_6]), 6),
    "text": (_exif("<", [(0x0112, 2, 1, _LITTLE)]), 1),
    "twice": (b"Exif\0\0" + _exif(">", [(0x0112, 3, 1, _BIG)]), 6),
    "short cut": (_exif("<", [SHORT_6])[:-6], 6),
    "long cut": (_exif("<", [LONG_6])[:-6], 1),
    "no TIFF": (_exif("<", [SHORT_6]).replace(b"*", b"+"), 1),
    "empty": (b"Exif\0\0", 1),
    "cut": (b"Exif\0\0II*\0", 1),
    "xmp": (b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta tiff:Orientation='6'/>", 1),
}


@pytest.mark.parametrize(("block", "orientation"), EXIF_BLOCKS.values(), ids=EXIF_BLOCKS)
def test_valid_and_invalid_exif(block: bytes, orientation: int) -> None:
    header = kernel.read_header(with_segment(jpeg(PIXELS), 0xE1, block))
    assert header[:6] == ("jpeg", *((60, 90) if orientation == 6 else (90, 60)), orientation, 3, False)


@given(block=st.binary(max_size=80), offset=st.integers(0, 2**32 - 1))
def test_exif_of_any_bytes_does_no_harm(block: bytes, offset: int) -> None:
    for body in (b"Exif\0\0" + block, _exif(">", [(0x0112, 3, 1, _BIG)], offset) + block):
        header = kernel.read_header(with_segment(jpeg(PIXELS), 0xE1, body))
        assert {header.width, header.height} == {60, 90}
        assert 1 <= header.orientation <= 8


def test_the_beginning_of_a_file_is_enough_or_raises() -> None:
    """A part never gives a wrong header: folders are scanned by the first bytes of their files."""
    noise = bytes(range(256)) * 300  # a profile before the frame
    data = save(IMAGE, "JPEG", exif=exif(6), icc_profile=noise)
    whole = kernel.read_header(data)
    assert whole.orientation == 6
    scan = segment(data, 0xDA)
    assert kernel.read_header(data[: scan + 14]) == whole
    for end in (3, 20, 200, 5000, 70_000, scan - 1, scan):
        with pytest.raises(DecodeError, match="truncated"):
            kernel.read_header(data[:end])
    for data in (save(IMAGE, name) for name in ("PNG", "GIF", "BMP", "PPM")):
        assert kernel.read_header(data[:2000]) == kernel.read_header(data)


def test_the_limit_on_pixels_is_applied_to_a_header() -> None:
    """Else readers would take memory for an image that is never decoded."""
    data = with_size(jpeg(PIXELS), 65_500, 65_500)
    limit = r"limit on pixels \(65500x65500 pixels, the limit is [0-9]+; pack has --max-pixels\)"
    with pytest.raises(DecodeError, match=limit):
        kernel.read_header(data)
    assert kernel.read_header(data, 1 << 32, 1 << 40)[1:3] == (65_500, 65_500)


@pytest.mark.parametrize("data", [b"\xff", b"hello, world" * 20, b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\0" * 100, b""])
def test_files_that_are_not_images(data: bytes) -> None:
    with pytest.raises(DecodeError, match=r"^not an image that can be decoded here" if data else "is empty"):
        kernel.read_header(data)
    with pytest.raises(DecodeError, match=r"truncated|corrupt|not an image"):
        kernel.read_header(b"II*\0" + data[:3])


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@given(data=st.data())
def test_damaged_headers_raise_one_line(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["JPEG", *FORMATS]))
    payload = bytearray(save(IMAGE, name))
    for place in data.draw(st.lists(st.integers(3, 250), min_size=1, max_size=8)):
        payload[min(place, len(payload) - 1)] = data.draw(st.integers(0, 255))
    del payload[data.draw(st.integers(3, len(payload))) :]
    try:
        assert min(kernel.read_header(bytes(payload))[1:3]) > 0
    except DecodeError as error:
        assert "\n" not in str(error)  # noqa: PT017
