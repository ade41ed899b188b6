"""Packing stores what a viewer shows: profiles are converted to sRGB, transparency gets a background."""

import io
from itertools import product
from typing import Any

import numpy as np
import pytest
from kernel_images import exif, jpeg, photo, save
from PIL import Image, ImageCms, PngImagePlugin

import iofast.kernel
from iofast import kernel
from iofast.errors import DecodeError, OptionError
from iofast.kernel import colour, native, recode
from iofast.kernel.contract import TranscodeRecipe, levels_of
from iofast.record import RAW_FIELDS
from tools.odd_images.profiles import SRGB, WIDE, cmyk_profile, gray_profile, rgb_profile
from tools.odd_images.scene import over, ramp, scene

MIXED = rgb_profile(SRGB[[2, 0, 1]])
SHOWN = scene()
STORED = np.ascontiguousarray(SHOWN[..., [2, 0, 1]])
CLEAR = np.dstack([SHOWN, ramp()])
FORMATS, ICC = ("jpeg", "png", "webp", "rgb"), (None, "drop", "keep")  # raw pixels have no profile to keep


def pixels(result: Any) -> np.ndarray[Any, Any]:
    if result.field in RAW_FIELDS:
        return np.frombuffer(result.data, np.uint8).reshape(result.height, result.width, 3)
    return np.asarray(Image.open(io.BytesIO(result.data)).convert("RGB"))


def off(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    assert found.shape == wanted.shape
    return float(np.abs(found.astype(int) - wanted).mean())


@pytest.mark.parametrize("format", FORMATS)
def test_profiles(format: str) -> None:
    lossless = save(Image.fromarray(STORED), "PNG", icc_profile=MIXED)
    for data in (jpeg(STORED, quality=95, subsampling="4:4:4", icc_profile=MIXED), lossless):
        for icc, wanted in ((None, SHOWN), ("srgb", SHOWN), ("drop", STORED), ("keep", STORED)):
            if (format, icc) == ("rgb", "keep"):
                continue
            result = kernel.transcode(data, TranscodeRecipe(format=format, icc=icc, quality=95, subsampling="444"))
            assert off(pixels(result), wanted) < 4
            if format != "rgb":
                found = Image.open(io.BytesIO(result.data)).info.get("icc_profile")
                assert found == (MIXED if icc == "keep" else None)


def laden(kind: str) -> bytes:
    """An image with all the metadata that Pillow writes."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    image = Image.fromarray(SHOWN)
    if kind == "CMYK":
        return save(image.convert("CMYK"), "TIFF", icc_profile=cmyk_profile())
    if kind == "LAB":
        image = Image.frombytes("LAB", image.size, np.full((48, 64, 3), (150, 20, 60), np.uint8).tobytes())
        return save(image, "TIFF", icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes())
    if kind == "YCbCr":
        return save(image.convert("YCbCr"), "TIFF", icc_profile=profile)
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "made at noon")
    more = {"pnginfo": text} if kind == "PNG" else {"xmp": b"<x/>"}
    return save(image, kind, icc_profile=rgb_profile(WIDE), exif=exif(1), comment=b"noon", dpi=(72, 72), **more)


@pytest.mark.parametrize("kind", ["LAB", "CMYK", "YCbCr", "JPEG", "PNG", "WEBP", "GIF", "TIFF"])
@pytest.mark.parametrize("icc", [None, "keep", "drop"])
def test_encoded_images_contain_pixels_and_nothing_else(kind: str, icc: str | None) -> None:
    """A profile by LittleCMS contains the time of its creation, which would make each run differ."""
    data = laden(kind)
    kept = icc == "keep" and kind in ("JPEG", "PNG", "WEBP", "TIFF", "YCbCr")
    for format, usual in (
        ("png", set()),
        ("jpeg", {"jfif", "jfif_version", "jfif_unit", "jfif_density"}),
        ("webp", {"loop", "background", "timestamp", "duration"}),
    ):
        made = kernel.transcode(data, TranscodeRecipe(size=32, mode="short", format=format, icc=icc)).data
        image = Image.open(io.BytesIO(made))
        assert (set(image.info) - usual, dict(image.getexif())) == ({"icc_profile"} if kept else set(), {})


def test_a_cmyk_profile_is_not_passed_on_with_rgb_pixels() -> None:
    """The pixels must be converted, so they are converted to sRGB."""
    ink = Image.fromarray(255 - np.dstack([SHOWN[..., [1, 0, 2]], np.full((48, 64), 255, np.uint8)]), "CMYK")
    for name in ("TIFF", "JPEG"):
        data = save(ink, name, icc_profile=cmyk_profile())
        recipes = [TranscodeRecipe(format="png", icc=icc) for icc in ("keep", "srgb", "drop")]
        keep, srgb, drop = (kernel.transcode(data, recipe).data for recipe in recipes)
        assert keep == srgb != drop


def test_a_conversion_is_pillows() -> None:
    profile = rgb_profile(WIDE)
    image = Image.fromarray(photo(90, 60))
    opened = ImageCms.getOpenProfile(io.BytesIO(profile))
    wanted = ImageCms.profileToProfile(image, opened, ImageCms.createProfile("sRGB"))
    made = iofast.kernel.transcode(save(image, "PNG", icc_profile=profile), TranscodeRecipe(format="rgb"))
    np.testing.assert_array_equal(pixels(made), np.asarray(wanted))


@pytest.mark.parametrize("mode", ["none", "short", "exact", "crop", "pad"])
@pytest.mark.parametrize(("format", "icc"), [each for each in product(FORMATS, ICC) if each != ("rgb", "keep")])
def test_jpegs_look_as_if_pillow_decoded_them(format: str, mode: str, icc: str | None) -> None:
    """The C code decodes and resamples, LittleCMS converts, Pillow encodes: as if Pillow decoded."""
    size, pad_color = None if mode == "none" else 40, "#ff8000" if mode == "pad" else None
    recipe = TranscodeRecipe(size, mode, format=format, quality=95, pad_color=pad_color, icc=icc)
    for data in (
        jpeg(photo(190, 160), quality=95, icc_profile=rgb_profile(WIDE), exif=exif(6)),
        jpeg(photo(61, 90), "L", quality=95, icc_profile=gray_profile()),
        jpeg(photo(90, 60), quality=95),
    ):
        ours, pillows = native.transcode(data, recipe), recode.transcode(data, recipe)
        assert ours[1:] == pillows[1:]
        assert off(pixels(ours), pixels(pillows)) < (1 if format in ("png", "rgb") else 3)  # both are encoded with loss
        if ours.field not in RAW_FIELDS:
            images = [Image.open(io.BytesIO(made.data)) for made in (ours, pillows)]
            assert len({(image.mode, image.info.get("icc_profile")) for image in images}) == 1


@pytest.mark.parametrize("mode", ["none", "pad", "crop"])
@pytest.mark.parametrize(
    "options",
    [{}, {"format": "png"}, {"format": "webp", "icc": "keep"}, {"format": "rgb", "icc": "drop"}]
    + [{"icc": "drop", **more} for more in ({}, {"subsampling": "444"}, {"filter": "lanczos"})],
)
def test_damage_is_found_with_every_format(mode: str, options: dict[str, Any]) -> None:
    """Pillow ignores what libjpeg only warns of and would store wrong pixels, also where they are cropped."""
    options = {"size": None if mode == "none" else 32, "mode": mode, **options}
    data = jpeg(photo(120, 1200), icc_profile=MIXED)
    middle = len(data) - len(data) // 4
    for damaged in (data[:middle] + b"\xff\xd9", data[:middle] + b"\xff\xd3" + data[middle + 2 :]):
        with pytest.raises(DecodeError, match=r"truncated|corrupt"):
            native.transcode(damaged, TranscodeRecipe(**options))


@pytest.mark.parametrize(
    ("mode", "profile"),
    [
        ("RGB", ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()),
        ("RGB", rgb_profile(SRGB)),
        ("RGB", b"rubbish" * 50),
        ("RGB", bytes(colour.MAX_PROFILE + 1)),
        ("CMYK", rgb_profile(WIDE)),
        ("L", rgb_profile(WIDE)),
    ],
)
def test_profiles_of_srgb_of_other_images_and_of_nothing_are_ignored(mode: str, profile: bytes) -> None:
    recipe = TranscodeRecipe(size=20, mode="short", format="png")
    made = [kernel.transcode(jpeg(photo(60, 40), mode, icc_profile=each), recipe).data for each in (profile, b"")]
    assert made[0] == made[1]


def test_without_littlecms_a_profile_is_an_error_and_not_wrong_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colour.features, "check", lambda name: False)
    colour.transform.cache_clear()
    data = save(Image.fromarray(STORED), "PNG", icc_profile=MIXED)
    with pytest.raises(DecodeError, match="LittleCMS"):
        kernel.transcode(data, TranscodeRecipe())
    assert kernel.transcode(data, TranscodeRecipe(icc="drop")).width == 64
    colour.transform.cache_clear()


def test_backgrounds() -> None:
    data = save(Image.fromarray(CLEAR), "PNG")
    shown = {None: over(SHOWN, ramp()), "#102030": over(SHOWN, ramp(), (16, 32, 48)), "drop": SHOWN}
    for background, wanted in shown.items():
        assert off(pixels(kernel.transcode(data, TranscodeRecipe(format="png", background=background))), wanted) <= 1
    gray = save(Image.fromarray(CLEAR).convert("LA"), "PNG")
    for background, mode in (("white", "L"), ("10,20,30", "RGB")):  # gray stays gray on gray
        result = kernel.transcode(gray, TranscodeRecipe(format="png", background=background))
        assert Image.open(io.BytesIO(result.data)).mode == mode


def test_kept_files_change_only_on_request() -> None:
    clear, plain = (save(Image.fromarray(each), "PNG") for each in (CLEAR, SHOWN))
    mixed = jpeg(STORED, icc_profile=MIXED)
    for data in (clear, plain, mixed):
        for options in ({}, {"icc": "keep"}, {"icc": "drop"}, {"background": "drop"}):
            assert kernel.transcode(data, TranscodeRecipe(format="keep", **options)).data == data
    square = jpeg(scene(64, 64))
    assert kernel.transcode(square, TranscodeRecipe(size=64, mode="pad", format="keep")).data == square
    asked = TranscodeRecipe(format="keep", icc="srgb", background="white")
    assert kernel.transcode(plain, asked).data == plain
    assert off(pixels(kernel.transcode(clear, asked)), over(SHOWN, ramp())) < 8
    assert off(pixels(kernel.transcode(mixed, asked)), SHOWN) < 8
    half = kernel.transcode(mixed, TranscodeRecipe(format="keep", size=24, mode="short"))  # cannot be kept
    assert off(pixels(half), np.asarray(Image.fromarray(SHOWN).resize((32, 24), Image.Resampling.BILINEAR))) < 8


def test_colours_are_checked() -> None:
    assert levels_of("1,2,3") == (1, 2, 3)
    assert levels_of("#0a0B0c") == (10, 11, 12)
    for wrong in ("", "256,0,0", "-1,0,0", "#12345", "pink", "1,2"):
        with pytest.raises(OptionError, match="a colour must be"):
            levels_of(wrong)
    padded = {"size": 9, "mode": "pad"}
    colours = ({**padded, "pad_color": "red"}, {**padded, "pad_color": "drop"}, {"background": "see-through"})
    for options in (*colours, {"icc": "lab"}, {"icc": "keep", "format": "rgb"}):
        with pytest.raises(OptionError):
            TranscodeRecipe(**options)


def test_heic_where_its_plugin_is_installed() -> None:
    heif = pytest.importorskip("pillow_heif")
    stream = io.BytesIO()
    heif.from_pillow(Image.fromarray(SHOWN).transpose(Image.Transpose.ROTATE_90)).save(stream, exif=exif(6))
    result = kernel.transcode(stream.getvalue(), TranscodeRecipe(format="rgb"))
    assert off(pixels(result), SHOWN) < 5
