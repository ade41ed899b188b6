"""`transcode`: sizes, pixels and bytes of packed images; and the C code's encoder for images that Pillow decodes."""

import re
import shutil
import struct
import subprocess
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jpeg_damage import Parts
from kernel_images import (
    KINDS,
    Pixels,
    as_far_as_it_goes,
    exif,
    jpeg,
    photo,
    save,
    upright,
    with_segment,
)
from PIL import Image
from places import ROOT

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel import markers, native
from iofast.kernel.contract import FILTERS, MAX_SIDE, Transcoded, TranscodeRecipe

FINE = {"quality": 100, "subsampling": "444"}  # the smallest encoding error: 2 levels, rarely more


OTHERS = ("PNG", "WEBP", "TIFF", "GIF", "BMP", "PPM")
MODES = ("none", "short", "long", "exact", "crop", "pad")
FORMATS = {"jpeg": ("jpg", 1, 12), "png": ("png", 1, 1), "webp": ("webp", 3, 255), "rgb": ("rgb", 1, 1)}


def pixels_of(result: Transcoded) -> Pixels:
    if result.field == "rgb":
        return np.frombuffer(result.data, np.uint8).reshape(result.height, result.width, 3)
    return np.asarray(upright(result.data, result.orientation))


def resized(data: bytes, recipe: TranscodeRecipe, orientation: int = 1) -> Image.Image:
    """Pillow's result of the recipe, at full precision."""
    image = upright(data, orientation)
    framing = recipe.framing(*image.size)
    made = image.resize(framing.size, Image.Resampling[recipe.filter.upper()])
    if recipe.mode == "crop":
        side = min(recipe.size or 0, *made.size)
        x, y = (round((length - side) / 2) for length in made.size)  # as torchvision's CenterCrop
        return made.crop((x, y, x + side, y + side))
    if recipe.mode == "pad":
        side = recipe.size or 0
        padded = Image.new("RGB", (side, side), recipe.pad_color or 0)
        padded.paste(made, ((side - made.width) // 2, (side - made.height) // 2))
        return padded
    return made


def close(found: Pixels, wanted: Image.Image, mean: float = 1.0, most: int = 12) -> bool:
    error = np.abs(found.astype(np.int16) - np.asarray(wanted, np.int16))
    return bool(error.mean() <= mean and error.max() <= most)


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
@pytest.mark.parametrize("mode", MODES)
def test_any_recipe_gives_pillows_pixels(kind: str, mode: str) -> None:
    rng = np.random.default_rng(len(kind))
    for number, (format, (field, *error)) in enumerate([*FORMATS.items()] * 2):
        (width, height), goal = rng.choice((3, 33, 64, 130, 250), 2).tolist(), int(rng.integers(1, 65))
        orientation = int(rng.integers(1, 9)) if kind in KINDS else 1
        data = KINDS[kind](photo(width, height)) if kind in KINDS else save(Image.fromarray(photo(width, height)), kind)
        shape: dict[str, Any] = {
            "size": None if mode == "none" else goal,
            "mode": mode,
            "only_shrink": bool(number & 4),
        }
        filter, colour = FILTERS[(number + len(mode)) % 5], "#727272" if mode == "pad" else None
        recipe = TranscodeRecipe(**shape, format=format, filter=filter, reducing_gap=0, pad_color=colour, **FINE)
        result = kernel.transcode(with_segment(data, 0xE1, exif(orientation)) if orientation > 1 else data, recipe)
        wanted = resized(data, recipe, orientation)
        if format == "webp":
            wanted = upright(save(wanted, "WEBP", quality=100))
        assert result[1:] == (field, *wanted.size, 1, *((height, width) if orientation >= 5 else (width, height)))
        assert close(pixels_of(result), wanted, *error), recipe
        if format in ("jpeg", "png"):
            assert Image.open(BytesIO(result.data)).mode == ("L" if "gray" in kind else "RGB"), "gray stays gray"


@pytest.mark.parametrize(
    ("mode", "size", "only_shrink", "wanted"),
    [
        ("short", 256, False, (341, 256)),  # torchvision: Resize(256) of 500 x 375
        ("long", 256, False, (256, 192)),
        ("exact", 256, False, (256, 256)),
        ("crop", 256, False, (256, 256)),
        ("short", 750, False, (1000, 750)),
        ("short", 750, True, (500, 375)),
        ("crop", 750, True, (375, 375)),
        ("exact", 400, True, (500, 375)),
        ("long", 1, False, (1, 1)),
    ],
)
def test_modes(mode: str, size: int, only_shrink: bool, wanted: tuple[int, int]) -> None:
    recipe = TranscodeRecipe(size, mode, only_shrink)
    x0, y0, x1, y1 = recipe.framing(500, 375).box
    assert (x1 - x0, y1 - y0) == wanted


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_reduced_decoding_shows_the_same_picture(orientation: int) -> None:
    """1201 x 899 is a multiple of no scale: the rounding of DCT scaling must not stretch the image."""
    data = jpeg(photo(1201, 899), quality=95, exif=exif(orientation))
    for size in (64, 128, 200, 300):
        for gap in (0, 1, 2, 3):
            recipe = TranscodeRecipe(size=size, mode="exact", reducing_gap=gap, **FINE)
            found, wanted = pixels_of(kernel.transcode(data, recipe)), resized(data, recipe, orientation)
            assert close(found, wanted, *((1.0, 12) if gap == 0 else (2.5, 80))), (size, gap)
            moved = np.abs(found.astype(int) - np.roll(np.asarray(wanted, int), 1, axis=1)).mean()
            assert np.abs(found - np.asarray(wanted, int)).mean() < moved / 2


@pytest.mark.parametrize(("subsampling", "factors"), [("420", 0x22), ("422", 0x21), ("444", 0x11)])
def test_options_of_the_encoder(subsampling: str, factors: int) -> None:
    data = KINDS["444"](photo(300, 200))
    result = kernel.transcode(data, TranscodeRecipe(subsampling=subsampling, quality=77, restart=5))
    parts = dict(Parts.of(result.data).header)
    assert 0xC0 in parts, "baseline, which every decoder reads"
    assert parts[0xC0][7] == factors
    assert parts.get(0xDD) == (struct.pack(">H", 5))
    tables = Image.open(BytesIO(result.data)).quantization
    assert tables == Image.open(BytesIO(jpeg(photo(300, 200), quality=77))).quantization
    assert 0xDD not in dict(Parts.of(kernel.transcode(data, TranscodeRecipe()).data).header)
    fine, poor = (kernel.transcode(data, TranscodeRecipe(format="webp", quality=quality)).data for quality in (95, 20))
    assert len(poor) < len(fine) / 2


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP"])
def test_keep_keeps_bytes_where_no_pixel_changes(name: str) -> None:
    data = save(Image.fromarray(photo(120, 90)), name, exif=exif(6))
    field = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}[name]
    for options in ({}, {"size": 90, "mode": "short"}, {"size": 500, "mode": "long", "only_shrink": True}):
        assert kernel.transcode(data, TranscodeRecipe(format="keep", **options)) == (data, field, 90, 120, 6, 90, 120)
    for options in ({"size": 90, "mode": "crop"}, {"size": 60, "mode": "short"}):
        result = kernel.transcode(data, TranscodeRecipe(format="keep", **options))
        assert (result.field, result.orientation) == ("jpg", 1)
        assert result.data != data


@pytest.mark.parametrize("name", ["BMP", "TIFF", "PPM"])
def test_keep_stores_other_formats_as_png(name: str) -> None:
    data = save(Image.fromarray(photo(120, 90)), name)
    result = kernel.transcode(data, TranscodeRecipe(format="keep", **FINE))
    assert result[1:] == ("png", 120, 90, 1, 120, 90)
    assert np.array_equal(pixels_of(result), photo(120, 90))
    smaller = kernel.transcode(data, TranscodeRecipe(format="keep", size=60, mode="short", **FINE))
    assert smaller[1:] == ("jpg", 80, 60, 1, 120, 90)  # these pixels were never in a file


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "trailing bytes"])
@pytest.mark.parametrize("share", [0.4, 0.9])
def test_truncated_jpegs_are_packed_as_far_as_they_go(kind: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = KINDS[kind](photo(250, 190))
    data = whole[: int(share * len(whole))]
    with pytest.raises(DecodeError, match="truncated"):
        kernel.transcode(data, TranscodeRecipe(format="png"))
    expected = Image.fromarray(as_far_as_it_goes(data, monkeypatch))
    most = 12 if kind == "progressive" else 1  # missing scans are smoothed, in versions of libjpeg-turbo differently
    result = kernel.transcode(data, TranscodeRecipe(format="png", truncated="accept"))
    assert close(pixels_of(result), expected, most=most)
    small = TranscodeRecipe(size=64, mode="crop", format="png", reducing_gap=0, truncated="accept")
    framing = small.framing(*expected.size)
    cut = expected.resize(framing.size, Image.Resampling.BILINEAR).crop(framing.box)
    assert close(pixels_of(kernel.transcode(data, small)), cut, most=most)
    kept = kernel.transcode(data, TranscodeRecipe(format="keep", truncated="accept", **FINE))
    assert close(pixels_of(kept), expected, most=most + 12)  # encoded
    assert kernel.decode(kept.data).shape == (190, 250, 3)  # needs no option to load it
    for recipe in (TranscodeRecipe(format="keep", truncated="accept"), TranscodeRecipe(truncated="accept")):
        assert kernel.transcode(whole, recipe).data == kernel.transcode(whole, replace(recipe, truncated=None)).data
        with pytest.raises(DecodeError):
            kernel.transcode(save(Image.fromarray(photo(120, 90)), "PNG")[:3000], recipe)


def test_a_kept_jpeg_without_its_end_is_completed() -> None:
    whole = KINDS["420"](photo(120, 90))
    for check in (None, "end"):
        recipe = TranscodeRecipe(format="keep", truncated="accept", check=check)
        assert native.transcode(whole[:-2], recipe).data == whole


def test_results_too_large_are_refused_before_they_are_made() -> None:
    strip = jpeg(photo(20_000, 1))
    long = "longer than the 65,500 pixels a side that jpeg takes"
    for options, words in (
        ({"size": 40}, long),
        ({"size": 40, "format": "keep"}, long),
        ({"size": 3, "max_pixels": 100_000}, "limit on pixels, --max-pixels is 100000"),
        ({"size": 20_000, "mode": "exact", "format": "rgb", "max_pixels": 1 << 30}, "raw pixels that a loader reads"),
        ({"size": 1, "format": "webp"}, "longer than the 16,383 pixels a side that webp takes"),
        ({"size": 300, "mode": "pad", "max_pixels": 89_999}, "limit"),
    ):
        with pytest.raises(DecodeError, match=words):
            kernel.transcode(strip, TranscodeRecipe(**{"mode": "short", **options}))
    with pytest.raises(DecodeError, match="limit"):  # on 2,620 million pixels across: once an OverflowError
        kernel.transcode(jpeg(photo(65_500, 1)), TranscodeRecipe(size=40_000, mode="crop"))
    result = kernel.transcode(strip, TranscodeRecipe(size=40, mode="crop"))  # only 40 x 40 pixels are stored
    assert (result.width, result.height) == (40, 40)
    assert kernel.transcode(strip, TranscodeRecipe(size=3, mode="short")).width == 60_000 <= MAX_SIDE


def test_kept_files_are_decoded_or_only_their_ends_are_checked() -> None:
    whole = KINDS["420"](photo(300, 200))
    middle = len(whole) // 2
    damaged = whole[:middle] + b"\xff\xd8\xff\xd7" * 8 + whole[middle:]
    quick = TranscodeRecipe(format="keep", check="end")
    assert kernel.transcode(damaged, quick).data == damaged
    for data, recipe in ((damaged, TranscodeRecipe(format="keep")), (whole[:-2], quick), (b"no image", quick)):
        with pytest.raises(DecodeError):
            kernel.transcode(data, recipe)


def test_noise_that_compresses_badly() -> None:
    """The result is larger than the pixels: an encoder must not guess the size of its buffer."""
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
    result = kernel.transcode(jpeg(noise, quality=100, subsampling="4:4:4"), TranscodeRecipe(**FINE))
    assert len(result.data) > 300 * 300 * 2
    assert np.abs(pixels_of(result) - noise.astype(int)).mean() < 3


@pytest.mark.parametrize("buffer", [bytearray, memoryview])
def test_buffers_of_any_type(buffer: Any) -> None:
    for data in (KINDS["420"](photo(60, 40)), save(Image.fromarray(photo(60, 40)), "PNG")):
        assert kernel.read_header(buffer(data)) == kernel.read_header(data)
        for recipe in (TranscodeRecipe(), TranscodeRecipe(format="keep")):
            made = kernel.transcode(buffer(data), recipe)
            assert made == kernel.transcode(data, recipe)
            assert isinstance(made.data, bytes)


@pytest.mark.parametrize("subsampling", ["420", "422", "444"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_jpeg_of_what_pillow_decodes_has_pillows_coefficients(mode: str, subsampling: str) -> None:
    for size in ((1, 1), (33, 17), (200, 150)):
        image = Image.fromarray(photo(*size)).convert(mode)
        ours = kernel.transcode(save(image, "BMP"), TranscodeRecipe(quality=80, subsampling=subsampling)).data
        theirs = save(image, "JPEG", quality=80, subsampling=":".join(subsampling))
        np.testing.assert_array_equal(native.decode(ours), native.decode(theirs))


@pytest.mark.parametrize("length", [1, 100, 65_519, 65_520, 200_000])
def test_readers_find_an_inserted_profile(length: int) -> None:
    profile, plain = np.random.default_rng(length).bytes(length), jpeg(photo(20, 20))
    data = markers.with_profile(plain, profile)
    assert Image.open(BytesIO(data)).info["icc_profile"] == markers.profile(data) == profile
    np.testing.assert_array_equal(native.decode(data), native.decode(plain))


def test_headers_with_the_interface_of_libjpeg_8(tmp_path: Path) -> None:
    """Ubuntu's: some names differ, one error is missing."""
    compiler = shutil.which("cc")
    found = next(iter(sorted(Path("/usr/include").rglob("jconfig.h"))), None)
    if compiler is None or found is None:
        pytest.skip("no compiler, or no headers of libjpeg-turbo")
    (tmp_path / "jconfig.h").write_text(re.sub(r"(JPEG_LIB_VERSION\s+)\d+", r"\g<1>80", found.read_text()))
    for name in ("jpeglib.h", "jmorecfg.h", "jerror.h"):
        shutil.copy(f"/usr/include/{name}", tmp_path)
    for source in ("jpeg.c", "encode.c"):
        place = ROOT / "iofast" / "kernel" / "src" / source
        command = [compiler, "-std=gnu11", "-fsyntax-only", f"-I{tmp_path}", place]
        subprocess.run(command, check=True)
