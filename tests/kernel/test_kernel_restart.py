"""Restart markers and Huffman tables change the coding of coefficients, never a coefficient."""

import re
from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jpeg_damage import Parts
from kernel_images import KINDS, Pixels, exif, jpeg, photo, save, segment
from PIL import Image, ImageCms

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel import native
from iofast.kernel.contract import TranscodeRecipe, mcus_per_row, restart_interval

NOISE = np.random.default_rng(0).integers(0, 2, (64, 96, 3), np.uint8) * 255  # the largest possible coefficients


def same(one: bytes, other: bytes) -> bool:
    """Whether two JPEGs hold the same image: its coefficients, read and coded again by libjpeg, and its pixels."""
    plain = [native.rewrite(data, 0, native.STANDARD) for data in (one, other)]
    return plain[0] == plain[1] and np.array_equal(pixels(one), pixels(other))


def segments(data: bytes, *markers: int) -> list[tuple[int, bytes]]:
    """The segments before the scan that have one of these markers, in order."""
    return [(marker, body) for marker, body in Parts.of(data).header if marker in markers]


def extras(data: bytes) -> list[tuple[int, bytes]]:
    """The APPn and COM segments, in order."""
    return segments(data, *range(0xE0, 0xF0), 0xFE)


def pixels(data: bytes) -> Pixels:
    return np.asarray(Image.open(BytesIO(data)))


@given(mcus=st.integers(1, 8192))
def test_the_interval_is_the_divisor_nearest_to_four(mcus: int) -> None:
    divisors = [n for n in range(1, mcus + 1) if mcus % n == 0]
    assert restart_interval(mcus) == sorted(divisors, key=lambda n: (abs(n - 4), n))[0]


@given(
    size=st.tuples(st.integers(1, 200), st.integers(1, 80)),
    subsampling=st.sampled_from(["420", "422", "444"]),
    mode=st.sampled_from(["RGB", "L"]),
    name=st.sampled_from(["JPEG", "PNG"]),
)
def test_auto_writes_that_interval(size: tuple[int, int], subsampling: str, mode: str, name: str) -> None:
    data = save(Image.fromarray(photo(*size)).convert(mode), name)  # a JPEG goes through C, a PNG through Pillow
    made = kernel.transcode(data, TranscodeRecipe(restart="auto", subsampling=subsampling)).data
    header, side = kernel.read_header(made), 16 if mode == "RGB" and subsampling == "420" else 8
    assert header.mcus == mcus_per_row(size[0], 1 if mode == "L" else 3, subsampling)
    assert header.restart == restart_interval(header.mcus)
    assert len(re.findall(rb"\xff[\xd0-\xd7]", made)) == header.mcus * -(-size[1] // side) // header.restart - 1
    assert same(made, kernel.transcode(data, TranscodeRecipe(restart=0, subsampling=subsampling)).data)


def test_values_of_restart() -> None:
    data = KINDS["420"](photo(160, 60))
    for restart, written in ((0, 0), (1, 1), (7, 7), (65_535, 65_535), (None, 5)):
        assert kernel.read_header(kernel.transcode(data, TranscodeRecipe(restart=restart)).data).restart == written


@pytest.mark.parametrize("quality", [1, 30, 59, 60, 82, 83, 93, 94, 100])
def test_every_symbol_has_a_code(quality: int) -> None:
    """Noise of full contrast has coefficients that no photograph has."""
    plain = native.transcode(jpeg(NOISE, quality=100, subsampling="4:4:4"), TranscodeRecipe(quality=quality)).data
    assert same(native.rewrite(plain, 0, native.STANDARD), plain)
    tables = b"".join(body for _, body in segments(plain, 0xC4))
    while tables:
        counts = tables[1:17]
        assert sum(counts) == (162 if tables[0] & 0x10 else 12)
        assert sum(count << 16 - bits for bits, count in enumerate(counts, 1)) < 1 << 16, "prefix-free, none all ones"
        tables = tables[17 + sum(counts) :]


@pytest.mark.parametrize("source", ["JPEG", "PNG"])
def test_all_images_of_a_quality_have_the_same_tables(source: str) -> None:
    """A decoder can reuse its lookup tables."""
    images = [save(Image.fromarray(photo(100 + 30 * seed, 60, seed)), source) for seed in range(3)]
    made = [native.transcode(data, TranscodeRecipe(restart="auto")).data for data in images]
    assert segments(made[0], 0xC4) == segments(made[1], 0xC4) == segments(made[2], 0xC4)


@pytest.mark.parametrize(("quality", "cost"), [(50, 1.06), (90, 1.035), (97, 1.015)])
def test_markers_cost_little(quality: int, cost: float) -> None:
    """The tables are not made for noise in 170 MCUs; `bench_pack` measures photographs."""
    data, recipe = KINDS["444"](photo(512, 384)), TranscodeRecipe(256, "short", quality=quality, restart="auto")
    marked = native.transcode(data, recipe).data
    assert len(marked) < len(native.rewrite(marked, recipe.interval(22), native.STANDARD))
    assert len(marked) <= cost * len(native.rewrite(marked, 0, native.STANDARD))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("progressive")])
def test_rewriting_keeps_every_coefficient(kind: str) -> None:
    data = KINDS[kind](photo(90, 60))
    for restart, coding in ((0, native.OPTIMAL), (1, native.STANDARD), (5, 90), (3, native.OPTIMAL)):
        made = native.rewrite(data, restart, coding)
        assert same(made, data)
        assert extras(made) == extras(data)
        assert native.read_header(made).restart == restart


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_progressive_jpeg_becomes_the_baseline_one(mode: str) -> None:
    """Pillow writes the same coefficients both ways."""
    data = jpeg(photo(170, 90), mode, progressive=True)
    recipe = TranscodeRecipe(format="keep", restart="auto")
    made = native.transcode(data, recipe).data
    header = native.read_header(made)
    assert native.read_header(data).progressive
    assert not header.progressive
    assert header.restart == restart_interval(header.mcus)
    assert same(made, jpeg(photo(170, 90), mode))
    assert native.transcode(made, recipe).data == made
    for restart in (None, 0):  # a file is rewritten only on request
        assert native.transcode(data, TranscodeRecipe(format="keep", restart=restart)).data == data


def test_kept_jpegs_keep_their_metadata() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes() + bytes(100_000)  # of two segments
    options: dict[str, object] = {"exif": exif(6), "icc_profile": profile, "comment": b"a comment", "dpi": (72, 72)}
    for mode in ("RGB", "CMYK"):
        for progressive in (False, True):
            data = jpeg(photo(170, 90), mode, progressive=progressive, **options)
            result = native.transcode(data, TranscodeRecipe(format="keep", restart="auto"))
            assert result[1:] == ("jpg", 90, 170, 6, 90, 170)
            assert len(extras(data)) >= 5
            assert extras(result.data) == extras(data)
            assert np.array_equal(pixels(result.data), pixels(data))


def in_three_scans(sampling: int) -> bytes:
    """64 x 64 pixels in colour: three grayscale JPEGs as scans of one, luma with `sampling` blocks a side."""
    parts = [jpeg(photo(side, side, seed), "L") for seed, side in enumerate((64, 64 // sampling, 64 // sampling))]
    frame = bytes([0xFF, 0xC0, 0, 17, 8, 0, 64, 0, 64, 3, 1, 17 * sampling, 0, 2, 0x11, 0, 3, 0x11, 0])
    before, codes = (parts[0][: segment(parts[0], 0xC0)], parts[0][segment(parts[0], 0xC4) : segment(parts[0], 0xDA)])
    data = before + frame + codes
    for number, part in enumerate(parts, 1):
        head = bytes([0xFF, 0xDA, 0, 8, 1, number, 0, 0, 63, 0])
        data += head + part[segment(part, 0xDA) + len(head) : -2]
    return data + b"\xff\xd9"


def without_last_scan(mode: str) -> bytes:
    whole = jpeg(photo(90, 60), mode, progressive=True)
    assert native.rewrite(whole, 1) is not None
    return whole[: whole.rindex(b"\xff\xda")] + b"\xff\xd9"


def out_of_range() -> bytes:
    """DCs of 2047 and 4094, which no image of 8 bits has, and which libjpeg's encoder would change."""
    step = bytes([0xFF, 0xDB, 0, 67, 0]) + bytes([1] * 64)
    frame = bytes([0xFF, 0xC0, 0, 11, 8, 0, 8, 0, 16, 1, 1, 0x11, 0])
    one_code = [bytes([0xFF, 0xC4, 0, 20, kind, 1, *[0] * 15, symbol]) for kind, symbol in ((0x00, 11), (0x10, 0))]
    scan = bytes([0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 63, 0]) + b"\x7f\xf3\xff\x00\xbf"  # twice 0, eleven ones, 0
    return b"\xff\xd8" + step + frame + b"".join(one_code) + scan + b"\xff\xd9"


UNWRITABLE: dict[str, Callable[[], bytes]] = {
    "18 blocks per MCU": lambda: in_three_scans(4),  # one scan may have ten, three scans can hold them
    "missing scans": lambda: without_last_scan("RGB"),  # decoders smooth only progressive files
    "missing scans, gray": lambda: without_last_scan("L"),
    "coefficients without a code": out_of_range,
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_files_that_cannot_be_rewritten_are_kept_byte_by_byte(name: str) -> None:
    data = UNWRITABLE[name]()
    assert native.decode(data).any()
    for coding in (native.OPTIMAL, native.STANDARD, 90):
        assert native.rewrite(data, 1, coding) is None
    assert native.transcode(data, TranscodeRecipe(format="keep", restart="auto")).data == data


def test_scans_of_one_component_each_are_joined() -> None:
    """The layout of `in_three_scans` with fewer blocks fits, and gets markers."""
    data = in_three_scans(2)
    made = native.transcode(data, TranscodeRecipe(format="keep", restart="auto")).data
    assert native.read_header(made).restart == 4
    assert np.array_equal(pixels(made), pixels(data))


@pytest.mark.parametrize("kind", ["420", "progressive", "gray"])
def test_damage_is_found_with_and_without_rewriting(kind: str) -> None:
    whole = KINDS[kind](photo(120, 90))
    scan = segment(whole, 0xDA)
    broken = whole[: scan + 40] + b"\xff\xd3" * 8 + whole[scan + 56 :]
    for data in (whole[: len(whole) // 2], whole[:-2], whole[: scan + 3], b"", b"text", broken):
        errors = set()
        for restart in (None, "auto"):
            with pytest.raises(DecodeError) as caught:
                native.transcode(data, TranscodeRecipe(format="keep", restart=restart))
            errors.add(str(caught.value))
        assert len(errors) == 1
        if data[:3] == b"\xff\xd8\xff":
            with pytest.raises(DecodeError):
                native.rewrite(data, 1)


def test_limits() -> None:
    data = KINDS["420"](photo(60, 40))
    with pytest.raises(DecodeError, match="larger than the limit"):
        native.rewrite(data, 1, max_pixels=60 * 40 - 1)
    assert native.rewrite(data, 1, max_pixels=60 * 40)
    for restart, coding in ((-1, 0), (65_536, 0), (0, 101), (0, -2)):
        with pytest.raises(ValueError, match="rewrite: restart 0-65535, tables -1 to 100"):
            native.rewrite(data, restart, coding)


def test_an_image_does_not_affect_the_next() -> None:
    """libjpeg keeps tables and restart intervals in its objects; each image must set all of them."""
    data = save(Image.fromarray(photo(120, 90)), "JPEG", exif=exif(3), comment=b"secret")
    recipe = TranscodeRecipe(restart="auto")
    first, kept = native.transcode(data, recipe).data, native.rewrite(data, 0)
    gray = KINDS["gray"](NOISE)
    for coding in (native.OPTIMAL, native.STANDARD, 30, 99):
        native.rewrite(gray, 3, coding)
        assert native.transcode(data, recipe).data == first
        assert native.rewrite(data, 0) == kept
    assert not extras(first)[1:]
    assert b"secret" in kept
