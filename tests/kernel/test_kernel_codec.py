"""The C code's functions for images that Pillow opens: the same pixels, and Pillow for unusual files."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
from kernel_images import Pixels, native, needs_native, photo, save, worst
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from iofast.kernel import markers, pillow, recode, resampling
from iofast.kernel.contract import FILTERS, TranscodeRecipe

if native is not None:
    from iofast.kernel import native_codec

pytestmark = needs_native

MODES = {"L": 0, "RGB": 2, "RGBA": 6}
SIZES = [(1, 1), (1, 9), (9, 1), (2, 3), (37, 29), (301, 40)]


def pixels_of(mode: str, size: tuple[int, int]) -> Pixels:
    """A photograph (height, width, channels), with noise as alpha, so that sums and differences wrap."""
    colours = photo(*size, 3)
    if mode == "L":
        return colours[:, :, :1]
    noise = np.random.default_rng(1).integers(0, 256, (*colours.shape[:2], 1), np.uint8)
    return colours if mode == "RGB" else np.concatenate((colours, noise), axis=2)


def chunk(name: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def filtered(pixels: Pixels, kinds: Iterable[int]) -> bytes:
    """Filter each row as the specification describes, byte by byte."""
    height, width, n = pixels.shape
    rows = pixels.reshape(height, width * n).astype(int)
    out = bytearray()
    for y, kind in zip(range(height), kinds, strict=False):
        above = rows[y - 1] if y else np.zeros(width * n, int)
        left, corner = (np.concatenate((np.zeros(n, int), row[:-n])) for row in (rows[y], above))
        estimate = left + above - corner
        away = [abs(estimate - each) for each in (left, above, corner)]
        nearest = np.where(
            (away[0] <= away[1]) & (away[0] <= away[2]), left, np.where(away[1] <= away[2], above, corner)
        )
        guess = (np.zeros(width * n, int), left, above, (left + above) // 2, nearest)[kind]
        out += bytes([kind]) + ((rows[y] - guess) % 256).astype(np.uint8).tobytes()
    return bytes(out)


def png(
    pixels: Pixels, mode: str, kinds: Iterable[int] | None = None, pieces: int = 1, tail: bytes = b"", head: bytes = b""
) -> bytes:
    """A PNG in `pieces` IDAT chunks, with the filters `kinds` of its rows, by default 0 to 4 repeated."""
    height, width = pixels.shape[:2]
    data = zlib.compress(filtered(pixels, kinds if kinds is not None else [y % 5 for y in range(height)]))
    ends = [len(data) * i // pieces for i in range(pieces + 1)]
    parts = b"".join(chunk(b"IDAT", data[a:b]) for a, b in pairwise(ends))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, MODES[mode], 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + head + parts + tail + chunk(b"IEND")


def decoded(data: bytes, decode: Callable[[pillow.Opened], Image.Image]) -> Image.Image | str:
    """The image, or the error."""
    try:
        return decode(pillow.open_image(data, 1 << 28))
    except Exception as error:
        return str(pillow.decode_error(error))


def check_same(data: bytes) -> bool:
    """The C code gives the image or error of Pillow; return whether it is an image."""
    ours, theirs = decoded(data, native_codec.decode), decoded(data, pillow.decode)
    if isinstance(theirs, str) or isinstance(ours, str):
        assert ours == theirs
        return False
    assert (ours.mode, ours.size) == (theirs.mode, theirs.size)
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    return True


@pytest.fixture
def no_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow may open images but not decode them."""
    monkeypatch.setattr(pillow, "decode", lambda opened: pytest.fail(f"Pillow had to decode {opened.size}"))


class TestPng:
    @pytest.mark.parametrize("size", SIZES, ids=str)
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.usefixtures("no_pillow")
    def test_each_filter(self, mode: str, size: tuple[int, int]) -> None:
        pixels = pixels_of(mode, size)
        for kinds in (None, *([kind] * size[1] for kind in range(5))):
            image = decoded(png(pixels, mode, kinds), native_codec.decode)
            assert isinstance(image, Image.Image)
            np.testing.assert_array_equal(np.asarray(image).reshape(pixels.shape), pixels)

    @pytest.mark.usefixtures("no_pillow")
    def test_usual_files(self) -> None:
        text = PngInfo()
        text.add_text("comment", "before")
        pixels = pixels_of("RGB", (200, 150))
        for data in (
            save(Image.fromarray(pixels), "PNG"),
            save(Image.fromarray(pixels), "PNG", pnginfo=text, compress_level=1, dpi=(300, 300)),
            png(pixels, "RGB", pieces=7),
            png(pixels, "RGB", tail=chunk(b"tEXt", b"date\0now") + chunk(b"tIME", bytes(7))),
        ):
            image = decoded(data, native_codec.decode)
            assert isinstance(image, Image.Image)
            np.testing.assert_array_equal(np.asarray(image), pixels)

    def test_profile_and_transparent_colour_are_passed_on(self) -> None:
        grey = np.full((9, 9, 3), 7, np.uint8)
        data = save(Image.fromarray(grey), "PNG", transparency=(7, 7, 7), icc_profile=b"a profile")
        image = decoded(data, native_codec.decode)
        assert isinstance(image, Image.Image)
        assert (image.info["transparency"], image.info["icc_profile"]) == ((7, 7, 7), b"a profile")
        white = native.transcode(data, TranscodeRecipe(format="rgb", icc="drop"))
        assert set(white.data) == {255}

    def test_unusual_files_are_left_to_pillow(self) -> None:
        pixels = photo(50, 40)
        image = Image.fromarray(pixels)
        deep = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
        animated = BytesIO()
        image.save(animated, "PNG", save_all=True, append_images=[image.transpose(Image.Transpose.ROTATE_180)])
        for data in (
            save(image.convert("P"), "PNG", transparency=bytes(range(256))),
            save(image.convert("1"), "PNG"),
            save(image.convert("LA"), "PNG"),
            save(deep, "PNG"),
            animated.getvalue(),
            png(pixels, "RGB", tail=chunk(b"zTXt", b"much\0\0" + zlib.compress(bytes(100)))),
            save(image, "WEBP", lossless=True),
            save(image, "BMP"),
        ):
            assert check_same(data)

    def test_damage_raises_the_errors_of_pillow(self) -> None:
        """Truncation at every byte, flipped bits, too much and too little data, undefined filters."""
        pixels = pixels_of("RGBA", (13, 11))
        data = png(pixels, "RGBA", pieces=3)
        images = sum(check_same(data[:end]) for end in range(len(data)))
        images += sum(
            check_same(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]) for at in range(len(data))
        )
        assert 20 < images < 2 * len(data) - 50
        plain = filtered(pixels, [0] * 11)
        for body in (b"\t" + plain[1:], plain[:-53], plain + b"more", b""):
            check_same(data[:33] + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND"))
        check_same(data[:33] + chunk(b"IDAT", zlib.compress(plain) + b"more") + chunk(b"IEND"))

    def test_a_bomb_is_not_decompressed(self) -> None:
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0))
        data = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(20 << 20))) + chunk(b"IEND")
        assert native_codec._inflated(data, 33, 4 * 13) is None


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_resampling_is_pillows(mode: str, name: str) -> None:
    image = Image.fromarray(photo(150, 110)).convert(mode)
    for box, size in (
        ((0, 0, 150, 110, 40, 30, 0, 0), (40, 30)),
        ((0, 0, 150, 110, 300, 200, 100, 50), (64, 32)),
        ((20, 10, 120, 90, 100, 80, 0, 0), (100, 80)),
        ((0, 0, 150, 110, 1, 1, 0, 0), (1, 1)),
    ):
        found, wanted = (each.resample(image, box, size, name) for each in (native_codec, resampling))
        assert found.mode == wanted.mode == mode
        assert worst(np.asarray(found), np.asarray(wanted)) <= 1


class TestEncoding:
    @pytest.mark.parametrize("subsampling", ["420", "422", "444"])
    @pytest.mark.parametrize("mode", ["L", "RGB"])
    @pytest.mark.parametrize("size", [(1, 1), (33, 17), (200, 150)], ids=str)
    def test_a_jpeg_has_pillows_coefficients(self, size: tuple[int, int], mode: str, subsampling: str) -> None:
        image = Image.fromarray(photo(*size)).convert(mode)
        recipe = TranscodeRecipe(quality=80, subsampling=subsampling)
        ours, theirs = (each.encode(image.copy(), "jpeg", recipe, b"") for each in (native_codec, recode))
        np.testing.assert_array_equal(native.decode(ours), native.decode(theirs))
        assert Image.open(BytesIO(ours)).mode == mode

    def test_restart_intervals(self) -> None:
        image = Image.fromarray(photo(200, 150))
        for restart, interval in ((0, 0), (3, 3), ("auto", 1), (None, 1)):
            recipe = TranscodeRecipe(restart=restart)
            assert markers.restart_interval(native_codec.encode(image, "jpeg", recipe, b"")) == interval

    @pytest.mark.parametrize("mode", ["L", "RGB"])
    def test_yuv_is_the_twins(self, mode: str) -> None:
        image = Image.fromarray(photo(31, 20)).convert(mode)
        ours, theirs = (
            each.encode(image.copy(), "yuv420", TranscodeRecipe(format="yuv420"), b"")
            for each in (native_codec, recode)
        )
        assert ours == theirs

    @pytest.mark.parametrize("length", [1, 100, 65_519, 65_520, 200_000])
    def test_readers_find_an_inserted_profile(self, length: int) -> None:
        profile = np.random.default_rng(length).bytes(length)
        plain = native_codec.encode(Image.fromarray(photo(20, 20)), "jpeg", TranscodeRecipe(), b"")
        data = markers.with_profile(plain, profile)
        image = Image.open(BytesIO(data))
        assert image.info["icc_profile"] == markers.profile(data) == profile
        np.testing.assert_array_equal(native.decode(data), native.decode(plain))
