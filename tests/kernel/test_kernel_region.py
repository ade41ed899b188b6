"""Regions by our own decoder, by a splice and by libjpeg equal that region of Pillow's full decode."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import View, decode_view, jpeg, photo, upright
from region_images import (
    OWN,
    ROUTES,
    SAMPLING,
    Box,
    Decoder,
    Drawn,
    Recipe,
    check_regions,
    cut,
    draw,
    draw_boxes,
    encode,
    texture,
)

from iofast.kernel.contract import DecodeOptions, Kind

# The instruction set does not affect libjpeg, so two of its routes suffice for many draws.
FEW = (*ROUTES[:3], ("splice", "avx2"), ("libjpeg", "avx2"))


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(routes=FEW)


@pytest.mark.parametrize("seed", range(2))
def test_every_path_equals_the_full_decode(decoder: Decoder, seed: int) -> None:
    """About 2,500 comparisons for each seed."""
    rng = np.random.default_rng(seed)
    for _ in range(50):
        drawn = draw(rng)
        check_regions(decoder, drawn, draw_boxes(rng, drawn))


@pytest.mark.parametrize("filter", ["nearest", "bilinear", "lanczos"])
def test_every_path_packs_the_same(filter: str) -> None:
    """By planes as stored, or by pixels: the decoder makes no difference."""
    rng, decoder = np.random.default_rng(5), Decoder(DecodeOptions(filter=filter), FEW)
    for number in range(60):
        drawn = draw(rng)
        goal = int(rng.integers(1, 60)), int(rng.integers(1, 60))
        kind = Kind(number % 2)
        recipe = Recipe(goal, (1, 1, 2)[number % 5 % 3], number % 8 + 1, "444" if number % 3 else "420", kind)
        size = (drawn.height, drawn.width) if recipe.orientation >= 5 else (drawn.width, drawn.height)
        made = {decoder.transcoded(route, drawn.data, size, recipe) for route in FEW}
        assert len(made) == 1
        assert next(iter(made))[0] == 0
    assert {way for way, count in decoder.contexts["own", "avx2"].counts().ways.items() if count} >= {
        "rows",
        "segments",
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 104))
def test_every_path_equals_the_full_decode_in_many_draws(seed: int) -> None:
    rng, decoder = np.random.default_rng(seed), Decoder()
    for _ in range(5000):
        drawn = draw(rng)
        check_regions(decoder, drawn, draw_boxes(rng, drawn))


_side = st.integers(1, 70)


@given(
    size=st.tuples(_side, _side),
    sampling=st.sampled_from(list(SAMPLING)),
    restart=st.one_of(st.integers(0, 5), st.just(65_535), st.sampled_from([-1, -2])),
    quality=st.integers(5, 100),
    optimize=st.booleans(),
    seed=st.integers(0, 4),
    place=st.tuples(*[st.floats(0, 1)] * 4),
)
def test_any_region_of_any_jpeg(
    size: tuple[int, int],
    sampling: str,
    restart: int,
    quality: int,
    optimize: bool,
    seed: int,
    place: tuple[float, float, float, float],
) -> None:
    """A negative `restart` counts rows."""
    width, height = size
    restart = restart if restart >= 0 else -restart * Drawn(b"", sampling, width, height, 0).across
    drawn = encode(texture(np.random.default_rng(seed), width, height), sampling, restart, quality, optimize)
    w, h = 1 + int(place[0] * (width - 1)), 1 + int(place[1] * (height - 1))
    box = Box(int(place[2] * (width - w)), int(place[3] * (height - h)), w, h)
    check_regions(Decoder(), drawn, [box])


@pytest.mark.parametrize("sampling", OWN)
def test_every_pixel_by_itself(sampling: str) -> None:
    """All 1 x 1 regions of an image of a few MCUs, and all that begin or end one pixel beside an MCU."""
    decoder = Decoder(routes=FEW)
    for restart in (0, 1, 3, 7):
        drawn = encode(photo(49, 35), sampling, restart)
        check_regions(decoder, drawn, [Box(x, y, 1, 1) for x in range(49) for y in range(35)][restart::9])
        edges = (0, 7, 8, 9, 15, 16, 17, 32)
        boxes = [Box(x, y, 49 - x, 35 - y) for x in edges for y in edges]
        check_regions(decoder, drawn, boxes + [Box(0, 0, box.x + 1, box.y + 1) for box in boxes])


@pytest.mark.parametrize("sampling", OWN)
@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (3, 65_500)])
def test_long_and_thin(decoder: Decoder, sampling: str, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(size))
    for restart in (0, 1, 64):
        drawn = encode(texture(rng, *size), sampling, restart)
        check_regions(decoder, drawn, draw_boxes(rng, drawn, 3))


def test_gray_with_sampling_factors(decoder: Decoder) -> None:
    """They mean nothing with one component, and some encoders write 2x2."""
    rng = np.random.default_rng(5)
    for factors in (0x21, 0x12, 0x22, 0x44):
        for restart in (0, 1, 7):
            drawn = encode(texture(rng, 83, 61), "gray", restart)
            at = drawn.data.index(b"\xff\xc0") + 11
            data = drawn.data[:at] + bytes([factors]) + drawn.data[at + 1 :]
            check_regions(decoder, drawn._replace(data=data), draw_boxes(rng, drawn))


def draw_scaled(rng: np.random.Generator) -> Drawn:
    """With markers at the end of each MCU row, so that it can be spliced."""
    width, height = (int(v) for v in rng.integers(8, int(rng.choice((40, 300))), 2))
    sampling = str(rng.choice(OWN))
    across = Drawn(b"", sampling, width, height, 0).across
    intervals = [r for r in range(1, across + 1) if across % r == 0]
    return encode(texture(rng, width, height), sampling, int(rng.choice(intervals)))


@pytest.mark.parametrize("scale", [2, 4, 8])
def test_reduced_splice_equals_reduced_libjpeg(scale: int) -> None:
    """DCT scaling. Boxes on the grid of the reduced image are its pixels, others are resampled from them."""
    routes = (("splice", "avx2"), ("splice", "scalar"), ("libjpeg", "avx2"))
    rng, decoder = np.random.default_rng(scale), Decoder(DecodeOptions(fast=True), routes)
    compared = 0
    for _ in range(60):
        drawn = draw_scaled(rng)
        boxes = [box for box in draw_boxes(rng, drawn, 10) if min(box.width, box.height) >= scale]
        ends = [(0, size // scale * scale - scale) for size in (drawn.width, drawn.height)]
        boxes += [Box(x, y, scale, scale) for x in ends[0] for y in ends[1] if min(x, y) >= 0]
        boxes += [Box(*(v // scale * scale for v in box)) for box in boxes]
        wanted = decoder.regions(routes[-1], drawn.data, boxes, scale)
        assert set(wanted[0]) <= {0}
        assert set(wanted[2]) <= {"libjpeg"}
        for route in routes[:-1]:
            statuses, pictures, ways = decoder.regions(route, drawn.data, boxes, scale)
            assert set(statuses) <= {0}
            assert set(ways) <= {"splice"}
            for box, mine, theirs in zip(boxes, pictures, wanted[1], strict=True):
                assert np.array_equal(mine, theirs), (route, drawn[1:], box)
                compared += 1
    assert compared > 1000


def test_fast_pixels_are_the_same_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that our decoder supports are never scaled, even if libjpeg decodes them.

    Our full decode is faster than libjpeg's at a half, and pixels must not depend on the instruction set.
    """
    monkeypatch.delenv("IOFAST_REGION", raising=False)
    data = jpeg(photo(400, 300), restart_marker_blocks=5)
    pictures = []
    for simd in ("avx512", "avx2", "scalar"):
        for fast in (False, True):
            monkeypatch.setenv("IOFAST_SIMD", simd)
            view = View((0, 0, 400, 300, 60, 50, 0, 0), (60, 50))
            status, pixels = decode_view(data, view, DecodeOptions(fast=fast))
            assert status == 0
            pictures.append(pixels)
    for pixels in pictures[1:]:
        np.testing.assert_array_equal(pixels, pictures[0])


def test_other_kinds_go_to_libjpeg() -> None:
    """Our decoder does not support progressive and RGB files."""
    decoder = Decoder(routes=(("own", "avx2"), ("splice", "avx2")))
    pixels = photo(90, 70)
    for options in ({"progressive": True}, {"keep_rgb": True, "subsampling": "4:4:4"}):
        data = jpeg(pixels, restart_marker_rows=1, **options)
        box = Box(11, 9, 50, 40)
        for route in decoder.contexts:
            statuses, pictures, ways = decoder.regions(route, data, [box])
            assert (statuses, ways) == ([0], ["libjpeg"])
            np.testing.assert_array_equal(pictures[0], cut(np.asarray(upright(data)), box))
