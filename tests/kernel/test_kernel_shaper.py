"""Profiles with curves and a matrix, converted by the C code: LittleCMS's colours, whatever the profile."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_images import KINDS, Pixels, exif, jpeg, native, needs_native, photo, worst
from PIL import Image, ImageCms

from iofast.kernel import colour, shaper, twin
from iofast.kernel.contract import TranscodeRecipe
from tools.odd_images.profiles import SRGB, WHITE, WIDE, cmyk_profile, gray_profile, profile, rgb_profile

ADOBE = np.array(((0.6097, 0.3111, 0.0195), (0.2053, 0.6257, 0.0609), (0.1492, 0.0632, 0.7446)))
CURVES = {
    "linear": struct.pack(">4sII", b"curv", 0, 0),
    "gamma": struct.pack(">4sIIH", b"curv", 0, 1, 563),
    "two entries": struct.pack(">4sII2H", b"curv", 0, 2, 0, 65535),
    "not from 0 to 1": struct.pack(">4sII4H", b"curv", 0, 4, 3000, 9000, 40000, 60000),
    "falling": struct.pack(">4sII3H", b"curv", 0, 3, 65535, 30000, 0),
}


def parametric(kind: int, *numbers: float) -> bytes:
    fixed = [round(number * 65536) for number in numbers]
    return struct.pack(f">4sIHH{len(fixed)}i", b"para", 0, kind, 0, *fixed)


CURVES |= {
    "para 0": parametric(0, 2.2),
    "para 1": parametric(1, 2.4, 1.055, -0.055),
    "para 2": parametric(2, 2.4, 0.95, -0.05, 0.0),
    "para 3": parametric(3, 2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045),
    "para 4": parametric(4, 2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045, 0.0, 0.0),
    "para 4, black above 0": parametric(4, 2.4, 0.9, 0.05, 0.07, 0.04, 0.02, 0.01),
    "para 0, above 1": parametric(0, -0.5),
    "para 1, without a": parametric(1, 2.4, 0.0, 0.5),
}
# LittleCMS also compensates for a black that is not zero
LEFT = ("not from 0 to 1", "para 4, black above 0", "para 0, above 1", "para 1, without a")


def matrix_profile(primaries: np.ndarray[Any, Any], *curves: bytes) -> bytes:
    """A profile of three primaries and a curve for each."""
    names = ((b"rXYZ", b"rTRC"), (b"gXYZ", b"gTRC"), (b"bXYZ", b"bTRC"))
    tags = {}
    for (name, tone), primary, curve in zip(names, primaries, curves, strict=True):
        tags |= {name: b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(v * 65536) for v in primary)), tone: curve}
    return profile(b"RGB ", b"XYZ ", tags)


def parts(made: bytes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    assert len(made) == shaper.SIZE
    return np.frombuffer(made, np.int32, 3072).reshape(3, 256, 4), np.frombuffer(made, np.uint8, offset=4 * 3072)


def noise(seed: int) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (200, 200, 3), np.uint8)


@pytest.mark.parametrize("primaries", [WIDE, ADOBE, SRGB[[1, 2, 0]]], ids=["P3", "Adobe", "exchanged"])
@pytest.mark.parametrize("curve", CURVES)
def test_colours_are_those_of_littlecms(curve: str, primaries: np.ndarray[Any, Any]) -> None:
    made = matrix_profile(primaries, *[CURVES[curve]] * 3)
    to_rgb: Any = colour.transform(made, "RGB")
    assert to_rgb is not None
    tables = colour.tables(made)
    if tables is None:
        assert curve in LEFT, "only odd curves are left to LittleCMS"
    else:
        pixels = noise(len(curve))
        wanted = np.asarray(to_rgb.apply(Image.fromarray(pixels)))
        assert worst(shaper.convert(*parts(tables), pixels), wanted) <= 1


def test_a_curve_for_each_channel() -> None:
    made = matrix_profile(ADOBE, CURVES["gamma"], CURVES["para 3"], CURVES["two entries"])
    tables, to_rgb = colour.tables(made), colour.transform(made, "RGB")
    assert tables is not None
    wanted = np.asarray(to_rgb.apply(Image.fromarray(noise(1))))  # type: ignore[union-attr, attr-defined]
    assert worst(shaper.convert(*parts(tables), noise(1)), wanted) <= 1


@pytest.mark.parametrize(
    "other",
    [
        gray_profile(),
        cmyk_profile(),
        ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(),
        rgb_profile(SRGB),
        b"rubbish" * 50,
        b"",
    ],
)
def test_no_tables_for_other_profiles(other: bytes) -> None:
    assert colour.tables(other) is None


def test_tables_that_littlecms_contradicts_are_refused() -> None:
    to_rgb = colour.transform(rgb_profile(ADOBE), "RGB")
    assert shaper.of(rgb_profile(ADOBE), to_rgb) is not None
    assert shaper.of(rgb_profile(WIDE), to_rgb) is None
    with_lookup = profile(b"RGB ", b"XYZ ", {b"A2B0": b"mft1" + bytes(60)})
    assert shaper.of(with_lookup, to_rgb) is None


_SEEDS = [matrix_profile(ADOBE, curve, curve, curve) for curve in CURVES.values()]


@settings(max_examples=150)
@given(
    seed=st.sampled_from(_SEEDS),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=4)), max_size=6),
    length=st.floats(0, 1),
)
def test_damaged_profiles_give_littlecms_colours_or_no_tables(
    seed: bytes, changes: list[tuple[float, bytes]], length: float
) -> None:
    changed = bytearray(seed)
    for place, value in changes:
        at = int(place * len(changed))
        changed[at : at + len(value)] = value
    damaged = bytes(changed[: max(128, int(len(changed) * length))] if length < 0.9 else changed)
    to_rgb: Any = colour.transform(damaged, "RGB")
    tables = colour.tables(damaged)
    if tables is not None:
        assert worst(shaper.convert(*parts(tables), noise(0)), np.asarray(to_rgb.apply(Image.fromarray(noise(0))))) <= 2
    else:  # LittleCMS reads damage in its own way
        assert to_rgb is None or shaper.of(damaged, to_rgb) is None


def test_curves_of_any_number_are_refused_or_finite() -> None:
    to_rgb = colour.transform(rgb_profile(ADOBE), "RGB")
    for numbers in ((32767.0,) * 7, (-32768.0,) * 7, (0.0,) * 7, (-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)):
        for kind, count in enumerate((1, 3, 4, 5, 7)):
            made = matrix_profile(ADOBE, *[parametric(kind, *[max(n, -32768) for n in numbers[:count]])] * 3)
            assert shaper.of(made, to_rgb) is None
    for kind in (5, 65535):
        assert shaper.of(matrix_profile(ADOBE, *[parametric(kind, 2.2)] * 3), to_rgb) is None
    endless = struct.pack(">4sIIH", b"curv", 0, 0xFFFFFFFF, 9)
    assert shaper.of(matrix_profile(ADOBE, endless, endless, endless), to_rgb) is None
    huge = matrix_profile(np.full((3, 3), 32767.0), *[CURVES["linear"]] * 3)
    assert shaper.of(huge, to_rgb) is None
    assert WHITE.sum() < 3, "the profile's white is that of the connection space"


@needs_native
@pytest.mark.parametrize("format", ["rgb", "png", "jpeg", "yuv420"])
@pytest.mark.parametrize("filter", ["bilinear", "lanczos"])
def test_the_c_code_converts_as_the_tables_say(format: str, filter: str) -> None:
    """All its formats, from pixels that are the same without the profile."""
    made = rgb_profile(WIDE)
    tables = colour.tables(made)
    assert tables is not None
    for kind in ("420", "444", "progressive", "restart rows"):
        data = KINDS[kind](photo(190, 130))
        tagged = Image.open(io.BytesIO(data))
        assert tagged.size == (190, 130)
        with_profile = data[:2] + _segment(made) + data[2:]
        recipe = TranscodeRecipe(size=60, mode="crop", format=format, quality=95, filter=filter, subsampling="420")
        plain = native.transcode(data, TranscodeRecipe(size=60, mode="crop", format="rgb", filter=filter))
        wanted = shaper.convert(*parts(tables), np.frombuffer(plain.data, np.uint8).reshape(60, 60, 3))
        found = native.transcode(with_profile, recipe)
        if format in ("rgb", "png"):
            pixels = found.data if format == "rgb" else Image.open(io.BytesIO(found.data)).tobytes()
            assert pixels == wanted.tobytes()
        else:
            assert found.data == native.native_codec.encode(Image.fromarray(wanted), format, recipe, b"")


def _segment(icc: bytes) -> bytes:
    return b"\xff\xe2" + struct.pack(">H", len(icc) + 16) + b"ICC_PROFILE\0\1\1" + icc


@needs_native
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["short", "pad", "none"])
def test_the_twin_shows_the_same(mode: str, orientation: int) -> None:
    data = jpeg(photo(150, 110), quality=95, icc_profile=rgb_profile(ADOBE), exif=exif(orientation))
    recipe = TranscodeRecipe(None if mode == "none" else 50, mode, format="rgb", reducing_gap=0)
    ours, pillows = native.transcode(data, recipe), twin.transcode(data, recipe)
    assert ours[1:] == pillows[1:]
    pixels = [np.frombuffer(made.data, np.uint8).astype(int) for made in (ours, pillows)]
    assert np.abs(pixels[0] - pixels[1]).mean() < 0.2  # a level before the conversion is several of a dark colour


@needs_native
def test_gray_images_and_kept_files_are_not_converted() -> None:
    made = rgb_profile(ADOBE)
    gray = jpeg(photo(60, 40), "L", icc_profile=made)
    recipe = TranscodeRecipe(format="rgb")
    assert native.transcode(gray, recipe).data == native.transcode(jpeg(photo(60, 40), "L"), recipe).data
    tagged = jpeg(photo(60, 40), icc_profile=made)
    assert native.transcode(tagged, TranscodeRecipe(format="keep")).data == tagged
    converted = native.transcode(tagged, TranscodeRecipe(format="keep", icc="srgb"))
    assert converted.data != tagged
    assert "icc_profile" not in Image.open(io.BytesIO(converted.data)).info


@needs_native
def test_other_tables_are_an_error() -> None:
    data = jpeg(photo(20, 20))
    with native.borrowed("bilinear", 400) as context:
        for tables in (b"", bytes(shaper.SIZE - 1), bytes(shaper.SIZE + 1)):
            with pytest.raises(ValueError, match="shaper"):
                native._native.transcode(
                    context.handle, data, (0, 0, 20, 20, 20, 20, 0, 0), 20, 20, 1, 90, 2, 2, 0, 1, 1, tables
                )
