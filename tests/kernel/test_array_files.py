"""Images of all bits and channels: files, turning, resampling against a float64 oracle, packing, damage."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import exif, save
from PIL import Image

from iofast.errors import DecodeError
from iofast.kernel import TranscodeRecipe, arrays, lossless, pillow, png, read_header, transcode
from iofast.kernel.contract import Status, StatusError
from tools.odd_images.profiles import WIDE, rgb_profile

LIMIT = 1 << 20
SHAPES = [(1, "uint8"), (1, "uint16"), (1, "float32"), (3, "uint16"), (4, "uint8"), (13, "uint16"), (16, "float32")]


def pixels(channels: int, kind: str, height: int = 23, width: int = 31, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if kind == "float32":
        return rng.normal(300, 1000, (height, width, channels)).astype(np.float32)
    return rng.integers(0, np.iinfo(kind).max + 1, (height, width, channels)).astype(kind)


def saved(array: np.ndarray[Any, Any], version: tuple[int, int] | None = None) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version)
    return out.getvalue()


def tiff(array: np.ndarray[Any, Any], **options: Any) -> bytes:
    """An array (rows, columns, channels), or in planes."""
    tifffile = pytest.importorskip("tifffile")
    out = io.BytesIO()
    channels = array.shape[2] if array.ndim == 3 else 1
    if channels == 1:
        array = array.reshape(array.shape[:2])
    elif options.get("planarconfig") == "separate":
        array = array.transpose(2, 0, 1)
    else:
        options["planarconfig"] = "contig"
    tifffile.imwrite(out, array, **{"photometric": "rgb" if channels in (3, 4) else "minisblack", **options})
    return out.getvalue()


def same(stored: bytes, array: np.ndarray[Any, Any]) -> bool:
    return np.array_equal(lossless.read(stored, LIMIT).reshape(array.shape), array)


class TestNpy:
    @given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 16), st.sampled_from(arrays.TYPES), st.booleans())
    def test_round_trip(self, height: int, width: int, channels: int, kind: str, fortran: bool) -> None:
        array = pixels(channels, kind, height, width)
        stored = saved(np.asfortranarray(array) if fortran else array)
        assert np.array_equal(arrays.read_npy(stored, LIMIT), array)
        header = arrays.npy_header(stored)
        assert (header.width, header.height, header.components, header.type) == (width, height, channels, kind)
        again = arrays.write_npy(array)
        assert np.array_equal(arrays.read_npy(again, LIMIT), array)
        assert np.array_equal(np.load(io.BytesIO(again)).reshape(array.shape), array)

    def test_other_versions_and_byte_orders(self) -> None:
        array = pixels(13, "uint16")
        for stored in (saved(array, (2, 0)), saved(array, (3, 0)), saved(array.astype(">u2"))):
            np.testing.assert_array_equal(arrays.read_npy(stored, LIMIT), array, strict=True)

    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.zeros(768, np.float32), "is no image"),
            (np.zeros((2, 2, 17), np.uint8), "is no image"),
            (np.zeros((2, 2, 3), np.float64), "float64 is no image"),
            (np.zeros((2, 0, 3), np.uint8), "is no image"),
            (np.zeros((2, 2, 2, 2), np.uint8), "is no image"),
            (np.zeros((1025, 1024), np.uint8), "1024x1025 pixels"),
        ],
    )
    def test_what_is_no_image(self, array: np.ndarray[Any, Any], message: str) -> None:
        with pytest.raises(StatusError, match=message):
            arrays.read_npy(saved(array), LIMIT)

    def test_pickles_are_not_loaded(self) -> None:
        out = io.BytesIO()
        np.save(out, np.array([[{}]], object), allow_pickle=True)
        with pytest.raises(DecodeError, match="object is no image"):
            read_header(out.getvalue())

    def test_damage(self) -> None:
        stored = saved(pixels(13, "uint16"))
        for cut in (len(stored) - 1, 40, 7):
            with pytest.raises(StatusError) as caught:
                arrays.read_npy(stored[:cut], LIMIT)
            assert caught.value.status == Status.TRUNCATED
        with pytest.raises(StatusError, match="bytes of pixels expected"):
            arrays.read_npy(stored + b"\0", LIMIT)


class TestFiles:
    @pytest.mark.parametrize("channels", [1, 2, 3, 4])
    @pytest.mark.parametrize("kind", ["uint8", "uint16"])
    def test_png(self, channels: int, kind: str) -> None:
        """What Pillow sees of them is the upper 8 bits, by an implementation of its own."""
        array = pixels(channels, kind)
        stored = png.write(array)
        if (channels, kind) == (2, "uint16"):
            with pytest.raises(StatusError, match="16 bits of"):
                lossless.read(stored, LIMIT)
            return
        assert np.array_equal(lossless.read(stored, LIMIT), array)
        seen = np.asarray(Image.open(io.BytesIO(stored)))
        wanted = (array >> 8).astype(np.uint8) if kind == "uint16" and channels > 1 else array
        assert np.array_equal(seen.reshape(array.shape), wanted)

    @pytest.mark.parametrize(("channels", "kind"), SHAPES)
    @pytest.mark.parametrize("order", "<>")
    def test_tiff(self, channels: int, kind: str, order: str) -> None:
        array = pixels(channels, kind)
        layouts: list[dict[str, Any]] = [{}, {"rowsperstrip": 5}, {"compression": "zlib"}]
        for options in layouts + [{"planarconfig": "separate"}] * (channels > 4):
            stored = tiff(array, byteorder=order, **options)
            assert same(stored, array)
            header = read_header(stored)
            assert (header.format, header.width, header.height) == ("tiff", 31, 23)

    @pytest.mark.parametrize("channels", [2, 3, 4, 5])
    @pytest.mark.parametrize("kind", ["uint8", "uint16"])
    @pytest.mark.parametrize("order", "<>")
    @pytest.mark.parametrize("compression", [None, "zlib"])
    @pytest.mark.parametrize("tile", [None, (16, 32)])
    def test_planes(self, channels: int, kind: str, order: str, compression: str | None, tile: Any) -> None:
        """Pillow takes 16-bit planes for bytes, without an error."""
        array = pixels(channels, kind)
        stored = tiff(array, planarconfig="separate", compression=compression, tile=tile, byteorder=order)
        assert same(stored, array)
        if kind == "uint16":
            with pytest.raises(DecodeError, match="planes of 16 bits"):
                transcode(stored, TranscodeRecipe())
        if (channels, kind) != (4, "uint8"):  # which is laid over white, like any image with alpha
            assert same(transcode(stored, TranscodeRecipe(format="keep")).data, array)

    @pytest.mark.parametrize("kind", ["uint8", "uint16"])
    def test_values_as_stored(self, kind: str) -> None:
        """Neither divided by alpha, nor inverted, nor converted from inks; no channel is left out, as by Pillow."""
        array = pixels(4, kind)
        assert same(tiff(array, extrasamples=["assocalpha"]), array)
        assert same(tiff(array[:, :, :1], photometric="miniswhite"), array[:, :, :1])
        if kind == "uint16":  # inks of 8 bits become RGB, as those of a JPEG
            assert same(tiff(array, photometric="separated"), array)
        assert same(tiff(pixels(5, kind), photometric="rgb"), pixels(5, kind))

    def test_transparent_level_of_gray(self) -> None:
        array = pixels(1, "uint16")
        stored = png.write(array)
        assert same(stored[:33] + png._chunk(b"tRNS", b"\0\5") + stored[33:], array)

    def test_no_strip_unpacks_to_more_than_the_image(self) -> None:
        """As would 600 MB of zeros in 600 kB."""
        zeros = np.zeros((400, 400, 5), np.uint8)
        stored = tiff(zeros, compression="zlib", rowsperstrip=400)
        height, small = struct.pack("<HHII", 257, 4, 1, 400), struct.pack("<HHII", 257, 4, 1, 4)
        rows, few = struct.pack("<HHII", 278, 4, 1, 400), struct.pack("<HHII", 278, 4, 1, 4)
        assert rows in stored
        assert height in stored
        bomb = stored.replace(height, small).replace(rows, few)
        with pytest.raises(StatusError, match="a strip or tile of more than 8000 bytes"):
            lossless.read(bomb, LIMIT)
        plain, lzw = struct.pack("<HHII", 259, 3, 1, 1), struct.pack("<HHII", 259, 3, 1, 5)
        packed = tiff(np.zeros((8, 8, 7), np.uint8))
        with pytest.raises(StatusError, match="compression 5: expected none or deflate"):
            lossless.read(packed.replace(plain, lzw), LIMIT)

    @pytest.mark.parametrize("name", ["tiff_lzw", "tiff_deflate"])
    def test_compressed_by_libtiff(self, name: str) -> None:
        array = pixels(1, "uint16")[:, :, 0]
        assert same(save(Image.fromarray(array), "TIFF", compression=name), array)

    @pytest.mark.parametrize("kind", ["int32", "int16", "float64"])
    def test_other_types_are_refused(self, kind: str) -> None:
        with pytest.raises(DecodeError, match=r"expected|signed"):
            lossless.upright(tiff(np.zeros((8, 9), kind)))

    def test_usual_images(self) -> None:
        array = pixels(3, "uint8")
        for made, wanted in (
            (Image.fromarray(array), array),
            (Image.fromarray(array[:, :, 0]), array[:, :, :1]),
            (Image.fromarray(array[:, :, :2], "LA"), array[:, :, :2]),
            (Image.fromarray(array[:, :, 0] > 127), np.where(array[:, :, :1] > 127, 255, 0)),
        ):
            assert same(save(made, "PNG"), wanted)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turns_are_pillows(orientation: int) -> None:
    array = pixels(3, "uint8")
    wanted = np.asarray(pillow.turn(Image.fromarray(array), orientation))
    assert np.array_equal(lossless.turned(array, orientation), wanted)


def oracle(array: np.ndarray[Any, Any], box: tuple[int, ...], size: tuple[int, int], filter: str) -> Any:
    """The window of the antialiased resize in float64, by torch."""
    x0, y0, x1, y1, width, height, x, y = box
    region = torch.from_numpy(array[y0:y1, x0:x1].astype(np.float64)).permute(2, 0, 1)[None]
    made = torch.nn.functional.interpolate(region, (height, width), mode=filter, antialias=True, align_corners=False)
    return made[0].permute(1, 2, 0)[y : y + size[1], x : x + size[0]].numpy()


@pytest.mark.parametrize(("channels", "kind"), SHAPES)
@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_resampling_against_float64(channels: int, kind: str, filter: str) -> None:
    array = pixels(channels, kind, 41, 57)
    for box, size in (
        ((0, 0, 57, 41, 30, 20, 0, 0), (30, 20)),
        ((5, 3, 50, 40, 90, 74, 10, 20), (33, 21)),
        ((7, 0, 31, 24, 24, 24, 4, 2), (12, 16)),
    ):
        made, wanted = lossless.resample(array, box, size, filter), oracle(array, box, size, filter)
        assert made.dtype == array.dtype
        if kind == "float32":
            assert np.abs(made - wanted).max() <= 1e-6 * np.abs(array).max()
        else:
            wanted = np.rint(wanted).clip(0, np.iinfo(kind).max)
            differs = made.astype(np.int64) != wanted.astype(np.int64)
            assert differs.mean() <= 0.01  # nearly halves: float32 between the passes has a step of 1/256 at 65,535
            assert np.abs(made.astype(np.int64) - wanted.astype(np.int64)).max() <= 1


class TestTranscode:
    @pytest.mark.parametrize(("channels", "kind"), SHAPES)
    def test_npy_keeps_everything(self, channels: int, kind: str) -> None:
        array = pixels(channels, kind)
        stored = arrays.write_npy(array)
        for data, format in ((stored, "npy"), (stored, "keep"), (tiff(array), "npy")):
            made = transcode(data, TranscodeRecipe(format=format))
            assert (made.data, made.field, made.width, made.height) == (stored, "image.npy", 31, 23)

    def test_resized_cropped_padded(self) -> None:
        array = pixels(13, "uint16", 40, 60)
        stored = arrays.write_npy(array)
        made = transcode(stored, TranscodeRecipe(size=20, mode="short", format="npy"))
        assert (made.width, made.height) == (30, 20)
        wanted = lossless.resample(array, (0, 0, 60, 40, 30, 20, 0, 0), (30, 20), "bilinear")
        assert np.array_equal(arrays.read_npy(made.data, LIMIT), wanted)
        cropped = transcode(stored, TranscodeRecipe(size=20, mode="crop", format="npy"))
        assert np.array_equal(arrays.read_npy(cropped.data, LIMIT), wanted[:, 5:25])
        padded = arrays.read_npy(transcode(stored, TranscodeRecipe(size=30, mode="pad", format="npy")).data, LIMIT)
        assert np.array_equal(padded[5:25], wanted)
        assert not padded[:5].any()
        assert not padded[25:].any()

    def test_jpeg_becomes_an_array(self) -> None:
        array = pixels(3, "uint8")
        stored = save(Image.fromarray(array), "JPEG", exif=exif(6))
        made = transcode(stored, TranscodeRecipe(format="npy"))
        wanted = np.rot90(np.asarray(Image.open(io.BytesIO(stored))), -1)
        assert np.array_equal(arrays.read_npy(made.data, LIMIT), wanted)

    @pytest.mark.parametrize("channels", [1, 3])
    def test_png_keeps_16_bits(self, channels: int) -> None:
        array = pixels(channels, "uint16", 40, 60)
        for stored in (png.write(array), tiff(array)):
            for format in ("png", "keep"):
                assert same(transcode(stored, TranscodeRecipe(format=format)).data, array)
            small = transcode(stored, TranscodeRecipe(size=20, mode="short", format="png"))
            wanted = lossless.resample(array, (0, 0, 60, 40, 30, 20, 0, 0), (30, 20), "bilinear")
            assert same(small.data, wanted)
            padded = transcode(stored, TranscodeRecipe(size=60, mode="pad", format="png", pad_color="#ff8000"))
            assert lossless.read(padded.data, LIMIT)[0, 0].tolist() == [65535, 128 * 257, 0]

    def test_profiles_and_transparency_are_dealt_with_in_8_bits(self) -> None:
        """A wide profile is converted, alpha is laid over the background, as in images of 8 bits."""
        array = pixels(4, "uint16", 40, 60)
        made = transcode(png.write(array), TranscodeRecipe(format="png"))
        assert lossless.read(made.data, LIMIT).dtype == np.uint8
        stored, profile = png.write(array[:, :, :3].copy()), rgb_profile(WIDE)
        chunk = png._chunk(b"iCCP", b"wide\0\0" + zlib.compress(profile))
        for icc, kind in ((None, "uint8"), ("keep", "uint8"), ("drop", "uint16")):
            made = transcode(stored[:33] + chunk + stored[33:], TranscodeRecipe(format="png", icc=icc))
            assert lossless.read(made.data, LIMIT).dtype == kind
            assert bool(Image.open(io.BytesIO(made.data)).info.get("icc_profile")) == (icc == "keep")

    @pytest.mark.parametrize(
        ("kind", "options", "message"),
        [
            ((13, "uint16"), {"format": "jpeg"}, "13 channels of uint16: pack it with --format npy"),
            ((13, "uint16"), {"format": "png"}, "13 channels of uint16: pack it with --format npy"),
            ((1, "float32"), {"format": "jpeg"}, "1 channel of float32: pack it with --format npy"),
            ((13, "uint16"), {"format": "npy", "max_pixels": 100}, "limit on pixels"),
            ((13, "uint16"), {"format": "npy", "max_memory": 1000}, "limit on memory"),
        ],
    )
    def test_is_refused(self, kind: tuple[int, str], options: dict[str, Any], message: str) -> None:
        with pytest.raises(DecodeError, match=message):
            transcode(arrays.write_npy(pixels(*kind)), TranscodeRecipe(**options))
