"""Regions by our own decoder, by a splice and by libjpeg equal that region of Pillow's full decode."""

import numpy as np
import pytest
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


@pytest.mark.parametrize(
    ("seed", "images"), [(0, 50), (1, 50), *(pytest.param(n, 5000, marks=pytest.mark.slow) for n in range(100, 104))]
)
def test_every_path_equals_the_full_decode(seed: int, images: int) -> None:
    """About 50 comparisons for each image."""
    rng, decoder = np.random.default_rng(seed), Decoder(routes=FEW if images < 100 else ROUTES)
    for _ in range(images):
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
    ways = decoder.contexts["own", "avx2"].counts().ways
    assert min(ways["rows"], ways["segments"]) > 0


@pytest.mark.parametrize("sampling", SAMPLING)
def test_every_pixel_by_itself(decoder: Decoder, sampling: str) -> None:
    """All 1 x 1 regions of an image of a few MCUs, and all that begin or end one pixel beside an MCU."""
    for restart in (0, 1, 7):
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
    data, view = jpeg(photo(400, 300), restart_marker_blocks=5), View((0, 0, 400, 300, 60, 50, 0, 0), (60, 50))
    made = set()
    for simd in ("avx512", "avx2", "scalar"):
        monkeypatch.setenv("IOFAST_SIMD", simd)
        for fast in (False, True):
            status, pixels = decode_view(data, view, DecodeOptions(fast=fast))
            made.add((status, pixels.tobytes()))
    assert [status for status, _ in made] == [0]


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
